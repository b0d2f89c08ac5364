"""What the earlier attempts at a run of verl left in its folder, for the attempt that goes on from a checkpoint.

Leaves out how a step is recorded (records.py) and which checkpoint it is (finishing/resume.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.metrics.history import read_history
from grpo.metrics.log import COMPLETIONS, METRICS, parse_line, read_lines
from grpo.verl_backend.recording.tails import Tail
from grpo.verl_backend.settings.reward_settings import CALLS

VERL_METRICS = "verl_metrics.jsonl"  # VERL_FILE_LOGGER_PATH
DUMPS = {"train": "rollouts", "val": "validation"}  # trainer.rollout_data_dir, trainer.validation_data_dir


def last_recorded(out: Path, resume_step: int) -> int:
    """The last step up to `resume_step` that has its line in metrics.jsonl; -1 where none has."""
    return max((row["step"] for row in read_lines(out / METRICS) if row["step"] <= resume_step), default=-1)


def calls(out: Path) -> Iterator[dict[str, Any]]:
    """The reward calls of the last attempt of which is known whose response they scored."""
    for path in sorted((out / CALLS).glob("*.jsonl")):
        yield from (call for call in Tail(path).rows() if call["step"] is not None and call["key"] is not None)


def evaluations(out: Path) -> dict[int, list[dict[str, Any]]]:
    """Step -> lines of completions.jsonl, of the evaluation before training and of the last one."""
    found: dict[int, list[dict[str, Any]]] = {}
    with open(out / COMPLETIONS, "rb") as file:
        for line in file:
            row = parse_line(line) if b'"split": "val"' in line else None
            if row is not None and row["split"] == "val":
                if row["step"] not in found:
                    found = {step: lines for step, lines in found.items() if step == 0}
                found.setdefault(row["step"], []).append(row)
    return found


def seconds(out: Path) -> float:
    """What the recorded steps took."""
    spent = read_history(out).get("seconds_per_step")
    return math.fsum(spent.values) if spent else 0.0


def remove_what_comes_again(out: Path, resume_step: int | None) -> None:
    """Remove the files that verl and its reward workers are going to write anew; None: from the start."""
    (out / VERL_METRICS).unlink(missing_ok=True)
    for path in (out / CALLS).glob("*.jsonl"):
        path.unlink()
    for name in DUMPS.values():
        for path in (out / name).glob("*.jsonl"):
            if path.stem.isdigit() and (resume_step is None or int(path.stem) > resume_step):
                path.unlink()
