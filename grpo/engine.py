"""The seam between the launcher and what trains: a `Run` goes in, a `Result` comes out.

An engine reads nothing but its `Run`: no flag, no environment variable. It honours a setting or refuses it by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig


class EngineError(Exception):
    """Training cannot start or go on; the text is one line for the user: what, where, what to do."""


class Interrupted(KeyboardInterrupt):
    """The user (SIGINT) or the system (SIGTERM) stopped a run; the text says what was saved."""


@dataclass(frozen=True)
class Run:
    """One training run, fully decided.

    config:     configs/grpo.yaml's keys, resolved and read-only
    origins:    dotted key -> where its value came from ("default", "flag --lr", "launcher", ...)
    output_dir: absolute; `data/`, `checkpoints/` and `metrics.jsonl` live in it
    train, val: parquet files in verl's schema
    command:    what the user typed, for the report and for "how to go on"
    records:    prompts made during training (from Python only), as data_prep.convert.load_rows gives those of a file;
                then `train` is None
    reward:     a reward given as a callable (from Python only)
    algorithm:  what it is called ("grpo", "gspo", "drgrpo"), for the summary and the report; None = the estimator
    recipe:     name of the recipe(s) in use, for summary.json ("demo", "demo + drgrpo"); None without one
    resume:     go on from the newest good checkpoint in output_dir (from the start where there is none)
    passthrough: dotted key -> the Hydra override, verbatim ("++a.b=1", "~a.b"), for keys that only verl knows
    """

    config: DictConfig
    origins: Mapping[str, str]
    output_dir: Path
    train: Path | None
    val: Path
    command: str = "./train.sh"
    records: Iterable[Mapping[str, Any]] | None = None
    reward: Callable[..., Any] | None = None
    algorithm: str | None = None
    recipe: str | None = None
    resume: bool = False
    passthrough: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """What an engine cannot honour. text: one line; fix: key -> the nearest value that works, None = leave the key out.

    fix is empty where no value would do.
    """

    text: str
    fix: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What training left behind. summary: the contents of summary.json."""

    summary: Mapping[str, Any]
    checkpoint: Path
    report: Path | None


class Engine(Protocol):
    """What both engines offer."""

    name: str

    def refusals(self, run: Run, *, here: bool = True) -> list[Refusal]:
        """Settings this engine cannot honour, one line each with what to do instead.

        here: it is to train on this machine, which is looked at too; False = it is only planned.
        """
        ...

    def no_effect(self, run: Run) -> list[str]:
        """Changed keys that mean nothing here (GPU placement in one process): said, not refused."""
        ...

    def plan(self, run: Run) -> list[str]:
        """The exact command or call that `train` would make, for --dry_run."""
        ...

    def decided(self, run: Run) -> list[tuple[str, Any, str]]:
        """(key, value, origin) of what the engine is told beside the configuration, for --dry_run."""
        ...

    def scripts(self, run: Run) -> dict[str, str]:
        """Scripts that --dry_run leaves in the output folder: file name -> text."""
        ...

    def prepare(self, run: Run, say: Callable[[str], None]) -> None:
        """Have everything there that `train` needs; may install packages. say: takes one line. Raises EngineError."""
        ...

    def train(self, run: Run) -> Result:
        """Train; raises EngineError."""
        ...


def reward_arguments(config: DictConfig) -> dict[str, Any]:
    """What reward_funcs.build_reward is given, the same in every process: paths from the root, plain values."""
    custom, named = config.reward.custom_reward_function, config.launcher.reward
    return {
        "names": [_from_the_root(name) for name in named.names],
        "weights": [float(weight) for weight in named.weights],
        "plugins": [os.path.abspath(os.path.expanduser(file)) for file in named.plugins],
        "file": None if custom.path is None else _from_the_root(custom.path),
        "name": custom.name,
        "max_response_length": int(config.data.max_response_length),
        "unsafe_code_exec": bool(config.launcher.unsafe_code_exec),
    }


def _from_the_root(name: str) -> str:
    """`./my.py:name` with the whole path; the name of a reward as it is."""
    file, end, rest = name.partition(".py")
    return os.path.abspath(os.path.expanduser(file + end)) + rest if end else name


def schedule(config: DictConfig, prompts: int) -> tuple[int, int]:
    """(steps per epoch, steps in all) for so many training prompts; one step = one rollout batch and its updates.

    As in verl, `trainer.total_training_steps` ends a run early but never prolongs it beyond `total_epochs`.
    """
    batch = int(config.data.train_batch_size)
    per_epoch = prompts // batch if config.launcher.drop_last else -(-prompts // batch)
    in_all = per_epoch * int(config.trainer.total_epochs)
    limit = config.trainer.total_training_steps
    return per_epoch, in_all if limit is None else min(in_all, int(limit))
