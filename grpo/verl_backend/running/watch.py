"""Whether a run lives: signs of life in its log and its training, a worker's death. Leaves out what follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from grpo.verl_backend.running.child_log import News, Tail, Tracebacks, parted, tells_death


class Watch:
    """Reads the log as it grows. died: when a line told that a worker is gone and training has not gone on since."""

    def __init__(self, tail: Tail, on_line: Callable[[str], None], progressed: Callable[[], Any]) -> None:
        self.tracebacks = Tracebacks()
        self.died: float | None = None
        self._tail, self._on_line, self._progressed = tail, on_line, progressed
        self._news = News()
        self._alive = time.monotonic()
        self._token = self._at_death = progressed()

    def read(self, *, ended: bool = False) -> None:
        """Take what is new."""
        for text in self._tail.lines(ended=ended):
            line = parted(text)
            self.tracebacks.feed(line)
            if self._news.is_new(line):
                self._alive = time.monotonic()
            if self.died is None and tells_death(line, self.tracebacks):
                self.died = time.monotonic()
            self._on_line(text)

    def quiet(self) -> float:
        """Seconds since the last sign of life."""
        self._ask()
        return time.monotonic() - self._alive

    def dead_for(self, seconds: float) -> bool:
        """Whether a worker died so long ago and training has not gone on in the second half of that time.

        What was done before it died may be noticed after it.
        """
        self._ask()
        if self.died is None:
            return False
        passed = time.monotonic() - self.died
        if passed < seconds / 2:
            self._at_death = self._token
        elif self._token != self._at_death:
            self.died = None
        return self.died is not None and passed >= seconds

    def _ask(self) -> None:
        token = self._progressed()
        if token != self._token:
            self._token, self._alive = token, time.monotonic()
