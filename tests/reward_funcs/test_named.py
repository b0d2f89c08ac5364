"""`--reward NAME,NAME --reward_weights W,W`: names, parameters, sums, plug-ins. S3-03, S3-04, S3-11, S1-13, S4-13"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reward_funcs import Combined, Reward, RewardError, Sample, Score, build_reward, orms, score_batch

RESPONSE = "<think>6 * 7</think><answer>42</answer>"


def refusal(**given: Any) -> str:
    with pytest.raises(RewardError) as error:
        build_reward(**given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "plugin.py") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


def test_the_score_is_the_weighted_sum_and_every_reward_has_its_curve():
    # S1-13, S3-11, S4-13
    reward = build_reward(names="accuracy,format", weights=[1, 0.2])
    assert reward("math", RESPONSE, "42") == Score(1.2, {"accuracy": 1.0, "format": 1.0})
    assert reward("math", "42", "42") == Score(1.0, {"accuracy": 1.0, "format": 0.0})


def test_without_weights_each_counts_once():
    # S3-11: None = all 1
    for weights in (None, []):
        assert build_reward(names=["accuracy", "format"], weights=weights)("math", RESPONSE, "42").score == 2.0


def test_as_many_weights_as_rewards():
    # S3-11
    said = refusal(names="accuracy,format", weights=[1, 0.5, 2])
    assert said.startswith("--reward_weights has 3 (1, 0.5, 2) for 2 rewards (accuracy, format)")
    assert "--reward_weights goes with --reward" in refusal(weights=[1])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("acuracy", "no reward is called 'acuracy'; did you mean accuracy? Known: accuracy, code, format"),
        ("Format", "did you mean format?"),
        ("xyzzy", "no reward is called 'xyzzy'; Known: "),
        ("accuracy,,format", "no name"),
        (":max_len=3", "no name"),
        ("cosine:maxlen=3", "cosine has no parameter 'maxlen'; did you mean max_len?"),
        ("cosine:max_len=three", "max_len=three is not a whole number"),
        ("cosine:max_len=10:max_len=20", "max_len is given twice"),
        ("cosine:max_len=0", "at least 1 token"),
        ("repetition:max_penalty=1", "would pay for repeating"),
        ("repetition:max_penalty=nan", "is not a number"),
        ("soft_overlong:max_len=10:buffer=20", "between 1 and max_len=10"),
        ("format:think_opened=maybe", "not true or false"),
        ("format:5", "'5' is no parameter; format takes: think_opened="),
        ("rouge:kind=rouge3", "has to be average, rouge1"),
        ("server", "server needs its url"),
        ("no_such.py:f", "no_such.py: no such file"),
    ],
)
def test_what_is_misspelled_is_told_in_one_line(names, said):
    assert said in refusal(names=names)


def test_a_url_keeps_its_colons_and_parameters_follow_it():
    reward = build_reward(names="server:http://127.0.0.1:8731/score?a=b:timeout=5,format")
    assert isinstance(reward, Combined)
    server: Any = reward.singles[0].function
    assert (server.url, server._timeout) == ("http://127.0.0.1:8731/score?a=b", 5.0)


def test_the_same_name_twice_gives_two_curves():
    reward = build_reward(names="repetition:n_grams=1,repetition:n_grams=2,format")
    assert reward("math", "a b a b", "42").parts == {
        "repetition": -0.5,
        "repetition_2": pytest.approx(-1 / 3),
        "format": 0.0,
    }


def test_parts_of_a_part_have_their_own_names():
    reward = build_reward(names="format", function=lambda solution_str: {"score": 2.0, "length": len(solution_str)})
    assert reward("m", "abc", "").parts == {"format": 0.0, "<lambda>": 2.0, "<lambda>/length": 3.0}


def test_a_failing_reward_fails_the_response_and_says_which_it_was():
    def judge(solution_str):
        return 1 / len(solution_str)

    reward = build_reward(names="format", function=judge)
    got = score_batch(reward, [Sample("m", "", ""), Sample("m", "a", "")], max_errors=0.5)
    assert got.scores == [None, 1.0]
    assert got.first_error is not None
    assert got.first_error.splitlines()[-1] == "ZeroDivisionError: division by zero"
    with pytest.raises(
        RewardError, match=r"response 0: judge: ZeroDivisionError: division by zero .test_named.py, line"
    ):
        score_batch(reward, [Sample("m", "", "")], max_errors=0)


def test_none_in_a_list_leaves_that_reward_out_of_the_sum():
    def only_short(completions, **columns):
        return [None if len(text) > 3 else 1.0 for text in completions]

    reward = build_reward(names="repetition:n_grams=1", function=only_short, weights=[2, 1])
    got = score_batch(reward, [Sample("m", "a a", ""), Sample("m", "a a a a", "")], max_errors=0)
    assert got.scores == [0.0, -1.5]
    assert got.parts == [{"repetition": -0.5, "only_short": 1.0}, {"repetition": -0.75}]
    alone = build_reward(function=only_short)
    assert alone.attempts([Sample("m", "abc", "")]) == [Score(1.0)]
    (failed,) = alone.attempts([Sample("m", "abcd", "")])
    assert "no other reward does" in str(failed)


def test_a_plug_in_registers_names(write):
    # S3-03, S3-04: ms-swift's own example
    path = write(
        "from reward_funcs import orms\n"
        "def long(completions, **kwargs):\n    return [1.0 if len(c) > 1024 else 0.0 for c in completions]\n"
        "class Dummy:\n    def __call__(self, completions, solution, **kwargs):\n"
        "        return [float(c == s) for c, s in zip(completions, solution)]\n"
        "orms['long'] = long\norms['dummy'] = Dummy\n"
    )
    reward = build_reward(names="long,dummy,format", plugins=[path])
    assert reward("m", "x" * 1025, "y").parts == {"long": 1.0, "dummy": 0.0, "format": 0.0}
    assert reward("m", "y", "y").parts == {"long": 0.0, "dummy": 1.0, "format": 0.0}
    assert dict(orms) == {}  # a run's names do not leak into the next
    assert "did you mean dummy?" in refusal(names="dumy", plugins=[path])
    assert "registers long, dummy; say which to use: --reward NAME" in refusal(plugins=[path])
    assert "takes no parameters" in refusal(names="dummy:x=1", plugins=[path])


def test_a_plug_in_may_have_its_own_dictionary_and_shadow_a_name(write):
    path = write("def mine(solution_str):\n    return 7\norms = {'format': mine}\n")
    assert build_reward(names="format", plugins=[path])("m", "", "").score == 7.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "registers no reward; write `from reward_funcs import orms`"),
        ("orms = {'a b': print}\n", "'a b' is no name for --reward"),
        ("orms = {'a': 3}\n", "is int, not a function"),
        ("class Odd:\n    def __init__(self, x): pass\norms = {'odd': Odd}\n", "cannot be made without arguments"),
        ("1 / 0\n", "plugin.py, line 1: does not import: ZeroDivisionError"),
    ],
)
def test_a_plug_in_that_is_none_is_told(write, text, said):
    assert said in refusal(names="a", plugins=[write(text)])


def test_functions_of_files_stand_beside_names(write):
    path = write("def compute_score(solution_str):\n    return 1\ndef strict(solution_str):\n    return 2\n", "mine.py")
    reward = build_reward(names=f"format,{path}:strict", file=path, weights=[1, 10, 100])
    assert reward("m", "", "") == Score(120.0, {"format": 0.0, "strict": 2.0, "mine": 1.0})  # the file's own is last


def test_a_function_called_errors_does_not_take_the_name_of_their_count(write):
    path = write("def errors(solution_str):\n    return 2\n", "mine.py")
    assert build_reward(names=f"format,{path}:errors")("m", "", "").parts == {"format": 0.0, "errors_2": 2.0}


def test_one_reward_alone_stays_what_it_was(write):
    path = write("def compute_score(solution_str):\n    return 3\n", "mine.py")
    for given in ({}, {"file": path}, {"function": lambda solution_str: 3}):
        assert isinstance(build_reward(**given), Reward)


def test_what_decides_the_score_decides_the_hash(write):
    path = write("def compute_score(solution_str):\n    return 3\n", "mine.py")
    one = build_reward(names="accuracy,cosine:max_len=10", file=path)
    prints = {
        one.sha256,
        build_reward(names="accuracy,cosine:max_len=11", file=path).sha256,
        build_reward(names="accuracy,cosine:max_len=10", file=path, weights=[1, 1, 2]).sha256,
    }
    write("def compute_score(solution_str):\n    return 4\n", "mine.py")
    prints.add(build_reward(names="accuracy,cosine:max_len=10", file=path).sha256)
    assert len(prints) == 4
