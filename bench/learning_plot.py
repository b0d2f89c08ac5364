"""The drawing of bench/learning.py: left, each algorithm from its start to its end; right, GRPO's curves by engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from learning_result import Runs

COLOURS = ("#1f5fa8", "#c2571a", "#3a7d44")


def draw(path: Path, rows: Sequence[Mapping[str, Any]], curves: Mapping[str, Runs], budget: int) -> None:
    """Write the SVG. rows: learning_result.outcomes of the algorithms; curves: the runs of each engine."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "grpo", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(9, 0.9 + 0.26 * max(len(rows), 8)), layout="constrained")
        FigureCanvasSVG(figure)
        left, right = figure.subplots(1, 2)
        _from_to(left, rows)
        for colour, (engine, runs) in zip(COLOURS, curves.items(), strict=False):
            _curve(right, engine, runs, colour, budget)
        right.set(title="GRPO, by engine", xlabel="responses sampled", ylim=(0, 1), xlim=(0, None))
        if curves:
            right.legend(frameon=False, loc="lower right")
        for axes in (left, right):
            axes.grid(color="#dddddd", linewidth=0.5)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata=dict.fromkeys(("Date", "Creator")))
    text = path.read_text(encoding="utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")


def _from_to(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each row, from the accuracy before to that after, whose 95 % interval is the bar."""
    for place, row in enumerate(reversed(rows)):
        (before, _, _), (after, low, high) = row["before"], row["after"]
        axes.plot([before, after], [place, place], color="#aaaaaa", linewidth=1)
        axes.plot(before, place, "o", markersize=3.5, markerfacecolor="white", markeredgecolor="#666666")
        axes.errorbar(after, place, xerr=[[after - low], [high - after]], fmt="o", markersize=4, capsize=2,
                      color=COLOURS[0])  # fmt: skip
    axes.set_yticks(range(len(rows)), [row["side"] for row in reversed(rows)])
    axes.set(title="held-out accuracy, start and end", xlim=(0, 1))


def _curve(axes: Any, name: str, runs: Runs, colour: str, budget: int) -> None:
    """The mean over the runs, and each run thinly behind it; they were evaluated at the same steps."""
    lines = []
    for run in runs:
        points = [point for point in run["points"] if point["responses"] <= budget]
        responses = [point["responses"] for point in points]
        lines.append([point["correct"].count("1") / len(point["correct"]) for point in points])
        axes.plot(responses, lines[-1], color=colour, linewidth=0.6, alpha=0.45)
    axes.plot(responses, np.mean(lines, axis=0), color=colour, linewidth=1.8, label=f"{name}, {len(runs)} seeds")
