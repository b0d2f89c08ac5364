"""Reads the rows of a JSON array or of JSONL, whatever the file is called, one at a time. Knows no column names.

The file passes through a window of about a megabyte, so memory does not grow with it. Numbers keep the text they were
written with (record.Number), and what JSON leaves open (duplicate keys, NaN) is a problem of the row.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from data_prep.errors import DataError, quote
from data_prep.record import Number

WINDOW = 1 << 20  # characters
LONGEST_TOKEN = 12  # characters of `\ud83d\ude00`: an error this near the window's end may be the end's own doing
_SPACE = re.compile(r"[ \t\n\r]*")


class Row(NamedTuple):
    """One row of any format. line: where it begins, counted from 1, None where files have no lines; problem: why it
    cannot be used, or None."""

    line: int | None
    value: Any
    problem: str | None = None


def json_rows(path: Path) -> Iterator[Row]:
    """The rows of `path`. Raises DataError where it is not JSON, UnicodeDecodeError where it is not UTF-8."""
    # newline="": line ends inside strings are the user's.
    with open(path, encoding="utf-8-sig", newline="") as file:
        text = _Window(path, file)
        first = text.next_char()
        if first == "[":
            yield from _array(text)
        elif first == "{":
            yield from _lines(text)
        elif first == "":
            raise DataError(f"{path}: is empty; it should hold records with prompt, ground_truth and data_source")
        else:
            text.value()  # not JSON at all: raises
            raise DataError(f"{path}: holds a single value, not a list of records; begin with [ and end with ]")


def _array(text: _Window) -> Iterator[Row]:
    text.position += 1
    if text.next_char() == "]":
        raise DataError(f"{text.path}: holds no records: the list is empty")
    while True:
        yield text.row()
        mark = text.next_char()
        if mark == "]":
            break
        if mark != ",":
            raise text.not_json("a comma or ] should stand here")
        text.position += 1
        if text.next_char() == "]":
            raise text.not_json("the list ends with a comma; remove it")
    text.position += 1
    if text.next_char():
        raise text.not_json("the list has ended, but text follows")


def _lines(text: _Window) -> Iterator[Row]:
    row = text.row()
    if not text.next_char() and text.path.suffix.lower() == ".json":
        raise DataError(f"{text.path}: holds one object, not a list of records; {_how_to_list(row.value)}")
    yield row
    while text.next_char():
        if text.line() == row.line:
            raise text.not_json("a second value on the line; JSONL holds one record on each")
        row = text.row()
        yield row


def _how_to_list(value: dict[str, Any]) -> str:
    lists = [key for key, inside in value.items() if isinstance(inside, list)]
    if len(lists) == 1 and "prompt" not in value:
        return f"the list under {quote(lists[0])} should be the whole file"
    return "put [ before it and ] after it"


class _Window:
    """The part of the file that is being read; `position` is where in it. The only state of this file."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self.file = path, file
        self.buffer, self.position, self.at_end = "", 0, False
        self.record = 0  # rows begun
        self._line, self._counted = 1, 0  # the line at buffer[_counted]
        self._column = 0  # characters of that line that have left the buffer
        self._notes: list[str] = []
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=Number, parse_float=Number, parse_constant=self._constant
        )

    def next_char(self) -> str:
        """The next character that is not space, without passing it; "" at the end of the file."""
        while True:
            self.position = _SPACE.match(self.buffer, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self._fill():
                return ""

    def line(self) -> int:
        """The line of `position`, counted from 1."""
        self._line += self.buffer.count("\n", self._counted, self.position)
        self._counted = self.position
        return self._line

    def row(self) -> Row:
        """The JSON value that begins here, as a row."""
        self.record += 1
        line = self.line()
        value = self.value()
        return Row(line, value, ", ".join(dict.fromkeys(self._notes)) or None)

    def value(self) -> Any:
        """The JSON value that begins here; `position` passes it. Raises DataError."""
        while True:
            self._notes.clear()
            try:
                value, end = self._decoder.raw_decode(self.buffer, self.position)
            except json.JSONDecodeError as error:
                if self._may_be_cut(error) and self._fill():
                    continue
                raise self.not_json(_reason(error), at=error.pos) from None
            except RecursionError:
                raise self.not_json("lists or objects are nested too deeply") from None
            if end == len(self.buffer) and self._fill():
                continue  # a number may go on
            self.position = end
            return value

    def not_json(self, reason: str, at: int | None = None) -> DataError:
        """The error for what stands at `at` (an index of the buffer; None = here)."""
        start = self.line()
        at = self.position if at is None else at
        line = start + self.buffer.count("\n", self.position, at)
        newline = self.buffer.rfind("\n", 0, at)
        column = at - newline if newline >= 0 else self._column + at + 1
        record = f" (record {self.record}, begun on line {start})" if self.record and line != start else ""
        record = record or (f" (record {self.record})" if self.record else "")
        if not self.buffer[at:].strip() and self.at_end:
            reason = "the file ends too early: it is cut off, or a closing bracket is missing"
        return DataError(f"{self.path}: not JSON at line {line} column {column}{record}: {reason}")

    def _fill(self) -> bool:
        """Drop what has been read, append more; False at the end of the file. A long row doubles the window."""
        if self.at_end:
            return False
        more = self.file.read(max(WINDOW, len(self.buffer) - self.position))
        if not more:
            self.at_end = True
            return False
        self.line()
        newline = self.buffer.rfind("\n", 0, self.position)
        self._column = self.position - newline - 1 if newline >= 0 else self._column + self.position
        self.buffer, self.position, self._counted = self.buffer[self.position :] + more, 0, 0
        return True

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        return error.msg.startswith("Unterminated string") or error.pos + LONGEST_TOKEN >= len(self.buffer)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = {sys.intern(key): value for key, value in pairs}
        if len(made) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            self._notes.append(f"the key {quote(twice)} stands twice (keep one)")
        return made

    def _constant(self, name: str) -> float:
        self._notes.append(f"{name} is not JSON (write null, or text)")
        return float(name.replace("Infinity", "inf"))


def _reason(error: json.JSONDecodeError) -> str:
    """What is wrong, in words for somebody who edits the file by hand."""
    text, at = error.doc, error.pos
    char, before = text[at : at + 1], text[max(0, at - 200) : at].rstrip()[-1:]
    if error.msg.startswith("Unterminated string"):
        return "the string that begins here never ends: the file is cut off, or a closing quote is missing"
    if error.msg.startswith("Invalid control"):
        written = {"\n": "a line break", "\t": "a tab", "\r": "a carriage return"}
        return f"{written.get(char, f'U+{ord(char):04X}')} inside a string; write it as {json.dumps(char)[1:-1]}"
    if error.msg.startswith("Invalid \\"):
        return "a backslash that begins no JSON escape (LaTeX?); write \\\\ for each \\"
    if char and char in "]}" and before == ",":
        return f"a comma before the closing {char}; remove it"
    if error.msg.startswith("Illegal trailing comma"):  # Python 3.13 points at the comma
        return "a comma before the closing bracket; remove it"
    if char == "'":
        return "single quotes; JSON writes strings in double quotes"
    word = re.match(r"None|True|False|undefined|//|/\*|#", text[at : at + 9])
    if word:
        return f"{word.group()} is not JSON; it has null, true and false, and no comments"
    if error.msg.startswith("Expecting ',' delimiter"):
        return "a comma or a closing bracket should stand here"
    return error.msg[0].lower() + error.msg[1:]
