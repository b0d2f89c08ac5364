"""What a step says about its rewards, with the embedded engine's definitions (grpo/embedded/loop.py, evaluate.py), from
the lines of completions.jsonl and from what verl logged. Pure functions; no torch, which the launcher does not import.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.metrics.names import PART

Line = Mapping[str, Any]
NAN = math.nan


def numbers(logged: Mapping[str, Any]) -> dict[str, float]:
    """verl's values under verl's names. Its logger writes null for NaN, and what is no number is not for a curve."""
    values = {name: NAN if value is None else value for name, value in logged.items()}
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float))}


def of_training(lines: Sequence[Line], *, errors: int) -> dict[str, float]:
    """Of a step's responses; those whose reward failed (reward None) count in no mean but `reward/errors`."""
    stds = [_std(group) for group in groups(lines).values() if len(group) > 1]
    values = {
        "reward_mean": _mean([line["reward"] for line in lines if line["reward"] is not None]),
        "reward_std": _mean(stds),
        "zero_std_fraction": _mean([float(std == 0) for std in stds]),
        "reward/errors": float(errors),
    }
    for name in sorted({name for line in lines for name in line["parts"]}):
        values[PART + name] = _mean([line["parts"][name] for line in lines if name in line["parts"]])
    return values


def of_validation(lines: Sequence[Line]) -> dict[str, float]:
    """val_accuracy: share of responses whose reward is 1 or more; responses whose reward failed are left out."""
    rewards = [line["reward"] for line in lines if line["reward"] is not None]
    return {"val_accuracy": _mean([float(reward >= 1.0) for reward in rewards]), "val_reward_mean": _mean(rewards)}


def clip_fraction(truncated: Sequence[bool | None], logged: Mapping[str, float], limit: int) -> float | None:
    """Share of responses that reached the limit before they ended; None where nothing tells.

    verl's own response_length/clip_ratio is, in its V1 trainer, the share of responses as long as the batch's longest.
    That is ours when the longest reached the limit, and 0 of them did otherwise.
    """
    known = [float(value) for value in truncated if value is not None]
    if known and len(known) == len(truncated):
        return _mean(known)
    if "response_length/clip_ratio" not in logged or "response_length/max" not in logged:
        return None
    return logged["response_length/clip_ratio"] if logged["response_length/max"] >= limit else 0.0


def speed(logged: Mapping[str, float]) -> dict[str, float]:
    """seconds_per_step and tokens_per_second without the checkpoint, which verl counts in the step that saves one."""
    seconds = logged.get("timing_s/step")
    if not seconds:
        return {}
    training = seconds - logged.get("timing_s/save_checkpoint", 0.0)
    values = {"seconds_per_step": training}
    if "perf/throughput" in logged and training > 0:
        values["tokens_per_second"] = logged["perf/throughput"] * seconds / training
    return values


def groups(lines: Sequence[Line]) -> dict[int, list[float]]:
    """uid -> the rewards of that group's responses, without failed ones."""
    found: dict[int, list[float]] = {}
    for line in lines:
        if line["reward"] is not None:
            found.setdefault(line["uid"], []).append(line["reward"])
    return found


def _std(rewards: Sequence[float]) -> float:
    """Unbiased; exactly 0 for equal rewards."""
    return statistics.stdev(rewards) if min(rewards) != max(rewards) else 0.0


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else NAN
