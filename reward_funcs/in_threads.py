"""Calls of a reward of this room in several threads: they wait for jails and child processes, not for Python.

Results in order, a deadline for each call, and the caller is asked several times a second whether to stop. Leaves out
functions of users, which need not be safe in threads and run in processes (workers.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from reward_funcs.errors import RewardError, TooLate
from reward_funcs.returns import Attempt
from reward_funcs.score import Reward, Sample

_TICK = 0.2  # seconds between two looks at whether to stop, and at the clock


def attempts_in_threads(
    reward: Reward,
    samples: Sequence[Sample],
    *,
    threads: int,
    timeout: float,
    on_wait: Callable[[], None] | None = None,
) -> list[Attempt]:
    """The score of each sample or what its call ended in; TooLate for one that took longer than timeout seconds.

    A call that is too late is left alone: rewards of this room end by themselves. on_wait: what it raises ends the
    wait, and no further call begins.
    """
    batch = _Batch(reward, samples)
    for _ in range(min(threads, len(samples))):
        threading.Thread(target=batch.work, name="rewards", daemon=True).start()
    try:
        while not batch.over.wait(_TICK):
            batch.give_up(timeout)
            if on_wait:
                on_wait()
    finally:
        batch.stop()
    batch.raise_interrupt()
    return [attempt if attempt is not None else RewardError("not called") for attempt in batch.found]


class _Batch:
    """What is scored. found: by place; over: set when every place has a result."""

    def __init__(self, reward: Reward, samples: Sequence[Sample]) -> None:
        self.found: list[Attempt | None] = [None] * len(samples)
        self.over = threading.Event()
        self._reward, self._samples = reward, samples
        self._next, self._left = 0, len(samples)
        self._began: dict[int, float] = {}  # place -> when, of the calls under way
        self._lock = threading.Lock()
        if not samples:
            self.over.set()

    def work(self) -> None:
        """One thread: call for one sample after the other, until there is none."""
        while (i := self._begin()) is not None:
            try:
                (attempt,) = self._reward.attempts([self._samples[i]])
            except BaseException as error:  # noqa: BLE001 - raise_interrupt hands it to the caller
                attempt = error
            self._ended(i, attempt)

    def give_up(self, timeout: float) -> None:
        """Call those too late that have been under way for longer."""
        with self._lock:
            now = time.monotonic()
            late = [i for i, began in self._began.items() if now - began > timeout]
        for i in late:
            self._ended(i, TooLate(f"took longer than {timeout:g} s (--reward_timeout)"))

    def stop(self) -> None:
        """Begin no further call."""
        with self._lock:
            self._next = len(self._samples)

    def raise_interrupt(self) -> None:
        """As Reward.attempts does: what is no failure of a reward passes."""
        for attempt in self.found:
            if isinstance(attempt, BaseException) and not isinstance(attempt, (Exception, SystemExit)):
                raise attempt

    def _begin(self) -> int | None:
        with self._lock:
            if self._next >= len(self._samples):
                return None
            i, self._next = self._next, self._next + 1
            self._began[i] = time.monotonic()
            return i

    def _ended(self, i: int, attempt: Attempt) -> None:
        with self._lock:
            if self._began.pop(i, None) is None:
                return  # it was given up
            self.found[i] = attempt
            self._left -= 1
            if self._left == 0:
                self.over.set()
