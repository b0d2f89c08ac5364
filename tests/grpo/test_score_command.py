"""`./train.sh score`: pass@1 and pass@k of a file of model outputs, and the forecast for --rollout_n. S2-21"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.__main__ import main

DATA = [{"prompt": f"{n} + {n} = ?", "ground_truth": str(2 * n), "data_source": "math"} for n in range(4)]


@pytest.fixture
def score(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    def score(rows: Any, *words: str) -> tuple[int, str, str]:
        Path("d.json").write_text(json.dumps(DATA))
        Path("r.jsonl").write_text("\n".join(map(json.dumps, rows)))
        capsys.readouterr()
        code = main(["score", "--responses", "r.jsonl", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return score


@pytest.mark.slow
def test_pass_at_one_per_source(score):
    rows = [{"index": n, "response": f"The answer is {answer}."} for n, answer in enumerate([0, 2, 4, 7])]
    code, page, _ = score(rows, "--data", "d.json")
    assert code == 0
    assert [line.split() for line in page.splitlines()[:2]] == [
        ["data_source", "prompts", "responses", "failed", "mean", "pass@1"],
        ["math", "4", "4", "0", "0.7500", "0.7500"],
    ]


@pytest.mark.slow
def test_several_responses_give_pass_at_k_and_a_forecast(score):
    # of four each: 4, 2, 1 and 0 right; pass@1 7/16, pass@2 (1 + 5/6 + 1/2 + 0)/4, pass@4 3/4
    right = [4, 2, 1, 0]
    rows = [{"index": n, "response": str(2 * n if i < c else 99)} for n, c in enumerate(right) for i in range(4)]
    code, text, _ = score(rows, "--data", "d.json", "--json")
    (found,) = json.loads(text)["sources"]
    assert code == 0
    assert found["counts"] == [[c, 4] for c in right]
    assert found["pass_at_k"] == pytest.approx({"1": 7 / 16, "2": 7 / 12, "4": 3 / 4})
    # groups of 3 of these four: always equal, never, one in four (three wrong), always
    assert found["forecast"]["equal"]["3"] == pytest.approx((1 + 0 + 1 / 4 + 1) / 4)
    assert found["forecast"]["at_most"]["3"] == pytest.approx((1 + 1 / 4 + 7 / 16 + 1) / 4)  # (1/4)^3 + (3/4)^3 = 7/16
    page = score(rows, "--data", "d.json")[1]
    assert "advice: --rollout_n " in page
    assert "25% of the prompts were always right: leave them out" in page
    assert "25% of the prompts were never right" in page


@pytest.mark.slow
def test_where_no_group_differs_no_size_is_advised(score):
    page = score([{"index": 0, "response": "99"} for _ in range(4)], "--data", "d.json")[1]
    assert "no group of any size would differ: another model, easier or harder prompts, or another reward" in page
    assert "--rollout_n" not in page


@pytest.mark.slow
def test_an_own_reward_and_an_own_threshold(score, in_folder: Path):
    (in_folder / "my.py").write_text("def compute_score(solution_str):\n    return len(solution_str) / 10\n")
    rows = [{"index": n, "response": "x" * (4 + n)} for n in range(4)]
    words = ["--data", "d.json", "--reward_func", "my.py"]
    assert score(rows, *words)[1].splitlines()[1].split()[-2:] == ["0.5500", "0.0000"]  # 0.4 to 0.7
    assert score(rows, *words, "--pass_at", "0.5")[1].splitlines()[1].split()[-1] == "0.7500"


@pytest.mark.slow
def test_what_fails_is_counted_and_is_no_zero(score, in_folder: Path):
    (in_folder / "my.py").write_text("def compute_score(solution_str):\n    return 1.0 / (solution_str != 'x')\n")
    rows = [{"index": 0, "response": "x"}, {"index": 1, "response": "y"}]
    page = score(rows, "--data", "d.json", "--reward_func", "my.py")[1]
    assert page.splitlines()[1].split() == ["math", "1", "2", "1", "1.0000", "1.0000"]
    assert "failed: response 1: ZeroDivisionError: float division by zero (my.py, line 2)" in page


@pytest.mark.slow
def test_completions_of_a_run_need_no_data(score):
    rows = [
        {"step": step, "uid": 0, "prompt": "1+1", "response": answer, "ground_truth": "2", "data_source": "math"}
        for step, answer in [(1, "2"), (1, "3"), (2, "2")]
    ]
    assert score(rows)[1].splitlines()[1].split()[:3] == ["math", "2", "3"]  # a group in each step
    assert score(rows, "--step", "last")[1].splitlines()[1].split()[-1] == "1.0000"


@pytest.mark.slow
def test_an_index_means_nothing_without_data(score):
    rows = [{"index": 0, "response": "2", "ground_truth": "2", "data_source": "math", "prompt": "1+1"}]
    assert score(rows)[1].splitlines()[1].split()[::4] == ["math", "1.0000"]  # no record of the shipped data


def test_rows_of_no_record_are_one_line(score):
    code, _, errors = score([{"index": 9, "response": "x"}], "--data", "d.json")
    assert code == 2
    assert errors.startswith("error: r.jsonl: none of its 1 row belongs to a record (first: line 1)")
    code, _, errors = score([], "--data", "d.json")
    assert code == 2


@pytest.mark.slow
def test_real_model_outputs_agree_with_their_verdicts(shared: Path, score):
    """2,400 answers of four models, each with the verdict of OpenAI's own checker"""
    path = str(shared / "data" / "gsm8k_model_answers.jsonl")
    code, page, _ = score([], "--responses", path, "--data_source", "gsm8k")
    assert code == 0
    assert page.count("the file's own verdicts agree on all 600") == 4
    rates = {line.split()[1]: line.split()[-1] for line in page.splitlines()[1:5]}
    assert rates == {
        "6b_finetuning": "0.2150", "6b_verification": "0.3983",
        "175b_finetuning": "0.3417", "175b_verification": "0.5550",
    }  # fmt: skip


def test_when_every_call_fails_nothing_was_scored(score, in_folder: Path):
    (in_folder / "my.py").write_text("def compute_score(solution_str):\n    return 1 / len(solution_str)\n")
    words = ["--data", "d.json", "--reward_func", "my.py"]
    code, page, errors = score([{"index": n, "response": ""} for n in range(3)], *words)
    assert (code, page, errors.count("\n")) == (2, "", 1)
    assert "all 3 reward calls failed; the first, response 1: ZeroDivisionError: division by zero" in errors
    code, page, _ = score([{"index": n, "response": "x" * n} for n in range(3)], *words)
    assert code == 0
    assert "1 of 3 reward calls failed; they count in no mean and no pass@k" in page
