"""Sub-commands that take the words of a training command: their own flags are taken out, the rest is resolved as usual.

So `./train.sh check` in front of a training command, with its recipe, environment and overrides, checks that run.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo import flags, launch
from grpo.config import ConfigError, Settings
from grpo.defaults import VAL
from grpo.engine import reward_arguments
from grpo.launch import Data
from grpo.resolve import resolve
from reward_funcs import Combined, Reward, build_reward


@dataclass(frozen=True)
class Asked:
    """own: the sub-command's flags. words: the others, as a line that can be typed again."""

    own: argparse.Namespace
    settings: Settings
    notes: list[str]
    words: str

    def reward(self) -> Reward | Combined:
        """The reward of the run; raises RewardError."""
        return build_reward(**reward_arguments(self.settings.config()))

    def read_data(self) -> Data:
        """The data of the run; raises DataError."""
        data = launch.read_data(self.settings)
        launch.check_rewards(self.settings, data)
        return data


def read(
    name: str,
    argv: list[str],
    about: str,
    add: Callable[[argparse.ArgumentParser], Any],
    *,
    also: Callable[[argparse.Namespace], list[str]] = lambda own: [],
) -> Asked:
    """The command line of the sub-command `name`; add: gives the parser its own flags. Raises ConfigError.

    also: words of a training command that follow from the sub-command's own flags.
    """
    parser = argparse.ArgumentParser(
        prog=f"./train.sh {name}",
        description=about,
        epilog="All other words are those of a training command: --data, --val_data, --recipe, --model, key=value ...; "
        "./train.sh --help lists them.",
        allow_abbrev=False,
    )

    def refuse(message: str) -> None:
        raise ConfigError(f"./train.sh {name}: {message}; see ./train.sh {name} --help")

    parser.error = refuse  # type: ignore[method-assign]
    add(parser)
    own, rest = parser.parse_known_args(argv)
    resolved = resolve(flags.parse([*rest, *also(own)]), os.environ)
    return Asked(own, resolved.settings(), resolved.notes, shlex.join(["./train.sh", name, *rest]))


def has_val_file(settings: Settings) -> bool:
    """Whether evaluation prompts come from a file of their own."""
    return settings[VAL] is not None
