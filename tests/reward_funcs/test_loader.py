"""A reward from a user's file: what loads, and the one line that tells why another does not. S2-06"""

from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path

import pytest

from reward_funcs import RewardError, Sample, load_reward, score_batch

GOOD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
GOOD += "    return float(len(solution_str))\n"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes, name: str = "my_reward.py") -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return write


def refusal(path: str | None, name: str = "compute_score") -> str:
    with pytest.raises(RewardError) as error:
        load_reward(path, name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_s_compute_score_is_the_reward(write):
    # S2-06, S2-22
    path = write(GOOD)
    reward = load_reward(path)
    assert reward("any", "four", None).score == 4.0
    assert reward.file == Path(path)
    assert reward.name == "compute_score"
    assert reward.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()


def test_file_colon_name_and_the_name_argument_choose_the_function(write):
    path = write(GOOD + "def strict(solution_str):\n    return 0\n")
    assert load_reward(f"{path}:strict")("m", "four", "").score == 0.0
    assert load_reward(path, "strict")("m", "four", "").score == 0.0


def test_a_path_with_spaces_chinese_and_colons_loads(write):
    # S2-03
    assert load_reward(write(GOOD, "我的 奖励/reward v2.py"))("m", "four", "").score == 4.0
    assert load_reward(write(GOOD, "a:b"))("m", "four", "").score == 4.0


def test_a_relative_path_is_meant_from_here(write, tmp_path, monkeypatch):
    write(GOOD)
    monkeypatch.chdir(tmp_path)
    assert load_reward("./my_reward.py").file == tmp_path / "my_reward.py"


def test_no_path_gives_the_shipped_reward():
    reward = load_reward(None)
    assert reward("math", r"\boxed{5}", "5").score == 1.0
    assert reward.file is not None
    assert reward.file.name == "reward_func.py"
    assert reward.sha256 is not None
    assert len(reward.sha256) == 64


def test_two_files_of_one_name_do_not_collide(write):
    one = load_reward(write("STATE = 1\n" + GOOD.replace("float(len(solution_str))", "STATE"), "a/reward.py"))
    two = load_reward(write("STATE = 2\n" + GOOD.replace("float(len(solution_str))", "STATE"), "b/reward.py"))
    assert (one("m", "", "").score, two("m", "", "").score) == (1.0, 2.0)
    counter = "calls = []\ndef compute_score(solution_str):\n    calls.append(1)\n    return len(calls)\n"
    one, two = load_reward(write(counter, "a/same.py")), load_reward(write(counter, "b/same.py"))
    assert [one("m", "", "").score, one("m", "", "").score, two("m", "", "").score] == [1.0, 2.0, 1.0]


def test_an_edited_file_is_loaded_anew_even_within_the_same_second(write):
    assert load_reward(write(GOOD))("m", "four", "").score == 4.0
    assert load_reward(write(GOOD.replace("len", "max").replace("solution_str))", "4, 9))")))("m", "", "").score == 9.0


def test_dataclasses_and_pickle_work_inside_the_file(write):
    path = write(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport pickle\n"
        "@dataclass\nclass Judged:\n    points: float\n"
        "def compute_score(solution_str):\n    return pickle.loads(pickle.dumps(Judged(3.0))).points\n"
    )
    reward = load_reward(path)
    assert reward("m", "", "").score == 3.0
    assert pickle.loads(pickle.dumps(reward.function)) is reward.function  # noqa: S301 - our own


def test_loading_leaves_nothing_beside_the_file(write, tmp_path):
    load_reward(write(GOOD))
    assert [file.name for file in tmp_path.iterdir()] == ["my_reward.py"]


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    assert refusal(str(tmp_path / "no.py")).startswith(f"{tmp_path / 'no.py'}: no such file; --reward_func takes")
    assert refusal(str(tmp_path / "no.py") + ":strict").startswith(f"{tmp_path / 'no.py'}: no such file")
    assert "is a folder" in refusal(str(tmp_path))
    assert "cannot be read" in refusal("x" * 5000)
    assert "cannot be read" in refusal("a\0b.py")
    assert "no such file" in refusal("")[:400] or "is a folder" in refusal("")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef compute_score(:\n", "my_reward.py, line 2: does not import: SyntaxError: "),
        ("x = 1\n\n1 / 0\n", "my_reward.py, line 3: does not import: ZeroDivisionError: division by zero"),
        (
            "import no_such_package_here\n",
            "my_reward.py, line 1: does not import: ModuleNotFoundError: No module named ",
        ),
        ("import sys\nsys.exit(3)\n", "my_reward.py, line 2: does not import: SystemExit: 3"),
        ("raise ValueError('one\\ntwo')\n", "my_reward.py, line 1: does not import: ValueError: one two"),
        (b"x = 1\x00\n", "does not import: "),
        (
            "名字 = '中文'\n".encode("gbk"),
            "decode byte 0xc3 in position 0: invalid continuation byte; save the file as UTF-8",
        ),
        ("def f():\n    return f()\nf()\n", "my_reward.py, line 2: does not import: RecursionError: "),
    ],
)
def test_a_file_that_does_not_import_is_told_with_its_line(write, text, said):
    path = write(text)
    before = set(sys.modules)
    assert said in refusal(path)
    assert not {name for name in set(sys.modules) - before if "my_reward" in name}


def test_a_module_that_lies_beside_the_file_is_told_how_to_reach(write, tmp_path):
    write("", "my_rules.py")
    assert refusal(write("import my_rules\n")).endswith(f"it lies beside the file: run with PYTHONPATH={tmp_path}")


def test_a_file_without_the_function_lists_those_that_it_has(write):
    path = write("from math import sqrt\ndef score(solution_str):\n    return 1\ndef _hidden():\n    pass\n")
    assert refusal(path).endswith(
        "no function 'compute_score'; it has: score. Define it, or name another with FILE:NAME"
    )
    assert "it has: none" in refusal(write("x = 1\n"))


def test_a_name_that_is_no_function_is_refused(write):
    assert "'compute_score' is float, not a function" in refusal(write("compute_score = 1.0\n"))


def test_ctrl_c_while_a_file_loads_is_not_taken_for_its_error(write):
    with pytest.raises(KeyboardInterrupt):
        load_reward(write("raise KeyboardInterrupt\n"))


def test_a_failing_call_is_told_with_the_line_of_the_user_s_file(write):
    reward = load_reward(write("def compute_score(solution_str):\n    value = {}\n    return value['missing']\n"))
    with pytest.raises(
        RewardError, match=r"my_reward.py:compute_score: 1 of 1.*KeyError: 'missing' .my_reward.py, line 3"
    ):
        score_batch(reward, [Sample("m", "", "")], max_errors=0.1)


def test_a_reward_that_returns_nothing_is_told_with_its_file(write):
    reward = load_reward(write("def compute_score(solution_str):\n    pass\n"))
    with pytest.raises(RewardError, match=r"response 0: returned None \(is a `return` missing\?\)"):
        score_batch(reward, [Sample("m", "", "")], max_errors=0.1)
