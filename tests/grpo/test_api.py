"""Training from Python: records in memory, records made during training, a reward that is a function."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.convert import load_rows
from data_prep.errors import DataError
from grpo import api
from grpo.config import ConfigError
from reward_funcs.errors import RewardError

SMALL = [
    *("--model", "scratch", "--max_steps", "2", "--rollout_n", "2", "--max_response_length", "4"),
    *("launcher.scratch.num_layers=1", "launcher.scratch.hidden_size=32", "--train_batch_size", "2"),
]


def record(number: int) -> dict[str, object]:
    return {"prompt": f"{number} + 1 = ?", "ground_truth": number + 1, "data_source": "math_reasoning", "level": number}


def stream(drawn: list[int]) -> Iterator[dict[str, object]]:
    for number in itertools.count():
        drawn.append(number)
        yield record(number)


def test_the_words_of_a_command_line_are_taken(in_folder: Path):
    with pytest.raises(ConfigError, match=r"rollout.n=1 \(flag --rollout_n\)"):
        api.train([record(1)], overrides=["--rollout_n", "1"])


@pytest.mark.slow
def test_records_are_checked_as_a_files_are(in_folder: Path):
    with pytest.raises(DataError, match='no "ground_truth"'):
        api.train([{"prompt": "a", "data_source": "qa"}], overrides=SMALL)
    with pytest.raises(DataError, match="data_source without a shipped reward"):
        api.train([{**record(1), "data_source": "mine"}], overrides=SMALL)
    with pytest.raises(ConfigError, match="more than the 1 prompt to train on"):
        api.train([record(1)], overrides=SMALL)
    assert list(in_folder.iterdir()) == []


@pytest.mark.slow
def test_a_function_is_rehearsed_as_a_file_is(in_folder: Path):
    with pytest.raises(RewardError, match="<lambda> fails on 32 of 32 responses: returned None"):
        api.train([record(1), record(2)], reward_func=lambda solution_str: None, overrides=SMALL)
    with pytest.raises(ConfigError, match=r"no/such.py \(flag --reward_func\): no such file"):
        api.train([record(1), record(2)], reward_func="no/such.py", overrides=SMALL)


@pytest.mark.slow
def test_a_function_may_need_no_answers(in_folder: Path):
    words = [*SMALL, "--answer_key", "none"]
    with pytest.raises(ConfigError, match="more than the 1 prompt to train on"):  # and nothing about answers
        api.train([{"prompt": "a", "data_source": "b"}], reward_func=lambda solution_str: 0.5, overrides=words)


def test_a_stream_must_be_told_when_to_stop(in_folder: Path):
    """S1-28."""
    with pytest.raises(ConfigError, match="--max_steps"):
        api.train(stream([]), overrides=["--model", "scratch"])


def test_a_stream_is_checked_record_by_record(in_folder: Path):
    """S1-28: an endless stream has no end at which bad records could be counted."""
    settings = api.resolve(api.flags.parse(["--data", "x", "--model", "scratch"]), {}).settings()
    rows = api._checked_rows(settings, iter([record(1), {"prompt": "a"}]))
    assert next(rows) == {
        "prompt": [{"role": "user", "content": "1 + 1 = ?"}],
        "data_source": "math_reasoning",
        "ground_truth": "2",
        "extra_info": {"index": 0, "split": "train", "level": 1},
    }
    with pytest.raises(DataError, match="data, record 2"):
        next(rows)


@pytest.mark.slow
def test_records_and_a_function_train(in_folder: Path):
    seen = []

    def longer_is_better(solution_str: str, extra_info: dict[str, object]) -> float:
        seen.append(extra_info["level"])
        return len(solution_str) / 100

    said: list[str] = []
    records = [{**record(number), "data_source": "mine"} for number in range(8)]
    words = [*SMALL, "trainer.balance_batch=false"]
    result = api.train(records, reward_func=longer_is_better, overrides=words, output_dir="run 1", say=said.append)
    assert "no effect on the embedded engine: trainer.balance_batch=false (override)" in said
    assert result.summary["steps"] == 2
    assert result.checkpoint == in_folder / "run 1" / "checkpoints" / "final"
    assert set(seen) <= set(range(8))
    train, val = (load_rows(in_folder / "run 1" / "data" / f"{name}.parquet") for name in ("train", "val"))
    assert len(train) + len(val) == 8
    assert "records given from Python" in (in_folder / "run 1" / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_prompts_made_during_training_are_drawn_as_they_are_needed(in_folder: Path):
    """S1-28."""
    drawn: list[int] = []
    result = api.train(stream(drawn), overrides=SMALL, output_dir="run")
    assert result.summary["steps"] == 2
    assert 32 + 4 <= len(drawn) <= 32 + 6  # the first are kept for evaluation; two steps of two prompts
    lines = [json.loads(line) for line in Path("run/completions.jsonl").read_text(encoding="utf-8").splitlines()]
    asked = {line["prompt"] for line in lines if line["split"] == "train"}
    assert all("32 + 1" in prompt or "33 + 1" in prompt or "34 + 1" in prompt or "35 + 1" in prompt for prompt in asked)
