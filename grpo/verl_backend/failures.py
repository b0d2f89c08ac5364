"""Known failures of a verl run: which of them a log shows, why they happen and what to do.

failures.yaml knows the failures, this file finds them. Reads a log once, in time that grows with its length alone, and
asks where in the run and in which traceback a message stands: the first cause wins over all that follows from it.
Leaves out how a line was decorated by Ray and vLLM (child_log.py).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from grpo.verl_backend.running.child_log import clean, parted

FAILURES = Path(__file__).with_name("failures.yaml")
UNKNOWN = "unknown"
SHOWN = 3
BLOCK = 1000  # lines that are searched together, so that a long log without trouble costs next to nothing
LONGEST = 4000  # characters of a line that are looked at
FRAMES = 300  # lines kept of a traceback, the last ones
AFTER = 12  # lines that an exception's message may have after its first
LINE_SHOWN = 300

# How telling a failure is. `follows`: of another one, which counts more where the log has it; `hint`: may be harmless.
# What is said outside of any exception and error record counts no more than an exception that nobody knows.
RANKS = {"cause": 0, UNKNOWN: 1, "follows": 2, "hint": 3}
# The first explanation, further ones, hints; then what to do, what to change, and the line of the log.
_HEADINGS = ("first", "other", "hint", "fix", "flag", "line")
WORDS = {
    "en": dict(zip(_HEADINGS, ("Why: ", "Also seen: ", "Hint: ", "  Do: ", "  Change: ", "  Log: "), strict=True)),
    "zh": dict(zip(_HEADINGS, ("原因：", "另有：", "提示：", "  办法：", "  修改：", "  日志："), strict=True)),
}

_HEAD = "Traceback (most recent call last)"
_RANK = re.compile(r"(?:\[rank\d+\]: ?)+")  # before each line of a traceback that torch prints
_STEP = re.compile(r"step:\d+ - ")  # verl's metrics: what came before did not end the run
_WARNING = re.compile(r"\bWARNING\b|\b[A-Z]\w+Warning: ")
_ENDING = re.compile(r"(?:\w+\.)*\w+(?::|$)")  # the line of an exception behind its traceback
_ALONE = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?:: |$)")  # an exception without its traceback


@dataclass(frozen=True)
class Explanation:
    """What a log shows. name: of the failure, or "unknown"; flag: what to change; line: the log's own.

    kind: `cause`, `unknown`, `follows` (from another failure) or `hint` (harmless, maybe, or survived).
    """

    name: str
    cause: str
    fix: str
    flag: str | None
    line: str
    kind: str = "cause"


@dataclass(frozen=True)
class Failure:
    """One entry of failures.yaml. says: alternatives, each a message cut at its gaps; inside: texts of a traceback."""

    name: str
    group: Mapping[str, str]
    says: tuple[tuple[str, ...], ...]
    inside: tuple[str, ...]
    kind: str
    cause: Mapping[str, str]
    fix: Mapping[str, str]
    flag: str | None


@cache
def load_failures() -> tuple[Failure, ...]:
    """All entries, in the order in which they are asked: the more exact one first."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    groups = yaml.load(FAILURES.read_text(encoding="utf-8"), Loader=loader)
    return tuple(
        _failure(entry, {"en": group["group"], "zh": group["zh"]}) for group in groups for entry in group["failures"]
    )


def explain(lines: Iterable[str], *, lang: str = "en") -> list[Explanation]:
    """The failures in a log, most telling first; empty where there is none. lang: "en" or "zh"."""
    search = _Search()
    for block in _blocks(lines):
        search.read(block)
    return [one.explanation(lang) for one in search.most_telling()[:SHOWN]]


def render(explanations: Iterable[Explanation], lang: str = "en") -> list[str]:
    """The lines for a terminal."""
    words, lines = WORDS[lang], []
    for number, one in enumerate(explanations):
        lines.append(words["hint" if one.kind == "hint" else "other" if number else "first"] + one.cause)
        lines.append(words["fix"] + one.fix)
        if one.flag:
            lines.append(words["flag"] + one.flag)
        lines.append(words["line"] + one.line)
    return lines


def _failure(entry: Mapping[str, Any], group: Mapping[str, str]) -> Failure:
    return Failure(
        name=entry["name"],
        group=group,
        says=tuple(tuple(text.split("*")) for text in entry.get("says", ())),
        inside=tuple(entry.get("inside", ())),
        kind=entry.get("kind", "cause"),
        cause={"en": entry["cause"], "zh": entry["cause_zh"]},
        fix={"en": entry["fix"], "zh": entry["fix_zh"]},
        flag=entry.get("flag"),
    )


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        block += line.splitlines() if "\r" in line else [line.rstrip("\n")]  # states of a progress bar
        if len(block) >= BLOCK:
            yield block
            block = []
    yield block


def _has(text: str, pieces: Iterable[str]) -> bool:
    """Whether the pieces stand in `text`, one behind the other. Not a regular expression: those can take for ever."""
    at = 0
    for piece in pieces:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


@dataclass
class _Finding:
    failure: Failure
    line: str
    number: int
    rank: int
    survived: bool = False

    def explanation(self, lang: str) -> Explanation:
        failure = self.failure
        kind = "hint" if self.survived else failure.kind
        return Explanation(failure.name, failure.cause[lang], failure.fix[lang], failure.flag, self.line, kind)

    @property
    def order(self) -> tuple[bool, int, int]:
        return self.survived, self.rank, self.number


@dataclass
class _Traceback:
    """The last traceback of one process. open: its exception's own line has not come yet."""

    harmless: bool
    open: bool = True
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=FRAMES))

    def holds(self, texts: Iterable[str]) -> bool:
        """Whether one of the texts stands in it."""
        return any(text in line for text in texts for line in self.lines)


@dataclass
class _Strange:
    """An exception that nothing explains yet: the rest of its message may. left: lines that may still belong to it."""

    finding: _Finding
    left: int = AFTER


class _Search:
    """What was found so far, while a log is read."""

    def __init__(self) -> None:
        self._found: dict[str, _Finding] = {}
        self._unexplained: list[_Finding] = []  # exceptions, the first and the last one
        self._strange: dict[str, _Strange] = {}  # by who wrote it, as the tracebacks
        self._tracebacks: dict[str, _Traceback] = {}
        self._number = 0

    def read(self, block: list[str]) -> None:
        """Take some lines."""
        text = "\n".join(block)
        candidates = [
            (failure, says)
            for failure in load_failures()
            for says in failure.says
            if all(piece in text for piece in says)
        ]
        telling = candidates or any(word in text for word in ("Traceback", "Error", "Exception"))
        going_on = self._strange or any(one.open for one in self._tracebacks.values())
        may_survive = (self._found or self._unexplained) and "step:" in text
        if telling or going_on or may_survive:
            for number, line in enumerate(block, self._number):
                self._take(line[:LONGEST], number, candidates)
        self._number += len(block)

    def most_telling(self) -> list[_Finding]:
        """All findings, the most telling one first; what the run survived only where nothing else was found."""
        for writer in list(self._strange):
            self._settle(writer)
        found = list(self._found.values())
        if self._unexplained and not any(one.rank == RANKS["cause"] and not one.survived for one in found):
            first, last = self._unexplained[0], self._unexplained[-1]
            line = last.line if last.line == first.line else f"{last.line} (the first one: {first.line})"
            found.append(_Finding(first.failure, line, first.number, first.rank))
        found.sort(key=lambda one: one.order)
        hints_too = not found or found[0].rank > RANKS["cause"]
        return [one for one in found if one.survived == found[0].survived and (hints_too or one.rank < RANKS["hint"])]

    def _take(self, raw: str, number: int, candidates: list[tuple[Failure, tuple[str, ...]]]) -> None:
        writer, level, text = parted(clean(raw))
        text = _RANK.sub("", text, count=1) if text.startswith("[rank") else text
        if _STEP.match(text):
            return self._survive()
        mild = level in ("DEBUG", "INFO", "WARNING") or bool(_WARNING.search(text))
        ends = self._follow(writer, text, mild)
        traceback = self._tracebacks.get(writer)
        if traceback and traceback.open:
            return None  # its frames quote source code, which may hold any message
        mild = mild or bool(ends and traceback and traceback.harmless)
        exception = not mild and "ray::" not in text and bool((_ENDING if ends else _ALONE).match(text))
        if exception or level:
            self._settle(writer)  # this line is no more of an earlier message
        for failure, says in candidates:
            if _has(text, says) and (not failure.inside or (traceback and traceback.holds(failure.inside))):
                if mild and failure.kind != "hint":
                    return None  # a warning of the same words: a part that is left out, a second try
                loud = ends or exception or level or self._strange.pop(writer, None)
                rank = max(RANKS["cause" if loud else UNKNOWN], RANKS[failure.kind])
                return self._keep(_Finding(failure, _short(text), number, rank))
        if exception:
            self._strange[writer] = _Strange(_Finding(_unknown(), _short(text), number, RANKS[UNKNOWN]))
        elif strange := self._strange.get(writer):
            strange.left -= 1
            if not strange.left:
                self._settle(writer)
        return None

    def _survive(self) -> None:
        """A step was finished: nothing so far has ended the run."""
        for one in self._found.values():
            one.survived = True
        self._unexplained.clear()
        self._strange.clear()

    def _settle(self, writer: str) -> None:
        """Count the exception of `writer`, which nothing has explained."""
        if strange := self._strange.pop(writer, None):
            kept = sorted([*self._unexplained, strange.finding], key=lambda one: one.number)
            self._unexplained = [kept[0], kept[-1]]

    def _follow(self, writer: str, text: str, harmless: bool) -> bool:
        """Keep the traceback of `writer`; whether `text` is the exception's own line, which ends it."""
        traceback = self._tracebacks.get(writer)
        if _HEAD in text:
            self._tracebacks[writer] = _Traceback(harmless)
        elif text.startswith('  File "'):
            # Without a head, Ray shows the frames of another process behind its first line.
            traceback = self._tracebacks.setdefault(writer, _Traceback(harmless))
            traceback.open = True
            traceback.lines.append(text)
        elif traceback and traceback.open:
            traceback.open = not text or text[0].isspace()
            traceback.lines.append(text)
            return not traceback.open
        return False

    def _keep(self, finding: _Finding) -> None:
        """The first time counts, unless the run went on afterwards or it was said more seriously later."""
        before = self._found.get(finding.failure.name)
        if before is None or before.survived or finding.rank < before.rank:
            self._found[finding.failure.name] = finding


def _unknown() -> Failure:
    return next(failure for failure in load_failures() if failure.name == UNKNOWN)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LINE_SHOWN else text[: LINE_SHOWN - 3] + "..."
