"""What --dry_run prints: values with their origin, the batch arithmetic, what would run. Decides nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config import Settings
from grpo.engine import schedule
from grpo.rules import ACTOR, BATCH, MINI, N
from grpo.values import shown

LONGEST_VALUE = 60  # characters in the table; =full and =json show all


@dataclass(frozen=True)
class Arithmetic:
    """Batches in numbers. prompts, responses, optimizer_steps: of one step; left_out: prompts of an epoch.

    train: prompts to train on, None = not known before training; then steps_per_epoch and steps may be None.
    """

    prompts: int
    responses: int
    optimizer_steps: int
    responses_per_optimizer_step: int
    train: int | None
    steps_per_epoch: int | None
    steps: int | None
    left_out: int


def arithmetic(settings: Settings, train: int | None) -> Arithmetic:
    """The batch arithmetic of a run on `train` prompts."""
    batch, mini, n = settings[BATCH], settings[MINI], settings[N]
    per_epoch, steps, left_out = None, settings["trainer.total_training_steps"], 0
    if train is not None:
        per_epoch, steps = schedule(settings.config(), train)
        left_out = train % batch if settings["launcher.drop_last"] else 0
    return Arithmetic(
        prompts=batch,
        responses=batch * n,
        optimizer_steps=batch // mini * settings[f"{ACTOR}.ppo_epochs"],
        responses_per_optimizer_step=mini * n,
        train=train,
        steps_per_epoch=per_epoch,
        steps=steps,
        left_out=left_out,
    )


def arithmetic_lines(settings: Settings, numbers: Arithmetic) -> list[str]:
    """The arithmetic in words."""
    n, passes = settings[N], settings[f"{ACTOR}.ppo_epochs"]
    over = f", over {_count(passes, 'pass', 'passes')}" if passes > 1 else ""
    lines = [
        f"each step    {_count(numbers.prompts, 'prompt')} x {n} responses = {_count(numbers.responses, 'response')}",
        f"             {_count(numbers.optimizer_steps, 'optimizer step')} of {_count(settings[MINI], 'prompt')} "
        f"({_count(numbers.responses_per_optimizer_step, 'response')}) each{over}",
    ]
    if numbers.train is None or numbers.steps_per_epoch is None:
        known = f"{_count(numbers.steps, 'step')} at most" if numbers.steps else "known once the data is here"
        return [*lines, f"in all       {known}"]
    left = f"; {_count(numbers.left_out, 'prompt')} left over (launcher.drop_last)" if numbers.left_out else ""
    epoch = _count(numbers.steps_per_epoch, "step")
    lines.append(f"each epoch   {_count(numbers.train, 'prompt')} to train on = {epoch}{left}")
    assert numbers.steps is not None
    epochs = settings["trainer.total_epochs"]
    limited = numbers.steps < numbers.steps_per_epoch * epochs
    why = "by total_training_steps" if limited else f"in {_count(epochs, 'epoch')}"
    full = numbers.left_out or numbers.train % numbers.prompts == 0
    samples = f"{'' if full else 'at most '}{numbers.steps * numbers.responses:,} responses"
    return [*lines, f"in all       {_count(numbers.steps, 'step')} {why}: {samples}"]


def table(settings: Settings, keys: Sequence[str], *, cut: bool = True) -> list[str]:
    """`key  value  origin` lines, aligned."""
    values = [" ".join(shown(settings[key]).split()) for key in keys]
    if cut:
        values = [value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..." for value in values]
    wide = max(map(len, keys), default=0)
    wider = max(map(len, values), default=0)
    return [
        f"{key:<{wide}}  {value:<{wider}}  {settings.origins[key]}" for key, value in zip(keys, values, strict=True)
    ]


def render(
    settings: Settings,
    *,
    engine: str,
    numbers: Arithmetic,
    no_effect: Sequence[str],
    command: Sequence[str],
    full: bool = False,
) -> str:
    """The text of --dry_run (full: of --dry_run=full)."""
    keys = list(settings.values) if full else settings.changed()
    title = "Every value" if full else "Values that differ from the default"
    sections = [
        (title, table(settings, keys, cut=not full) or ["none"]),
        ("For verl alone", [f"{text}  {settings.origins[key]}" for key, text in settings.passthrough.items()]),
        ("Batches", arithmetic_lines(settings, numbers)),
        (f"No effect on the {engine} engine", table_of_unused(settings, no_effect)),
        ("Would run", list(command)),
    ]
    return "\n\n".join("\n".join([head, *(f"  {line}" for line in lines)]) for head, lines in sections if lines)


def table_of_unused(settings: Settings, keys: Sequence[str]) -> list[str]:
    """Keys that mean nothing to the engine, with the value they have."""
    return table(settings, [key for key in keys if key in settings.values]) + [
        f"{settings.passthrough[key]}  {settings.origins[key]}" for key in keys if key in settings.passthrough
    ]


def to_json(settings: Settings, *, engine: str, command: Sequence[str]) -> str:
    """The text of --dry_run=json: {"engine", "values": {key: {"value", "origin"}}, "command": words}."""
    values = {key: {"value": value, "origin": settings.origins[key]} for key, value in settings.values.items()}
    for key, text in settings.passthrough.items():
        values[key] = {"value": text, "origin": settings.origins[key]}
    plan = {"engine": engine, "values": values, "command": _words(command)}
    return json.dumps(plan, ensure_ascii=False, indent=2)


def _words(command: Sequence[str]) -> list[str]:
    """A shell command that goes over several lines, as its words; other lines as they are."""
    if not any(line.endswith("\\") for line in command):
        return list(command)
    return shlex.split(" ".join(line.removesuffix("\\") for line in command))


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
