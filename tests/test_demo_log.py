"""The published log of the shipped demo agrees with its recipe and with what README.md shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.demo_log import LOG, lines_of
from grpo.config import read_recipe
from grpo.metrics.names import TIMING_NAMES
from grpo.values import flatten
from tests.documents import text_of


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_published_log_of_the_demo_ends_where_the_readme_says(page: str) -> None:
    """S0-40"""
    steps = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]
    assert [step["step"] for step in steps] == list(
        range(dict(flatten(read_recipe("demo")))["trainer.total_training_steps"] + 1)
    )
    assert not any(TIMING_NAMES & step.keys() for step in steps)
    shown = re.search(
        r"^(?:accuracy .*?|.*准确率.*?) +(\d\.\d{3}) +(\d\.\d{3}) +(\d\.\d{3})$", text_of(page), re.MULTILINE
    )
    assert shown
    measured = [step["val_accuracy"] for step in steps if "val_accuracy" in step]
    assert [f"{measured[0]:.3f}", f"{measured[-1]:.3f}"] == [shown[2], shown[3]]


def test_a_log_holds_the_plain_names_and_no_timings(tmp_path: Path) -> None:
    line = {"step": 1, "reward_mean": 0.5, "seconds_per_step": 3.0, "critic/rewards/mean": 0.5, "kl_loss": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert lines_of(tmp_path) == [{"step": 1, "reward_mean": 0.5, "kl_loss": None}]
