"""How sure a number is: bootstrap intervals over prompts, of one model's number and of two models' difference.

Pure numbers. Every number here is a ratio of sums over prompts: right responses over responses, tokens over responses.
Legend: P prompts, M numbers, R resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95
_CELLS = 4_000_000  # of the matrix of counts that is in memory at a time

Array = NDArray[np.float64]
Sums = Mapping[str, Sequence[tuple[float, float]]]  # number -> (what is summed, over how many) of each prompt


@dataclass(frozen=True)
class Measured:
    """A number and the interval around it; low and high are None where prompts are too few to tell (less than 2)."""

    value: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference of 0 is outside of the interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def measured(models: Sequence[Sums], *, seed: int, resamples: int = RESAMPLES) -> list[dict[str, Measured]]:
    """Each model's numbers with their intervals, in order, then for every later model its difference to the first.

    models: the same prompts in the same order for each; a number is left out where nothing was counted. The interval
    holds the middle 95 % of the numbers of `resamples` draws of P prompts with replacement (the percentile bootstrap,
    Efron and Tibshirani 1993, chapter 13). All models see the same draws, so a difference is paired by prompt.
    """
    names = [name for name in dict.fromkeys(name for sums in models for name in sums) if _counted(models, name)]
    tables = [_table(sums, names) for sums in models]
    drawn = _drawn(tables, seed, resamples)
    plain = [top.sum(0) / under.sum(0) for top, under in tables]
    prompts = len(tables[0][0])
    found = [_with_intervals(names, value, draws, prompts) for value, draws in zip(plain, drawn, strict=True)]
    for value, draws in zip(plain[1:], drawn[1:], strict=True):
        found.append(_with_intervals(names, value - plain[0], draws - drawn[0], prompts))
    return found


def _counted(models: Sequence[Sums], name: str) -> bool:
    return all(any(under for _, under in sums.get(name, ())) for sums in models)


def _table(sums: Sums, names: Sequence[str]) -> tuple[Array, Array]:
    """[P, M] what is summed, and over how many."""
    columns = [np.asarray(sums[name], dtype=np.float64) for name in names]  # [P, 2] each
    return np.stack([column[:, 0] for column in columns], 1), np.stack([column[:, 1] for column in columns], 1)


def _drawn(tables: Sequence[tuple[Array, Array]], seed: int, resamples: int) -> list[Array]:
    """For each model its numbers in every resample, [R, M]; NaN where a draw holds nothing that counts."""
    prompts = len(tables[0][0])
    generator = np.random.default_rng(seed)
    parts: list[list[Array]] = [[] for _ in tables]
    step = max(1, _CELLS // prompts)
    for first in range(0, resamples, step):
        rows = min(step, resamples - first)
        chosen = generator.integers(prompts, size=(rows, prompts)) + np.arange(rows)[:, None] * prompts
        counts = np.bincount(chosen.ravel(), minlength=rows * prompts).reshape(rows, prompts).astype(np.float64)
        for part, (top, under) in zip(parts, tables, strict=True):
            with np.errstate(invalid="ignore", divide="ignore"):
                part.append((counts @ top) / (counts @ under))
    return [np.concatenate(part) for part in parts]


def _with_intervals(names: Sequence[str], values: Array, draws: Array, prompts: int) -> dict[str, Measured]:
    found = {}
    for number, name in enumerate(names):
        low = high = None
        if prompts > 1:
            mine = draws[:, number]
            edges = np.quantile(mine[np.isfinite(mine)], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            low, high = float(edges[0]), float(edges[1])
        found[name] = Measured(float(values[number]), low, high)
    return found
