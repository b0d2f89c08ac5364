"""`./train.sh convert-config FILE`: a run file of verl, TRL, ms-swift, OpenRLHF or PaddleNLP as a command of ours.

Prints a script, with a comment for each option that has no counterpart; --write makes a file for --config of it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from grpo.config import ConfigError
from grpo.convert import printing
from grpo.convert.conversion import convert_file
from grpo.convert.reading import read
from grpo.convert.tables import TOOLS
from grpo.help import language

_NAME = "./train.sh convert-config"


def main(argv: list[str]) -> int:
    """Run the command. Raises ConfigError for a file that cannot be read or is of no tool that we know."""
    given = _arguments(argv)
    done = convert_file(read(given.file, given.source), gpus=given.gpus, counts=given.counts)
    if given.write is None:
        print(printing.command(done, given.lang), end="")
        return 0
    try:
        with given.write.open("x", encoding="utf-8") as file:
            file.write(printing.yaml_text(done, given.lang))
    except FileExistsError:
        raise ConfigError(f"{given.write} is there already; name another file") from None
    except OSError as problem:
        raise ConfigError(f"{given.write} cannot be written: {problem.strerror}") from None
    for line in printing.comments(done, given.lang):
        print(line)
    print(printing.WORDS[given.lang]["use"].format(file=given.write))
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_NAME,
        description="Turn a run file of another tool into our command. Nothing of it is run.",
        allow_abbrev=False,
    )
    parser.error = _refuse
    parser.add_argument("file", metavar="FILE", type=Path, help="a script, a YAML file, or Python with GRPOConfig(...)")
    parser.add_argument("--from", dest="source", choices=TOOLS, help="whose file it is [recognised]")
    parser.add_argument("--gpus", type=_count, metavar="N", help="how many GPUs train in all [as the file says]")
    parser.add_argument(
        "--counts",
        choices=("completions", "prompts"),
        default="completions",
        help="what per_device_train_batch_size counts: prompts in TRL up to 0.14 [completions]",
    )
    parser.add_argument("--write", type=Path, metavar="FILE.yaml", help="write a file for --config instead")
    parser.add_argument("--lang", choices=("en", "zh"), default=language(os.environ), help="language of the comments")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("is a whole number of at least 1")
    return int(text)


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{_NAME}: {message}; see {_NAME} --help")
