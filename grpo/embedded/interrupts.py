"""Ctrl-C and SIGTERM without loss: the first asks training to stop at the next safe point, the second stops at once."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType

SAVING = "saving a checkpoint first"


class StopRequested(Exception):
    """Raised at a safe point after a signal."""


class Interrupts:
    """While entered, signals only raise a flag. `check()` raises StopRequested where stopping loses nothing.

    first: what is done before the stop, for the user. launched: by processes.py, which passes both on as a SIGINT.
    """

    def __init__(self, first: str = SAVING, *, launched: bool = False) -> None:
        self.first = first
        self._numbers = (signal.SIGINT,) if launched else (signal.SIGINT, signal.SIGTERM)
        self.signal: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no signals
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self, *_: object) -> None:
        """Raise StopRequested if a signal has come."""
        if self.signal is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.signal = number
        print(f"\nstopping: {self.first} (once more to stop at once)", file=sys.stderr, flush=True)
