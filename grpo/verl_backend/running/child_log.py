"""The log of a child process, read while it grows: clean lines, who wrote them, the first traceback, signs of death.

Ray prints what its workers write as `(WorkerDict pid=12, ip=10.0.0.2) text`, vLLM puts `(EngineCore pid=13) ERROR
11-21 05:53:01 [core.py:7]` before every line of a traceback, and lines of several processes stand among each other.
Leaves out what a line means to the user (phases.py, failures.py).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST_LINES = 400  # of one traceback
KEPT = 8  # tracebacks, in case the first ones hide another
AFTER_ERROR = 12  # lines that an error's message may have after its first
REMEMBERED = 2000  # kinds of lines that are known, so that only new ones count as a sign of life
CHUNK = 2**20

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_WRITER = re.compile(r"\(([^()]*\bpid=\d+[^()]*)\) ?")
_WRITERS = re.compile(rf"(?:{_WRITER.pattern})+")
_ENDS = re.compile(rb"([\r\n]+)")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_RECORD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"(?: \d\d-\d\d \d\d:\d\d:\d\d(?: \[[^\]]*\])? ?|:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+:|:[\w.]+:)"
)
_HEAD = "Traceback (most recent call last):"
_REMOTE_HEAD = re.compile(r"\bray::[\w.<>]+(?:\(\))? \(pid=\d+")  # Ray's own, of an error nobody waited for
_NEXT = re.compile(
    r"(During handling of|The above exception|Exception ignored|Error executing job|Set the environment variable"
    r"|\*\*\*|=====|\[?20\d\d-\d\d-\d\d)"
)
# It follows any exception raised while weights are received, and hides it (the traceback keeps views of the buffer).
_MASK = "cannot close exported pointers exist"
_DEATH = re.compile(
    r"WorkerProc hit an exception|WorkerProc failed|EngineCore (?:encountered|failed|.{0,40}\bdied)|EngineDeadError"
    r"|ActorDiedError|Worker proc .* died unexpectedly|A worker died or was killed while executing"
)
_BAR = re.compile(r"\d+(?:\.\d+)?\w?/\d+(?:\.\d+)?\w? \[")  # tqdm's "37/160 [00:12<00:40"
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


class Line(NamedTuple):
    """One line of the log. writer: the processes in front of it, "" for verl's own; level: of a log record, or ""."""

    writer: str
    level: str
    text: str


def clean(line: str) -> str:
    """The line without colours and other orders to a terminal."""
    return _ESCAPES.sub("", line).rstrip()


def parted(line: str) -> Line:
    """Who wrote a clean line, its level, and its text without Ray's and vLLM's additions."""
    writers = []
    while found := _WRITER.match(line):
        writers.append(found[1])
        line = line[found.end() :]
    line = _REPEATED.sub("", line)
    record = _RECORD.match(line)
    if record:
        return Line(" ".join(writers), record["level"], line[record.end() :])
    return Line(" ".join(writers), "", line)


class Tail:
    """New lines of a growing file, from `start` on. Each state of a progress bar (carriage return) is a line."""

    def __init__(self, path: Path, start: int) -> None:
        self._path, self._at, self._rest = path, start, b""
        self._writers = ""  # in front of the line that is being read, whose later states have them no more

    def lines(self, *, ended: bool = False) -> Iterator[str]:
        """Clean lines written since the last call, without empty ones. ended: also a last one without its newline."""
        with open(self._path, "rb") as file:
            if file.seek(0, 2) < self._at:  # somebody emptied it
                self._at, self._rest = 0, b""
            file.seek(self._at)
            while chunk := file.read(CHUNK):
                self._at += len(chunk)
                *whole, self._rest = _ENDS.split(self._rest + chunk)
                for piece, end in zip(whole[::2], whole[1::2], strict=True):
                    yield from self._line(piece, end)
        if ended:
            rest, self._rest = self._rest, b""
            yield from self._line(rest, b"\n")

    def _line(self, piece: bytes, end: bytes) -> Iterator[str]:
        text = clean(piece.decode("utf-8", "replace"))
        if found := _WRITERS.match(text):
            self._writers = found[0].rstrip() + " "
        elif text:
            text = self._writers + text
        if text and text != self._writers.rstrip():
            yield text
        if b"\n" in end:
            self._writers = ""


class News:
    """Tells new things from noise that is said again and again with another time or count."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()

    def is_new(self, line: Line) -> bool:
        """Whether no line like this came lately; a progress bar is new when it has moved."""
        bar = _BAR.search(line.text)
        kind = _NUMBER.sub("#", line.text) + (bar[0] if bar else "")
        new = kind not in self._known
        self._known[kind] = None
        self._known.move_to_end(kind)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return new


class _Traceback:
    """One traceback while it is read. masked: it hides another one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.masked = False
        self.more: int | None = None  # lines that may still follow the error's own; None while frames come


class Tracebacks:
    """Finds the first traceback that matters: not of an ignored exception or a warning, and none that hides another."""

    def __init__(self) -> None:
        self._kept: list[_Traceback] = []
        self._open: dict[str, _Traceback] = {}
        self._ignore_next: set[str] = set()

    @property
    def seen(self) -> bool:
        """Whether there was one that explains something."""
        return any(not one.masked for one in self._kept)

    def first(self) -> tuple[str, ...]:
        """Its lines, without the writers' names; empty where there is none."""
        best = next((one for one in self._kept if not one.masked), self._kept[0] if self._kept else None)
        return tuple(best.lines) if best else ()

    def feed(self, line: Line) -> None:
        """Take one line."""
        writer, level, text = line
        if text.startswith("Exception ignored in"):
            self._ignore_next.add(writer)
        at = text.find(_HEAD)
        if at < 0 and writer not in self._open and (remote := _REMOTE_HEAD.search(text)):
            at = remote.start()
        harmless = level in ("DEBUG", "INFO", "WARNING")
        if at >= 0:
            self._open[writer] = found = _Traceback()
            found.lines.append(text[at:])
            if not harmless and writer not in self._ignore_next and len(self._kept) < KEPT:
                self._kept.append(found)
            self._ignore_next.discard(writer)
        elif writer in self._open:
            self._go_on(writer, text, other_record=harmless)

    def _go_on(self, writer: str, text: str, *, other_record: bool) -> None:
        found = self._open[writer]
        message = not text[:1].isspace()
        ended = found.more is not None and message and (found.more == 0 or other_record or _NEXT.match(text))
        if ended or len(found.lines) >= MOST_LINES:
            del self._open[writer]
            return
        found.lines.append(text)
        if message:  # Ray puts the frames of the other process, indented, behind the error's first line
            found.more = AFTER_ERROR if found.more is None else found.more - 1
        found.masked = found.masked or _MASK in text


def tells_death(line: Line, tracebacks: Tracebacks) -> bool:
    """Whether this line says that a worker is gone while others may wait for it for ever."""
    return bool(_DEATH.search(line.text)) or (_MASK in line.text and tracebacks.seen)
