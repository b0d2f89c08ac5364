"""What bench/learning.py says of its runs: accuracies with bootstrap intervals, who beat the start, who agrees.

Pure functions. Leaves out running (learning_runs.py) and drawing (learning_plot.py). Shapes: S runs, P prompts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DRAWS = 2_000
# What 97.5 % of Student's t stay under, for 1, 2, ... degrees of freedom.
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
CLEARLY = 0.1  # the whole interval of the gain lies above this
Runs = Sequence[Mapping[str, Any]]  # of one side: {"seed", "points": [{"step", "responses", "correct": "0110..."}]}


def matrix(answers: Sequence[str]) -> np.ndarray:
    """[S, P] of 0 and 1, from one text of 0 and 1 for each run; the prompts stand in the same order in all."""
    return np.array([[int(mark) for mark in text] for text in answers], dtype=float)


def interval(values: np.ndarray, *, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): 95 % percentile bootstrap of the mean of [S, P], drawing runs and prompts anew each time.

    All runs answer the same prompts, so both are drawn crosswise. One run alone: the prompts' part of the doubt.
    """
    return _summary(values.mean(), _draws(values, np.random.default_rng(seed)))


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high): 95 % t-interval of mean(first) - mean(second), one value for each run (Welch 1947).

    For few runs that answer the same prompts: between three seeds, a bootstrap would see hardly any doubt. Runs whose
    values are all equal leave none at all; one run on a side leaves everything open.
    """
    mean = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2:
        return mean, -math.inf, math.inf
    shares = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    error = math.sqrt(sum(shares))
    if error == 0:
        return mean, mean, mean
    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(values) - 1) for share, values in zip(shares, (first, second), strict=True)
    )
    half = T975[min(int(freedom + 1e-9), len(T975)) - 1] * error
    return mean, mean - half, mean + half


def _draws(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[DRAWS] means of `values` [S, P]."""
    runs, prompts = (_counts(size, rng) for size in values.shape)
    return ((runs @ values) * prompts).sum(1) / values.size


def _counts(size: int, rng: np.random.Generator) -> np.ndarray:
    """[DRAWS, size]: how often each of `size` things is drawn, in `size` draws."""
    return rng.multinomial(size, np.full(size, 1 / size), size=DRAWS).astype(float)


def _summary(mean: float, drawn: np.ndarray) -> tuple[float, float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(mean), float(low), float(high)


def last_within(points: Sequence[Mapping[str, Any]], budget: int) -> Mapping[str, Any]:
    """The last evaluation for which no more than `budget` responses had been sampled."""
    return [point for point in points if point["responses"] <= budget][-1]


def outcomes(sides: Mapping[str, Runs], budget: int) -> list[dict[str, Any]]:
    """For each side: accuracy before and after, the gain, and whether it clearly beat its start."""
    rows = []
    for side, runs in sides.items():
        last = [last_within(run["points"], budget) for run in runs]
        before = matrix([run["points"][0]["correct"] for run in runs])
        after = matrix([point["correct"] for point in last])
        gain = interval(after - before)
        rows.append(
            {
                "side": side,
                "seeds": [run["seed"] for run in runs],
                "responses": max(point["responses"] for point in last),
                "before": interval(before),
                "after": interval(after),
                "each": [round(float(row.mean()), 4) for row in after],
                "gain": gain,
                "learns": gain[1] > CLEARLY,
            }
        )
    return rows


def agreements(sides: Mapping[str, Runs], budget: int) -> list[dict[str, Any]]:
    """For each pair of sides and each measure: their difference, and whether 0 is inside its interval.

    Measures: the accuracy at the end, and its mean over all looks after the start, which sees how fast they got there.
    """
    measures: dict[str, dict[str, list[float]]] = {"end": {}, "curve": {}}
    for side, runs in sides.items():
        looks = [[point for point in run["points"][1:] if point["responses"] <= budget] for run in runs]
        each = [[point["correct"].count("1") / len(point["correct"]) for point in points] for points in looks]
        measures["end"][side] = [accuracies[-1] for accuracies in each]
        measures["curve"][side] = [float(np.mean(accuracies)) for accuracies in each]
    found = []
    for measure, values in measures.items():
        for first, second in itertools.combinations(values, 2):
            apart = difference(values[first], values[second])
            agree = apart[1] <= 0 <= apart[2]
            found.append({"measure": measure, "pair": [first, second], "difference": apart, "agree": agree})
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, a line for each side."""
    lines = ["| | seeds | before | after | gain | each seed | |", "| --- | ---: | ---: | ---: | ---: | --- | --- |"]
    for row in rows:
        each = ", ".join(f"{value:.3f}" for value in row["each"])
        said = "learns" if row["learns"] else "DOES NOT CLEARLY LEARN"
        cells = (_shown(row["before"]), _shown(row["after"]), _shown(row["gain"], sign=True))
        lines.append(f"| {row['side']} | {len(row['seeds'])} | {' | '.join(cells)} | {each} | {said} |")
    return "\n".join(lines)


def pairs_text(pairs: Sequence[Mapping[str, Any]]) -> str:
    """A sentence for each pair of engines."""
    return "\n".join(
        f"- {pair['measure']}: {first} less {second} {_shown(pair['difference'], sign=True)}, "
        + ("within noise" if pair["agree"] else "NOT within noise")
        for pair in pairs
        for first, second in [pair["pair"]]
    )


def _shown(values: Sequence[float], *, sign: bool = False) -> str:
    mean, low, high = values
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" if sign else f"{mean:.3f} ({low:.3f} to {high:.3f})"
