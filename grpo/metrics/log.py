"""metrics.jsonl and completions.jsonl: one whole line per step or response, whenever the machine stops.

Leaves out what the names mean (names.py), services (loggers.py) and the display (live.py).
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.metrics.loggers import Services
from grpo.metrics.names import with_both_names

METRICS = "metrics.jsonl"
COMPLETIONS = "completions.jsonl"
_STEP = re.compile(rb'\{"step": (-?\d+)[,}]')  # every line opens with its step, so that a resume need not parse it


class MetricsLog:
    """Appends what a run measured to its output folder, and hands it to the loggers.

    resume_step: the step of the checkpoint that the run goes on from; later lines of both files are dropped, and a line
        torn by a kill is repaired. None: from the start, so both files are emptied.
    loggers: names, as in trainer.logger. `console` (live.Progress) and `file` (this class) start no service.
    say: where a note for the user goes, such as `Progress.note`.

    Write the lines of a step before its checkpoint: then a kill loses no line that a resume would not write again.
    """

    def __init__(
        self,
        output_dir: str | Path,
        loggers: Sequence[str] = (),
        resume_step: int | None = None,
        *,
        project: str = "grpo",
        experiment: str = "",
        config: Mapping[str, Any] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        folder = Path(output_dir)
        self.nonfinite = 0  # NaN and infinite values written as null so far
        self._metrics = _Lines(folder / METRICS, resume_step)
        self._completions = _Lines(folder / COMPLETIONS, resume_step)
        self._services = Services(
            loggers,
            output_dir=folder,
            project=project,
            experiment=experiment or folder.name,
            config=config or {},
            resume_step=resume_step,
            say=say or _to_stderr,
        )

    def step(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one line: `values` under plain names and verl's.

        Numbers, or what `float` takes; None means "not measured" and is left out; NaN and infinity become null and are
        counted in `nonfinite`, in the line too. Raises OSError when the disk is full.
        """
        measured, bad = _finite({n: _number(v) for n, v in values.items() if v is not None and n != "step"})
        if bad:
            measured["nonfinite"] = bad
            self.nonfinite += bad
        line = with_both_names(measured)
        self._metrics.append([{"step": step, **line}])
        self._services.log(step, {name: value for name, value in line.items() if value is not None})

    def completions(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one line per response of a step: uid, prompt, response, reward, parts, length, split and so on."""
        self._completions.append([_finite({"step": step, **row})[0] for row in rows])

    def sync(self) -> None:
        """Put every line on the disk, so that it outlives a power cut; call it before a checkpoint."""
        self._metrics.sync()
        self._completions.sync()

    def close(self) -> None:
        """Close files and services; a second call does nothing."""
        self._metrics.close()
        self._completions.close()
        self._services.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file, without a line torn by a kill; nothing when there is no file."""
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            row = parse_line(line)
            if row is not None:
                yield row


def parse_line(line: bytes) -> dict[str, Any] | None:
    """One line of a .jsonl file as an object; None when it is torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


class _Lines:
    """A .jsonl file that only grows, each line written at once."""

    def __init__(self, path: Path, resume_step: int | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        kept = 0
        if resume_step is not None:
            with open(path, "rb") as file:
                kept = _kept_bytes(file, resume_step)
        # Lines are in the order of their steps, so what goes is always the end of the file. Cutting it is one change of
        # its length, which a kill cannot leave half done, and needs no room for a second copy.
        os.ftruncate(self._handle, kept)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write `rows`, all or none; raises OSError with the file's name."""
        if self._handle is None:
            raise ValueError(f"{self._path} is closed")
        data = "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows)
        # A lone surrogate has no UTF-8; as \udXXX inside a JSON string it comes back as it was.
        rest = memoryview(data.encode("utf-8", "backslashreplace"))
        before = os.fstat(self._handle).st_size
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as problem:
            os.ftruncate(self._handle, before)
            raise OSError(problem.errno, os.strerror(problem.errno or 0), str(self._path)) from problem

    def sync(self) -> None:
        if self._handle is not None:
            os.fsync(self._handle)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _kept_bytes(lines: Iterable[bytes], resume_step: int) -> int:
    """Length of the whole lines that belong to steps up to `resume_step`."""
    kept = 0
    for line in lines:
        step = _STEP.match(line)
        if not line.endswith(b"\n") or step is None or int(step[1]) > resume_step:
            break
        kept += len(line)
    return kept


def _number(value: Any) -> int | float:
    """A Python number out of a Python, numpy or torch scalar; raises TypeError or ValueError for anything else."""
    return int(value) if isinstance(value, (bool, int)) else float(value)


def _finite(value: Any) -> tuple[Any, int]:
    """`value` with None in place of NaN and infinity, at any depth, and how many there were."""
    if isinstance(value, float):
        return (value, 0) if math.isfinite(value) else (None, 1)
    if isinstance(value, Mapping):
        cleaned = {str(name): _finite(one) for name, one in value.items()}
        return {name: one for name, (one, _) in cleaned.items()}, sum(bad for _, bad in cleaned.values())
    if isinstance(value, (list, tuple)):
        items = [_finite(one) for one in value]
        return [one for one, _ in items], sum(bad for _, bad in items)
    return value, 0


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
