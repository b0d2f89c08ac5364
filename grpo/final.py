"""The table at the end of a run: what was learned, one prompt first and last, where things are, what to try next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.defaults import DEMO, STANDARD_MODEL
from grpo.engine import Result, Run

if TYPE_CHECKING:
    from rich.console import Console

STAGES = {"start": "before", "sft": "after SFT", "final": "after GRPO"}
EXAMPLE_ROWS = (("prompt", "prompt"), ("ground_truth", "expected"), ("first", "first"), ("last", "last"))
LONGEST_TEXT = 200  # characters of a prompt or response


def show(result: Result, run: Run, to: Console | None = None) -> None:
    """Print the table. to: None = standard output."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = to or Console(highlight=False, soft_wrap=True)
    summary = result.summary
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    stages = [name for name in STAGES if name in summary.get("accuracy", {})]
    table.add_column("")
    for name in stages:
        table.add_column(STAGES[name], justify="right")
    for measure, title in (("accuracy", "accuracy (held-out prompts)"), ("reward_mean", "reward mean")):
        table.add_row(title, *(_number(summary.get(measure, {}).get(name)) for name in stages))
    console.print()
    console.print(table)
    for line in [*no_signal(summary), *example_lines(summary), "", *places(result), "", next_command(run)]:
        console.print(Text(line))


def no_signal(summary: Mapping[str, Any]) -> list[str]:
    """A line when no evaluated response was ever rewarded, or could be."""
    rewards = summary.get("reward_mean", {}).values()
    if not rewards or any(rewards):
        return []
    if set(rewards) == {None}:
        said = "every reward call of the evaluations failed, and nothing is learned from those: mend the reward"
        return ["", f"warning   {said}; ./train.sh check --data FILE --reward_func FILE shows where it fails"]
    said = (
        "no evaluated response earned anything: see 'When something is wrong' in README.md, or try again with --debug"
    )
    return ["", f"warning   {said}"]


def example_lines(summary: Mapping[str, Any]) -> list[str]:
    """One prompt with the model's answer first and last; empty when the run kept none."""
    example = summary.get("example")
    if not example:
        return []
    return ["", *(f"{word:<10}{_short(example[key])}" for key, word in EXAMPLE_ROWS if example.get(key) is not None)]


def places(result: Result) -> list[str]:
    """Where the results are, from the folder one stands in."""
    model = Path(result.checkpoint)
    saved = model.parent / f"global_step_{result.summary.get('steps')}"
    best = model.parent / "best" if result.summary.get("best") else None
    rows = [("model", model), ("best", best), ("state", saved if saved.is_dir() else None), ("report", result.report)]
    return [f"{name:<10}{near(path)}" for name, path in rows if path is not None]


def next_command(run: Run) -> str:
    """The command to try next."""
    if run.recipe and run.recipe.split(" + ")[0] == DEMO:
        return f"next      ./train.sh --data prompts.json --model {STANDARD_MODEL}"
    if run.config.launcher.debug:
        return "next      the same command without --debug"
    folder, n, seed = near(run.output_dir), run.config.actor_rollout_ref.rollout.n, run.config.launcher.seed
    # More responses per prompt first (S2-21); then another seed, to see how much of the result was luck.
    change, end = ("--rollout_n 8", "n8") if n < 8 else (f"--seed {seed + 1}", f"seed{seed + 1}")
    config, output = shlex.quote(f"{folder}/config.yaml"), shlex.quote(f"{folder}_{end}")
    return f"next      ./train.sh --config {config} {change} --output_dir {output}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _short(text: object) -> str:
    line = " ".join(str(text).split()) or "(empty)"
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 3] + "..."


def near(path: Path) -> str:
    """A path relative to the current folder where it lies inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
