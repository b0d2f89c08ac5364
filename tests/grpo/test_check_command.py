"""`./train.sh check`: the page, its JSON, its exit code, the file it writes. S2-35, PEERS section 5, rows 2 and 11."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from data_prep.convert import load_rows
from data_prep.records import read_records
from grpo import launch
from grpo.__main__ import main
from grpo.commands.training_words import read
from tests.documents import REPO, blocks, shown_files

SUMS = [{"prompt": f"{n} + {n} = ?", "ground_truth": str(2 * n), "data_source": "math"} for n in range(30)]


@pytest.fixture
def check(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    """check(rows, *words) -> (exit code, standard output, errors); the rows are in d.json."""

    def check(rows: Any, *words: str, code: str | None = None) -> tuple[int, str, str]:
        Path("d.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
        own = []
        if code is not None:
            Path("my.py").write_text(code, encoding="utf-8")
            own = ["--reward_func", "my.py"]
        capsys.readouterr()
        ended = main(["check", "--data", "d.json", *own, *words])
        said = capsys.readouterr()
        return ended, said.out, said.err

    return check


def test_good_data_is_ready_and_the_page_says_what_was_tried(check):
    code, page, _ = check(SUMS)
    assert code == 0
    lines = page.splitlines()
    assert lines[0] == "math  30 records, scored by reward_funcs/math_match.py: math_score"
    assert lines[1] == "  right answers  mean 1; 30 of 30 score 1"
    assert lines[2].startswith("  spelled as     0 1   \\boxed{0} 1   The answer is 0. 1   Let me think. #### 0 1")
    assert (
        lines[3]
        == "  bad answers    empty 0   wrong 0   two answers 0   cut off 0   chatty 0   other language 0   huge 0"
    )
    assert "scores 0 to 1 · none failed · the same twice" in lines[4]
    parted = re.search(r"records +(\d+) to train on, (\d+) to evaluate on", page)
    assert parted is not None
    assert int(parted[1]) + int(parted[2]) == 30
    assert lines[-1].startswith("Verdict: ready to train. (")
    assert len(lines) < 24


@pytest.mark.slow
def test_truths_that_nothing_can_parse_are_refused_with_five_rows(check):
    rows = [row | {"ground_truth": f"see page {n}b"} for n, row in enumerate(SUMS)]
    code, page, _ = check(rows)
    assert code == 1
    assert "1. must change: math: 30 of 30 right answers score less than 1" in page
    assert page.count("response read as '', truth as 'see page") == 5
    assert "to do: the rules of `qa` score them: --reward accuracy:data_source=qa" in page
    assert page.splitlines()[-1].startswith("Verdict: not ready. Change what is marked `must change` first")
    assert check(rows, "--reward", "accuracy:data_source=qa")[0] == 0  # the change that was named


def test_the_same_for_machines(check):
    code, text, _ = check([*SUMS, SUMS[0]], "--json")
    found = json.loads(text)
    assert code == 0
    assert found["verdict"] == "ready, with warnings"
    (reward,) = found["rewards"]
    assert (reward["source"], reward["gold"], reward["right"], reward["differ"]) == ("math", 31, 31, 0)
    assert reward["bad"]["wrong"]["mean"] == 0.0
    assert len(found["prompts"]["duplicates"]) == 1
    (change,) = found["changes"]
    assert change["level"] == "warn"
    assert change["text"] == "1 record with the same prompt as an earlier one"
    assert change["fix"] == "./train.sh check --data d.json --clean clean.parquet leaves them out"
    assert change["rows"] == ['record 30 and record 0, "0 + 0 = ?"']


@pytest.mark.slow
def test_what_clean_writes_is_ready(check):
    bad = [SUMS[0], SUMS[1] | {"ground_truth": "7"}, SUMS[5] | {"prompt": "odd", "ground_truth": "see page 7b"}]
    code, page, _ = check([*SUMS, *bad], "--clean", "clean.parquet", "--system", "Be brief.")
    # 30 sums and 3 bad ones: out are the copy of 0, both of 1, which contradict each other, and the odd one
    assert code == 0
    assert "clean.parquet: 29 of 33 records; train with --data clean.parquet" in page
    rows = load_rows(Path("clean.parquet"))
    left = [n for n in range(30) if n != 1]  # in the file's order, whichever of them were held out
    assert [row["prompt"][0]["content"] for row in rows] == [f"{n} + {n} = ?" for n in left]
    assert main(["check", "--data", "clean.parquet", "--system", "Be brief."]) == 0


@pytest.mark.slow
def test_evaluation_data_that_is_trained_on_is_found(check, in_folder: Path):
    (in_folder / "v.json").write_text(json.dumps([SUMS[3], SUMS[4] | {"prompt": "new?"}]))
    _, page, _ = check(SUMS, "--val_data", "v.json")
    assert "should change: 1 of the 2 to evaluate on is trained on, too" in page
    assert 'record 3 and record 0 of the evaluation data, "3 + 3 = ?"' in page
    check(SUMS, "--val_data", "v.json", "--clean", "c.parquet")
    assert len(load_rows(in_folder / "c.parquet")) == 29


@pytest.mark.slow
def test_prompts_are_counted_when_the_model_is_a_folder(check, in_folder: Path):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (in_folder / "m").mkdir()
    tokenizer.save(str(in_folder / "m" / "tokenizer.json"))
    rows = [*SUMS, SUMS[0] | {"prompt": "word " * 70}]
    words = ["--model", "m", "--max_prompt_length", "64"]
    code, page, _ = check(rows, *words)
    assert code == 0
    assert "  prompts        median 5, longest 70 tokens; 1 over --max_prompt_length 64" in page
    assert "to do: --max_prompt_length 128 keeps them all" in page
    assert check(rows, *words, "--max_prompt_length", "128")[1].count("should change") == 0
    assert check(SUMS, *words, "--max_prompt_length", "4")[0] == 1  # none would be left


def test_every_reward_of_a_sum_has_its_own_lines(check):
    code, page, _ = check(SUMS, "--reward", "accuracy,format", "--reward_weights", "1,0.2")
    assert code == 0
    assert "scored by reward_funcs/math_match.py: math_score" in page
    assert "scored by reward format" in page
    assert "format gives a bare right answer 0, and 1 to <think> Let me think. </think> <answer>" in page
    assert (
        "1 of the above should change" in page
    )  # no prompt asks for tags; that they owe a bare answer nothing is right
    words = ["--reward", "accuracy,format", "--system", str(REPO / "reward_funcs/prompts/think_answer.txt")]
    assert "Verdict: ready to train." in check(SUMS, *words)[1]


@pytest.mark.slow
def test_a_flawed_reward_is_told_what_to_edit(check):
    code = "def compute_score(solution_str, ground_truth):\n    return float(ground_truth in solution_str)\n"
    ended, page, _ = check(SUMS, code=code)
    assert ended == 0  # of the user's own we only warn
    assert "should change: math: compute_score pays a response of two answers as much as the right one" in page
    assert "my.py: take one answer out of the response and compare it: ==, not `in`" in page


def test_words_of_a_training_command_and_mistakes_in_them(check):
    assert check(SUMS, "--recipe", "gsm8k", "launcher.data.prompt_key=prompt", "--answer_key", "ground_truth")[0] == 0
    code, _, errors = check(SUMS, "--dat", "x")
    assert (code, errors) == (2, "error: --dat is no flag; did you mean --data?\n")
    assert check(SUMS, "--clean", "c.json")[2].startswith("error: --clean c.json: the result is a parquet file")


@pytest.mark.slow
def test_it_takes_seconds_and_imports_no_torch(in_folder: Path, repo: Path):
    (in_folder / "d.json").write_text(
        json.dumps([SUMS[0] | {"prompt": f"{n} + 0 = ?", "ground_truth": n} for n in range(5000)])
    )
    program = (
        "import sys, time; from grpo.__main__ import main; code = main(['check', '--data', 'd.json']); "
        "heavy = {'torch', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules); "
        "print(code, sorted(heavy), time.process_time())"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(repo)}, capture_output=True, text=True, check=True
    )
    code, heavy, seconds = done.stdout.splitlines()[-1].split()
    assert (code, heavy) == ("0", "[]")
    assert float(seconds) < 5
    assert time.monotonic() - began < 60


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/check.md", "docs/check.zh.md"])
def test_the_page_in_the_documents_is_what_is_printed(page: str, in_folder: Path, capsys: pytest.CaptureFixture[str]):
    for name, text in shown_files(page).items():
        (in_folder / name).write_text(text, encoding="utf-8")
    (shown,) = [block.text for block in blocks(page) if block.language == "text"]
    assert main(["check", "--data", "prompts.json", "--reward_func", "found_in.py"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in shown.splitlines() if line not in printed] == []
    assert main(["score", "--data", "prompts.json", "--responses", "responses.jsonl"]) == 0
    assert re.search(r"^qa +1 +2 +0 +0\.5000 +0\.5000 +1\.0000$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["check"], ["score", "--responses", "r.jsonl"]])
def test_what_a_reward_prints_is_not_in_the_json(command: list[str], in_folder: Path, repo: Path):
    (in_folder / "d.json").write_text(json.dumps(SUMS))
    (in_folder / "r.jsonl").write_text('{"index": 0, "response": "0"}')
    (in_folder / "my.py").write_text(
        "print('read')\ndef compute_score(solution_str, ground_truth):\n    print('called', flush=True)\n"
        "    return float(solution_str == ground_truth)\n"
    )
    words = [*command, "--data", "d.json", "--reward_func", "my.py", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "grpo", *words],
        env={"PYTHONPATH": str(repo)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)
    assert "read" in done.stderr
    assert "called" in done.stderr


def test_a_slip_in_the_reward_is_not_taken_for_a_hard_response(check):
    code, page, _ = check(SUMS, code="def compute_score(solution_str):\n    return lenn(solution_str)\n")
    assert code == 1
    assert "name 'lenn' is not defined" in page
    assert "my.py: mend what the message names; no response can make up for it" in page
    _, page, _ = check(SUMS, code="def compute_score(solution_str):\n    return float(solution_str)\n")
    assert "my.py: return a number, also for a response that it cannot read: 0.0" in page


def test_check_and_the_check_before_training_count_a_record_alike(check, in_folder: Path):
    code = "def compute_score(solution_str, ground_truth):\n"
    code += "    return (solution_str == ground_truth) / (ground_truth != '6')\n"  # fails on the row of index 3
    assert "record 3: " in check(SUMS, "--json", code=code)[1]
    settings = read("check", ["--data", "d.json", "--reward_func", "my.py"], "", lambda parser: None).settings
    data = launch.Data(read_records("d.json")[3:], [])  # three of the rows before it are held out
    _, notes = launch.rehearse_reward(settings, data)
    assert any("record 3: " in note for note in notes)
