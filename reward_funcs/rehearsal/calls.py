"""A reward called with a clock: what each call ended in, how long it took, and an end to it all.

Leaves out what is called and what it should give (cases.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from reward_funcs.errors import NotScored, TooLate
from reward_funcs.returns import Attempt, Score
from reward_funcs.score import Reward, Sample, last_line
from reward_funcs.scoring import Scoring

CHUNK = 64  # responses between two looks at the clock
MOST_LATE = 2  # calls that hang before a reward is given up
MOST_FAILED = 4  # failed calls before one is given up that never worked ...
PATIENCE = 2.0  # ... and seconds: a server that is not there fails slowly
WORKERS = 2
SPENT = 0.4  # share of the time that is given to trying everything on a few records


@dataclass(frozen=True)
class Call:
    """score: None when it failed or does not apply. error: what it failed with. seconds: None when not timed alone."""

    score: float | None
    parts: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    late: bool = False
    seconds: float | None = None


class Caller:
    """Calls one reward; the user's in worker processes, each call with a deadline. timeout: seconds for a call."""

    def __init__(self, reward: Reward, *, timeout: float) -> None:
        self.reward, self.end = reward, time.monotonic()
        self._scoring = Scoring(reward, workers=WORKERS, timeout=timeout, ours_here=True)
        self.until(self.end)
        self._warm = False

    def until(self, end: float) -> None:
        """Begin anew; calls are made until `end` (time.monotonic())."""
        self.end, self._late, self._failed, self._worked = end, 0, 0, False
        self._began = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether nothing more is called."""
        now = time.monotonic()
        dead = not self._worked and self._failed >= MOST_FAILED and now - self._began > PATIENCE
        return self.hung or dead or now >= self.end

    @property
    def hung(self) -> bool:
        """Whether it was given up since calls did not end."""
        return self._late >= MOST_LATE

    @property
    def ended(self) -> str:
        """Why nothing more is called, "" while something is."""
        if self.hung:
            return "its calls do not end"
        if time.monotonic() >= self.end:
            return "the time for this check was over"
        return "none of its calls worked" if self.over else ""

    def affordable(self, seconds: float, most: int) -> int:
        """How many records, 2 to `most`, of so many seconds each fit into what is left."""
        return max(2, min(most, int(SPENT * (self.end - time.monotonic()) / max(seconds, 1e-9))))

    def alone(self, samples: Sequence[Sample]) -> list[Call]:
        """One call for each sample, timed; fewer than samples when the time is over."""
        found = []
        for sample in samples:
            if self.over:
                break
            began = time.perf_counter()
            (attempt,) = self._scoring.attempts([sample])
            seconds = time.perf_counter() - began
            # The first call also starts a process and imports what the file imports.
            found.append(self._call(attempt, seconds if self._warm else None))
            self._warm = True
        return found

    def together(self, samples: Sequence[Sample]) -> list[Call]:
        """The same without times, which is faster."""
        found: list[Call] = []
        while len(found) < len(samples) and not self.over:
            chunk = samples[len(found) : len(found) + CHUNK]
            found += [self._call(attempt, None) for attempt in self._scoring.attempts(chunk)]
        return found

    def _call(self, attempt: Attempt, seconds: float | None) -> Call:
        if isinstance(attempt, Score):
            self._worked = True
            return Call(attempt.score, attempt.parts, seconds=seconds)
        if isinstance(attempt, NotScored):
            return Call(None, seconds=seconds)
        late = isinstance(attempt, TooLate)
        self._late += late
        self._failed += 1
        return Call(None, error=last_line(attempt, self.reward), late=late, seconds=seconds)

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scoring.close()


def spread(count: int, most: int) -> list[int]:
    """At most `most` places out of `count`, evenly spread and the first among them."""
    if count <= most:
        return list(range(count))
    return [place * count // most for place in range(most)]
