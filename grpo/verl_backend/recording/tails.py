"""Files of verl's that grow, or appear, while we read them. Leaves out what stands in them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from grpo.metrics.log import parse_line

QUIET = 2.0  # seconds without a change after which a dump counts as whole


class Tail:
    """A .jsonl file that grows: each call gives the objects of the lines that became whole since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0  # bytes behind us, always a whole number of lines

    def rows(self) -> list[dict[str, Any]]:
        """[] as long as there is no file. A file that became shorter was started anew, and is read from its start."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size == self._read:
            return []
        if size < self._read:
            self._read = 0
        with open(self._path, "rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        rows = map(parse_line, whole.splitlines(keepends=True))
        return [row for row in rows if row is not None]


class Dump:
    """A dump of verl's, a .jsonl file that is written in one go, in the background: its rows, once it is whole.

    The empty rows (uid `pad...`) by which verl fills up a batch that lacks responses are left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._since = 0.0

    def rows(self, expected: int | None, *, ended: bool) -> list[dict[str, Any]] | None:
        """None: not whole yet. expected: how many rows make it whole, where that is known; otherwise, or with another
        number of them, it is whole after QUIET seconds without a change. ended: nobody writes to it any more."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return [] if ended else None
        now = time.monotonic()
        if size != self._size:
            self._size, self._since = size, now
        elif not ended and now - self._since < QUIET:
            return None
        found = map(parse_line, self._path.read_bytes().splitlines(keepends=True))
        rows = [row for row in found if row is not None and not str(row.get("uid")).startswith("pad")]
        settled = ended or now - self._since >= QUIET
        return rows if settled or len(rows) == expected else None
