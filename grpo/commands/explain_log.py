"""`./train.sh explain-log FILE`: the end of a verl log, and the failures that it shows with their causes and fixes.

FILE may be the folder of a run, which holds its log as verl.log.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from grpo.engine import EngineError
from grpo.help import language
from grpo.verl_backend.failures import UNKNOWN, explain, render
from grpo.verl_backend.running.child_log import clean

LOG = "verl.log"
LAST = 20  # lines shown of the log
LONGEST = 2**16  # characters that are held of a line without an end
WORDS = {
    "en": {
        "end": "{path}, last lines:",
        "nothing": "No failure was found in {path}.",
        "strange": "None of the failures that we know is in {path}.",
    },
    "zh": {
        "end": "{path} 的最后几行：",
        "nothing": "{path} 中没有发现故障。",
        "strange": "{path} 中没有我们已知的故障。",
    },
}


def main(argv: list[str]) -> int:
    """Run the command: 0 when a known failure was explained, 1 when none is in the log. Raises EngineError."""
    given = _arguments(argv)
    path = _log_of(given.log)
    last: deque[str] = deque(maxlen=LAST)
    explanations = explain(_lines(path, last), lang=given.lang)
    words = {name: text.format(path=path) for name, text in WORDS[given.lang].items()}
    print(words["end"], *(f"  {line}" for line in last), "", sep="\n")
    known = any(one.name != UNKNOWN for one in explanations)
    if not known:
        print(words["strange" if explanations else "nothing"])
    for line in render(explanations, given.lang):
        print(line)
    return 0 if known else 1


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./train.sh explain-log",
        description="Explain the failures in the log of a verl run: cause, fix and what to change.",
        epilog="Exit code: 0 a known failure was explained, 1 none was found, 2 FILE cannot be read.",
        allow_abbrev=False,
    )
    parser.error = _refuse
    parser.add_argument("log", metavar="FILE", type=Path, help=f"a log, or the folder of a run, which holds {LOG}")
    lang = language(os.environ)
    parser.add_argument("--lang", choices=sorted(WORDS), default=lang, help=f"language of the explanation [{lang}]")
    return parser.parse_args(argv)


def _log_of(given: Path) -> Path:
    path = given / LOG if given.is_dir() else given
    if not path.exists():
        hint = f"no {LOG} in this folder; name the --output_dir of a verl run" if given.is_dir() else "no such file"
        raise EngineError(f"{given}: {hint}")
    return path


def _lines(path: Path, last: deque[str]) -> Iterator[str]:
    """The lines of the log, one at a time, the newest kept in `last`."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if not (line := file.readline(LONGEST)):
                raise EngineError(f"{path}: is empty, so the run ended before verl said anything; start it again")
            if "\0" in line:
                raise EngineError(f"{path}: is no text; name the log of a run, {LOG} in its folder")
            while line:
                if shown := clean(line):
                    last.append(shown)
                yield line
                line = file.readline(LONGEST)
    except OSError as problem:
        raise EngineError(f"{path}: {problem.strerror}; name a log that you may read") from None


def _refuse(message: str) -> NoReturn:
    raise EngineError(f"./train.sh explain-log: {message}; see ./train.sh explain-log --help")
