"""What --dry_run prints: values with their origin, the batches (batches.py), what would run. Decides nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from grpo import overrides
from grpo.batches import Arithmetic, arithmetic_lines
from grpo.config import Settings
from grpo.values import shown

LONGEST_VALUE = 60  # characters in the table; =full and =json show all


def table(settings: Settings, keys: Sequence[str], *, cut: bool = True) -> list[str]:
    """`key  value  origin` lines, aligned."""
    return aligned([(key, settings[key], settings.origins[key]) for key in keys], cut=cut)


def aligned(rows: Sequence[tuple[str, Any, str]], *, cut: bool = True) -> list[str]:
    """(key, value, origin) as lines under each other."""
    values = [" ".join(shown(value).split()) for _, value, _ in rows]
    if cut:
        values = [value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..." for value in values]
    wide = max((len(key) for key, _, _ in rows), default=0)
    wider = max(map(len, values), default=0)
    return [f"{key:<{wide}}  {value:<{wider}}  {origin}" for (key, _, origin), value in zip(rows, values, strict=True)]


def render(
    settings: Settings,
    *,
    engine: str,
    numbers: Arithmetic,
    no_effect: Sequence[str],
    command: Sequence[str],
    decided: Sequence[tuple[str, Any, str]] = (),
    memory: Sequence[str] = (),
    full: bool = False,
) -> str:
    """The text of --dry_run (full: of --dry_run=full). decided: (key, value, origin) of what the engine sets itself.

    memory: the table of grpo/memory/planning.py.
    """
    changed = set(settings.changed())
    keys = [key for key in settings.values if full or key in changed or _typed(settings.origins[key])]
    title = "Every value" if full else "Values that you gave, or that differ from the default"
    theirs = {key: text for key, text in settings.passthrough.items() if key not in no_effect}
    sections = [
        (title, table(settings, keys, cut=not full) or ["none"]),
        ("For verl alone", [f"{text}  {settings.origins[key]}" for key, text in theirs.items()]),
        (f"Set for {engine} by the launcher", aligned(decided, cut=not full)),
        ("Batches", arithmetic_lines(settings, numbers)),
        ("Memory", list(memory)),
        (f"No effect on the {engine} engine", table_of_unused(settings, no_effect)),
        ("Would run", list(command)),
    ]
    return "\n\n".join("\n".join([head, *(f"  {line}" for line in lines)]) for head, lines in sections if lines)


def _typed(origin: str) -> bool:
    """Whether a value stood in the command or its environment; shown, even where it is the default."""
    return origin == overrides.ORIGIN or origin.startswith(("flag ", "env "))


def table_of_unused(settings: Settings, keys: Sequence[str]) -> list[str]:
    """Keys that mean nothing to the engine, with the value they have."""
    return table(settings, [key for key in keys if key in settings.values]) + [
        f"{settings.passthrough[key]}  {settings.origins[key]}" for key in keys if key in settings.passthrough
    ]


def unused_note(settings: Settings, engine: str, keys: Sequence[str]) -> list[str]:
    """The line with which a run begins where the user set what means nothing to its engine; none where not."""
    said = [settings.said(key) for key in keys if key in settings.values and settings.by_user(key)]
    said += [f"{settings.passthrough[key]} ({settings.origins[key]})" for key in keys if key in settings.passthrough]
    return [f"no effect on the {engine} engine: {', '.join(said)}"] if said else []


def to_json(
    settings: Settings, *, engine: str, command: Sequence[str], decided: Sequence[tuple[str, Any, str]] = ()
) -> str:
    """The text of --dry_run=json: {"engine", "values": {key: {"value", "origin"}}, "command": words}."""
    values = {key: {"value": value, "origin": settings.origins[key]} for key, value in settings.values.items()}
    values |= {key: {"value": value, "origin": origin} for key, value, origin in decided if key not in values}
    for key, text in settings.passthrough.items():
        values[key] = {"value": text, "origin": settings.origins[key]}
    plan = {"engine": engine, "values": values, "command": _words(command)}
    return json.dumps(plan, ensure_ascii=False, indent=2)


def _words(command: Sequence[str]) -> list[str]:
    """A shell command that goes over several lines, as its words; other lines as they are, comments left out."""
    command = [line for line in command if not line.startswith("# ")]
    if not any(line.endswith("\\") for line in command):
        return list(command)
    return shlex.split(" ".join(line.removesuffix("\\") for line in command))
