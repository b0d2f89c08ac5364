"""The numbers of ./train.sh eval as a table for the terminal, and as JSON. Leaves out the page (eval_page.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.commands.eval_numbers import ALL, PART, Group
from grpo.metrics.intervals import LEVEL, Measured

TOKENS = ("length",)
UNITLESS = ("reward",)
SURE = "*"  # behind a difference whose interval excludes 0


def as_json(told: Mapping[str, Any], groups: Sequence[Group]) -> str:
    """Everything for machines: what was asked, and each group's numbers."""
    return json.dumps({**told, "groups": [group.as_dict() for group in groups]}, ensure_ascii=False, indent=1)


def as_text(told: Mapping[str, Any], groups: Sequence[Group]) -> str:
    """A table for each file, and for each data_source where it has several."""
    wide = max(len(name) for name in told["models"])
    lines = ["", *(f"{label:<{wide}}  {name}" for label, name in told["models"].items())]
    for group in groups:
        lines += ["", _title(group, told), *_table(group)]
    several = len(told["models"]) > 1
    lines += ["", f"[ ]: {LEVEL:.0%} intervals by bootstrap over the prompts, in seed {told['seed']}"]
    if several:
        lines[-1] += f"; {SURE} a difference whose interval excludes 0; differences are paired by prompt"
    return "\n".join(lines)


def _title(group: Group, told: Mapping[str, Any]) -> str:
    source = "" if group.data_source == ALL else f", {group.data_source}"
    how = f"temperature {told['temperature']:g}" if told["temperature"] else "the likeliest tokens"
    prompts = "1 prompt" if group.prompts == 1 else f"{group.prompts:,} prompts"
    responses = "1 response" if told["k"] == 1 else f"{told['k']} responses"
    return f"{group.data}{source}: {prompts} x {responses}, {how}"


def _table(group: Group) -> list[str]:
    first = next(iter(group.by_model))
    rows = [["", *group.by_model, *(f"{label} - {first}" for label in group.differences)]]
    for name in group.names:
        row = [name]
        row += [shown(name, numbers[name]) for numbers in group.by_model.values()]
        row += [shown(name, numbers[name], difference=True) for numbers in group.differences.values()]
        rows.append(row)
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in rows]


def shown(name: str, number: Measured, *, difference: bool = False) -> str:
    """`62.5 % [50.0, 75.0]`; a difference with its sign, and with a star where its interval excludes 0."""
    value = _one(name, number.value, difference)
    unit = " %" if is_share(name) else ""
    interval = ""
    if number.low is not None and number.high is not None:
        interval = f" [{_one(name, number.low, difference)}, {_one(name, number.high, difference)}]"
    return f"{value}{unit}{interval}{f' {SURE}' if difference and number.excludes_zero else ''}"


def is_share(name: str) -> bool:
    """Whether a number is a share, shown in percent."""
    return name not in (*TOKENS, *UNITLESS) and not name.startswith(PART)


def _one(name: str, value: float, difference: bool) -> str:
    sign = "+" if difference else ""
    if is_share(name) or name in TOKENS:
        tenths = round(100 * value if is_share(name) else value, 1)
        return f"{tenths + 0.0:{sign}.1f}"  # never -0.0
    return f"{value + 0.0:{sign}.4g}"
