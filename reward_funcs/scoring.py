"""A reward as training calls it: in worker processes with a deadline for each call, or here where that cannot be.

    with Scoring(build_reward(...), workers=4, timeout=60) as scoring:
        scores = score_batch(scoring, samples, max_errors=0.1)

What goes to workers: functions from files, names and plug-ins. What stays: rewards that hold a model or a connection,
which keep their own deadlines, and functions given from Python that another process cannot import, which have none.
With `ours_here` the rewards of this room stay, too, and are called from threads: they wait for jails, or for sympy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from reward_funcs.combined import Combined
from reward_funcs.errors import RewardError
from reward_funcs.in_threads import attempts_in_threads
from reward_funcs.named import NAMES
from reward_funcs.returns import Attempt
from reward_funcs.score import Reward, Sample
from reward_funcs.workers import Workers

THREADS = max(2, 2 * (os.cpu_count() or 1))  # as many programs as code_score.py runs at the same time


class Scoring:
    """reward: from build_reward. workers: processes, 0 = call everything here. timeout: seconds for one call.

    ours_here: call the rewards of this room here too, in threads; they end by themselves. Cheaper where most are plain,
    and for a process that is a worker already.
    on_wait: called several times a second while workers work; what it raises ends the wait.
    notes: what the user should know, one line each.
    """

    def __init__(
        self,
        reward: Reward | Combined,
        *,
        workers: int,
        timeout: float,
        ours_here: bool = False,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        if not timeout > 0:
            raise RewardError(f"--reward_timeout {timeout:g} has to be more than 0 seconds")
        self.reward, self.on_wait = reward, on_wait
        self._timeout = timeout
        mine = [r.recipe is not None and r.recipe.maker in ("named", "shipped") for r in reward.singles]
        self._in_threads = [is_ours and ours_here for is_ours in mine]
        self._away = [
            k for k, r in enumerate(reward.singles) if workers and r.recipe is not None and not self._in_threads[k]
        ]
        away = [reward.singles[k] for k in self._away]
        self._workers = Workers(away, count=workers, timeout=timeout) if away else None
        self.notes = [
            f"{r.place} is called in this process, without a deadline: a worker process cannot import it; "
            "put it into a file, and give that as FILE:NAME"
            for r in reward.singles
            if workers and r.recipe is None and not (r.name in NAMES and NAMES[r.name].here)
        ]

    @property
    def place(self) -> str:
        """As error messages show the reward."""
        return self.reward.place

    @property
    def file(self) -> Path | None:
        """The user's file."""
        return self.reward.file

    @property
    def one_by_one(self) -> bool:
        """Whether every response is scored for itself, whatever is scored beside it."""
        return not any(reward.shape.together for reward in self.reward.singles)

    def may_begin(self, *, cores_free: bool) -> bool:
        """Whether another thread may call `attempts` while this one works on.

        Not where a reward is called in this process, but for those of this room. The programs of these are given
        seconds by the clock, and want cores that are free.
        """
        here = len(self.reward.singles) - len(self._away)
        return here == 0 or (cores_free and here == sum(self._in_threads))

    def attempts(self, samples: Sequence[Sample], *, on_wait: Callable[[], None] | None = None) -> list[Attempt]:
        """The score of each sample, or what its call ended in, in order. on_wait: here, instead of the usual one."""
        if not samples:
            return []
        on_wait = on_wait or self.on_wait
        found: dict[int, list[Attempt]] = {}
        if self._workers:
            away = self._workers.attempts(samples, on_wait=on_wait)
            found = dict(zip(self._away, away, strict=True))
        for k, reward in enumerate(self.reward.singles):
            if k in found:
                continue
            if self._in_threads[k] and len(samples) > 1:
                found[k] = attempts_in_threads(reward, samples, threads=THREADS, timeout=self._timeout, on_wait=on_wait)
            else:
                found[k] = reward.attempts(samples, timeout=self._timeout)
        return self.reward.combined([found[k] for k in range(len(self.reward.singles))])

    def close(self) -> None:
        """End the workers."""
        if self._workers:
            self._workers.close()

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
