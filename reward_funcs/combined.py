"""Several rewards as one: the score is their weighted sum, and every one's own value is a part with its own curve.

A reward that does not apply to a response (None in a list) is left out of its sum. One that fails, fails the response.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reward_funcs.errors import Failed, NotScored, RewardError
from reward_funcs.returns import ERRORS, Attempt, Score
from reward_funcs.score import Reward, Sample, last_line, shown_traceback


class Combined:
    """Rewards with weights. rewards: (the part's name, its reward). weights: None = 1 each.

    Raises RewardError when there is not one weight for each reward.
    """

    file: Path | None = None
    recipe = None

    def __init__(self, rewards: Sequence[tuple[str, Reward]], weights: Sequence[float] | None = None) -> None:
        if weights is None or not weights:
            weights = [1.0] * len(rewards)
        if len(weights) != len(rewards):
            raise RewardError(
                f"--reward_weights has {len(weights)} ({_listed(weights)}) for {len(rewards)} rewards "
                f"({', '.join(name for name, _ in rewards)}); give one for each, in the same order"
            )
        self.names = _distinct([name for name, _ in rewards])
        self.singles: tuple[Reward, ...] = tuple(reward for _, reward in rewards)
        self.weights = tuple(map(float, weights))
        self.name = ",".join(self.names)
        self.notes = tuple(note for reward in self.singles for note in reward.notes)

    @property
    def place(self) -> str:
        """As error messages show it."""
        return f"rewards {self.name}"

    @property
    def sha256(self) -> str:
        """One hash over the rewards, their parameters and their weights."""
        digest = hashlib.sha256()
        for name, weight, reward in zip(self.names, self.weights, self.singles, strict=True):
            values = {} if reward.recipe is None else {k: v for k, v in reward.recipe.values.items() if k != "source"}
            digest.update(repr((name, weight, reward.sha256, sorted(values.items()))).encode())
        return digest.hexdigest()

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> Score:
        """Score one response; what a call ended in is raised."""
        attempt = self.attempts([Sample(data_source, solution_str, ground_truth, extra_info)])[0]
        if isinstance(attempt, BaseException):
            raise attempt
        return attempt

    def attempts(self, samples: Sequence[Sample]) -> list[Attempt]:
        """The weighted sum for each sample, or what its call ended in."""
        return self.combined([reward.attempts(samples) for reward in self.singles])

    def combined(self, attempts: Sequence[list[Attempt]]) -> list[Attempt]:
        """One attempt for each response from those of `singles`."""
        return [self._sum(one) for one in zip(*attempts, strict=True)]

    def _sum(self, attempts: Sequence[Attempt]) -> Attempt:
        total, parts = 0.0, {}
        for name, weight, reward, attempt in zip(self.names, self.weights, self.singles, attempts, strict=True):
            if isinstance(attempt, NotScored):
                continue
            if isinstance(attempt, BaseException):
                failed = Failed(f"{name}: {last_line(attempt, reward)}", shown_traceback(attempt))
                failed.__cause__ = attempt
                return failed
            total += weight * attempt.score
            parts[name] = attempt.score
            parts |= {f"{name}/{part}": value for part, value in attempt.parts.items()}
        if not parts:
            return NotScored(f"none of {self.name} applies to this response: each gave None")
        return Score(total, parts)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names of the parts; one that comes again, or that is taken, is numbered: cosine, cosine_2."""
    found = [ERRORS]
    for name in names:
        again = sum(other == name or other.rpartition("_")[0] == name for other in found)
        found.append(f"{name}_{again + 1}" if name in found else name)
    return tuple(found[1:])


def _listed(weights: Sequence[float]) -> str:
    return ", ".join(f"{weight:g}" for weight in weights)
