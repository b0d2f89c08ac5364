"""What the run has reached: accuracy and reward at its milestones, and one prompt answered first and last."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

EXAMPLES = 64  # evaluation responses remembered from each end of the run


@dataclass
class Outcome:
    """Plain values, which a checkpoint can hold. accuracy, reward_mean: milestone (start, sft, final) -> value, None
    where every reward call failed.

    best: metric, step and value of the best evaluation, where its weights are kept.
    """

    accuracy: dict[str, float | None] = field(default_factory=dict)
    reward_mean: dict[str, float | None] = field(default_factory=dict)
    first: list[dict[str, Any]] = field(default_factory=list)
    last: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)

    def note(self, milestone: str, values: Mapping[str, float], lines: Sequence[Mapping[str, Any]]) -> None:
        """Record an evaluation. What GRPO starts from (`start`, or `sft` after a warm-up) is `first`."""
        for known, name in ((self.accuracy, "val_accuracy"), (self.reward_mean, "val_reward_mean")):
            known[milestone] = None if math.isnan(values[name]) else values[name]
        kept = [{key: line[key] for key in ("prompt", "ground_truth", "response", "reward")} for line in lines]
        if milestone == "final":
            self.last = kept[:EXAMPLES]
        else:
            self.first = kept[:EXAMPLES]

    def example(self) -> dict[str, Any] | None:
        """The prompt whose reward changed most for the better, with its first and its last response."""
        pairs = [(a, b) for a, b in zip(self.first, self.last, strict=False) if a["prompt"] == b["prompt"]]
        if not pairs:
            return None
        first, last = max(pairs, key=lambda pair: (pair[1]["reward"] or 0.0) - (pair[0]["reward"] or 0.0))
        keys = {"prompt": first["prompt"].strip(), "ground_truth": first["ground_truth"]}
        return keys | {"first": first["response"], "last": last["response"]}

    def as_dict(self) -> dict[str, Any]:
        """For a checkpoint; `Outcome(**...)` reads it back."""
        return asdict(self)


def peak_rss_mb() -> float:
    """The largest resident memory of this process so far, in MB (10^6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
