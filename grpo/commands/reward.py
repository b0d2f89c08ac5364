"""`./train.sh reward new FILE`: write a working reward, with comments, to start from. Overwrites nothing."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import NoReturn

from grpo.flags import REPO
from reward_funcs import RewardError

TEMPLATE = REPO / "reward_funcs" / "template.py.txt"


def main(argv: list[str]) -> int:
    """Run the command. Raises RewardError for wrong arguments and for a file that is there already."""
    parser = argparse.ArgumentParser(
        prog="./train.sh reward", description="Start a reward of your own.", allow_abbrev=False
    )
    parser.error = _refuse
    actions = parser.add_subparsers(dest="action", required=True, metavar="new")
    new = actions.add_parser("new", help="write a working reward, with comments", allow_abbrev=False)
    new.error = _refuse
    new.add_argument("file", metavar="FILE.py", type=Path)
    file = parser.parse_args(argv).file
    if file.suffix != ".py":
        raise RewardError(f"{file}: a reward is a Python file; name it {file.stem or 'my_reward'}.py")
    text = TEMPLATE.read_text(encoding="utf-8").replace("FILE", str(file))
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise RewardError(f"{file} is there already; name another file") from None
    except OSError as error:
        raise RewardError(f"{file} cannot be written: {os.strerror(error.errno or 0)}") from None
    quoted = shlex.quote(str(file))
    print(f"{file} is written. Try it:         python {quoted}")
    print(f"Then train with it: ./train.sh --data prompts.json --reward_func {quoted}")
    return 0


def _refuse(message: str) -> NoReturn:
    raise RewardError(f"./train.sh reward: {message}; write: ./train.sh reward new my_reward.py")
