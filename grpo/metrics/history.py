"""metrics.jsonl as one series per metric. Leaves out judging (verdicts.py) and drawing (curves.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo.metrics.log import METRICS, read_lines
from grpo.metrics.names import with_both_names


@dataclass(frozen=True)
class Series:
    """One metric over the run: `values[i]` was measured at `steps[i]`. bad: steps whose value was NaN or infinite."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)


History = Mapping[str, Series]


def read_history(output_dir: Path) -> dict[str, Series]:
    """Every metric of a run folder by name, plain and verl's; {} when nothing was measured yet.

    A step that was written twice counts once, and its later values stand.
    """
    rows: dict[int, dict[str, object]] = {}
    for line in read_lines(output_dir / METRICS):
        step = line.pop("step", None)
        if isinstance(step, int):
            rows.setdefault(step, {}).update(line)
    history: dict[str, Series] = {}
    for step in sorted(rows):
        for name, value in with_both_names(rows[step]).items():
            series = history.setdefault(name, Series())
            if isinstance(value, (int, float)) and math.isfinite(value):
                series.steps.append(step)
                series.values.append(float(value))
            elif value is None:
                series.bad.append(step)
    return {name: series for name, series in history.items() if series.steps or series.bad}
