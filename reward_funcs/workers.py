"""Rewards in worker processes: in parallel, each call with a deadline, results in order. A dead worker is replaced.

Thread-safe: several threads may score at once, and share the workers. Leaves out rewards that cannot be made again in
another process (scoring.py).
"""

from __future__ import annotations

import contextlib
import math
import pickle
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reward_funcs.child import BadReply, Child
from reward_funcs.code_options import code_options
from reward_funcs.errors import Failed, NotScored, RewardError, TooLate
from reward_funcs.returns import Attempt, Score
from reward_funcs.score import Recipe, Reward, Sample

START_SECONDS = 120.0  # for a worker to import what the user's file imports
SEND_SECONDS = 20.0  # for a worker to take its job
GRACE = 2.0  # seconds over the deadline of an `async def`, which is stopped inside the worker
SLOW = 2.0  # seconds after which a call that has not ended makes room for one more worker
EXTRA = 4  # workers beyond twice the number asked for, while calls are slow
CHUNK = 32  # responses handed over at once, at most
SOON = 0.5  # seconds for a process that closed its socket to be gone
_TICK = 0.2  # seconds between two looks at whether to stop


@dataclass
class _Job:
    """Responses for one reward. todo: their places in the batch; alone: when it fails, nothing is tried again."""

    reward: int
    todo: list[int]
    alone: bool = False


class _Worker:
    """A child and what it is doing. since: when it last gave a sign. ready: it has made its rewards."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.child = Child("reward_funcs.worker_main")
        self.ready = False
        self.job: _Job | None = None
        self.left: dict[int, int] = {}  # place in the job -> place in the batch, of what has no result yet
        self.since = time.monotonic()
        message = {"recipes": list(recipes), "without_jail": code_options().unsafe}
        self.child.send(message, timeout=SEND_SECONDS)


class Workers:
    """count: processes that work at the same time. timeout: seconds for a call. Close it when done."""

    def __init__(self, rewards: Sequence[Reward], *, count: int, timeout: float) -> None:
        self._recipes = [reward.recipe for reward in rewards if reward.recipe is not None]
        assert len(self._recipes) == len(rewards)
        self._shapes = [reward.shape for reward in rewards]
        self._count, self._timeout = count, timeout
        self._idle: list[_Worker] = []
        self._taken: set[_Worker] = set()
        self._changed = threading.Condition()
        self._failed_starts = 0

    def attempts(self, samples: Sequence[Sample], *, on_wait: Callable[[], None] | None = None) -> list[list[Attempt]]:
        """For each reward, the score of each sample or what its call ended in.

        on_wait: called several times a second; what it raises ends the wait and the workers that are busy for it.
        Raises RewardError when workers cannot be started.
        """
        batch = _Batch(samples, [[None] * len(samples) for _ in self._recipes], deque(self._jobs(len(samples))))
        with selectors.DefaultSelector() as selector:
            busy: dict[_Worker, None] = {}
            try:
                while batch.queue or busy:
                    while batch.queue and (worker := self._take(wait=not busy)):
                        worker.job, worker.since = batch.queue.popleft(), time.monotonic()
                        busy[worker] = None
                        selector.register(worker.child.socket, selectors.EVENT_READ, worker)
                        if worker.ready:
                            self._hand_over(worker, batch)
                    for key, _ in selector.select(_TICK):
                        self._hear(key.data, batch)
                    for worker in list(busy):
                        if worker.job is not None and (late := self._overdue(worker)):
                            self._lose(worker, batch, late)
                        if worker.job is None:
                            selector.unregister(worker.child.socket)
                            del busy[worker]
                            self._give_back(worker)
                    if on_wait:
                        on_wait()
            finally:
                for worker in busy:
                    worker.child.kill()
                    self._give_back(worker)
        return batch.results()

    def close(self) -> None:
        """End all workers."""
        with self._changed:
            for worker in [*self._idle, *self._taken]:
                worker.child.kill()
            self._idle.clear()

    def _jobs(self, samples: int) -> list[_Job]:
        size = max(1, min(CHUNK, math.ceil(samples / (4 * self._count))))
        jobs = []
        for k, shape in enumerate(self._shapes):
            if shape.together or shape.is_async:  # one call for all, or all in flight at once
                jobs.append(_Job(k, list(range(samples))))
            else:
                jobs += [_Job(k, list(range(i, min(i + size, samples)))) for i in range(0, samples, size)]
        return [job for job in jobs if job.todo]

    def _take(self, *, wait: bool) -> _Worker | None:
        """A worker to use; None when all are in use. wait: until one is there."""
        with self._changed:
            while not self._may_take():
                if not wait:
                    return None
                self._changed.wait(_TICK)
            worker = None
            while self._idle and worker is None:
                worker = self._idle.pop()
                if worker.child.process.poll() is not None:  # something that a call left behind ended it
                    worker.child.kill()
                    worker = None
            if worker is None:
                try:
                    worker = _Worker(self._recipes)
                except OSError as error:
                    raise RewardError(f"a worker process for rewards cannot be started: {error}") from error
            self._taken.add(worker)
            return worker

    def _may_take(self) -> bool:
        now = time.monotonic()
        slow = sum(worker.ready and now - worker.since > SLOW for worker in self._taken)
        return len(self._taken) - slow < self._count and len(self._taken) < 2 * self._count + EXTRA

    def _give_back(self, worker: _Worker) -> None:
        with self._changed:
            self._taken.discard(worker)
            if worker.child.process.poll() is None:
                self._idle.append(worker)
            self._changed.notify_all()

    def _hand_over(self, worker: _Worker, batch: _Batch) -> None:
        assert worker.job is not None
        worker.left = dict(enumerate(worker.job.todo))
        samples = [batch.samples[i] for i in worker.job.todo]
        message = {"reward": worker.job.reward, "samples": samples, "timeout": self._timeout}
        worker.since = time.monotonic()
        try:
            worker.child.send(message, timeout=SEND_SECONDS)
        except OSError as error:
            self._lose(worker, batch, RewardError(f"its worker process did not take the call: {error}"))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            self._lose(worker, batch, RewardError(f"the record cannot be sent to a worker process: {error}"))

    def _hear(self, worker: _Worker, batch: _Batch) -> None:
        try:
            for message in worker.child.read():
                worker.since = time.monotonic()
                if "refused" in message and not worker.ready:
                    raise RewardError(f"in a worker process: {message['refused']}")
                if "ready" in message and not worker.ready:
                    worker.ready, self._failed_starts = True, 0
                    self._hand_over(worker, batch)
                elif "end" in message:
                    if worker.left:
                        raise BadReply(f"{len(worker.left)} results are missing")
                    worker.job = None
                else:
                    batch.note(worker, message)
        except EOFError:
            self._lose(worker, batch, None)
        except (BadReply, OSError, KeyError, TypeError, AttributeError) as error:
            self._lose(worker, batch, RewardError(f"its worker process answered nonsense: {error}"))

    def _overdue(self, worker: _Worker) -> TooLate | None:
        assert worker.job is not None
        limit = self._timeout + (GRACE if self._shapes[worker.job.reward].is_async else 0.0)
        if time.monotonic() - worker.since <= (limit if worker.ready else START_SECONDS):
            return None
        return TooLate(f"took longer than {self._timeout:g} s (--reward_timeout)" if worker.ready else "did not start")

    def _lose(self, worker: _Worker, batch: _Batch, why: RewardError | None) -> None:
        """Kill a worker. The call it was in has failed; the others of its job are tried again. why: None = it died."""
        if why is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.child.process.wait(SOON)  # its own status says more than our signal's
        status, job = worker.child.kill(), worker.job
        assert job is not None
        worker.job = None
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= 3 or isinstance(why, TooLate):
                raise RewardError(f"worker processes for rewards do not start: {_ending(status)}, {why or 'no word'}")
            batch.queue.append(job)
            return
        left = list(worker.left.values())
        shape = self._shapes[job.reward]
        if (shape.together or shape.is_async) and len(left) > 1:  # which of them it was cannot be seen
            batch.queue.extend(_Job(job.reward, [i]) for i in left)
            return
        if left:
            batch.found[job.reward][left[0]] = why or Failed(
                f"the call ended its process ({_ending(status)})", f"the process of the call ended: {_ending(status)}"
            )
        if left[1:]:
            batch.queue.append(_Job(job.reward, left[1:]))


@dataclass
class _Batch:
    """What is scored. found: by reward and place; queue: what no worker has yet."""

    samples: Sequence[Sample]
    found: list[list[Attempt | None]]
    queue: deque[_Job]

    def note(self, worker: _Worker, message: dict[str, Any]) -> None:
        """Keep a result; raises KeyError, TypeError or BadReply for one that is none, or is not awaited."""
        place = worker.left[message["i"]]
        if "error" in message:
            line, shown = str(message["error"]), str(message["traceback"])
            attempt: Attempt = NotScored(line) if message["none"] else Failed(line, shown)
        else:
            values = {"": message["score"], **message["parts"]}
            if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values.values()):
                raise BadReply("a score that is no number")
            attempt = Score(float(values.pop("")), {name: float(value) for name, value in values.items()})
        assert worker.job is not None
        del worker.left[message["i"]]
        self.found[worker.job.reward][place] = attempt

    def results(self) -> list[list[Attempt]]:
        """All of them, once the queue is empty and no worker is busy."""
        done = [[attempt for attempt in row if attempt is not None] for row in self.found]
        assert all(len(row) == len(self.samples) for row in done)
        return done


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
