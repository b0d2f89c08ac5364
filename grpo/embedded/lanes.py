"""Threads of Python that work side by side on one copy of the weights, each with prompts of its own.

Two cores that share every product of a small model wait for each other at each of them; with a product each they do
not, and torch holds Python's lock in none. So on a CPU the groups of a step are shared out among a few threads, in
sampling, log-probs and gradients, where the model is small enough for that to pay and is run by code that several
threads may run (llama_like.py). What is added up is added in the order of the lanes, whoever was first: a result
depends on how many threads there are, as sums do, and on nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import torch

from grpo.embedded.llama_like import can_be_read_out

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy

T = TypeVar("T")
Tell = Callable[[int], None]
# Measured on two cores (bench/README.md): 3 million weights sample 1.3 to 1.5 times as fast and learn 1.2 to 1.5 times,
# 30 million 1.3 and 1.1 times; at 494 million reading the weights twice costs more than it brings.
LARGEST = 32_000_000
MOST = 4  # Python itself runs in one thread at a time


def lanes_of(policy: Policy) -> int:
    """How many lanes this policy's work is shared out among at most: 1 = none beside the calling thread."""
    if policy.adapter is not None or not can_be_read_out(policy):
        return 1
    return lanes_for(sum(weight.numel() for weight in policy.model.parameters()), torch.get_num_threads())


def lanes_for(weights: int, threads: int) -> int:
    """Lanes of a model of Llama's build with so many weights, on a CPU in float32 with so many threads."""
    if weights > LARGEST or threads < 2:
        return 1
    return max(range(2, min(MOST, threads) + 1), key=lambda lanes: (threads // lanes * lanes, lanes))


def balanced(costs: Sequence[float], count: int) -> list[list[int]]:
    """Which of the items each of `count` takes, ascending: the dearest first, each to whom has least to do."""
    load, taken = [0.0] * count, [[] for _ in range(count)]
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        least = load.index(min(load))
        load[least] += costs[item]
        taken[least].append(item)
    return [sorted(items) for items in taken]


def side_by_side(works: Sequence[Callable[[Tell], T]], on_told: Tell = lambda done: None) -> list[T]:
    """What each work gives, in order; each in a lane of its own, one alone in the calling thread.

    A work tells how much it has done; on_told, in the calling thread, is told the sum. What it raises ends the works
    where they tell next, as what one of them raises ends the others; it is raised when all have ended. Gradients are
    wanted in the lanes where they are here.
    """
    if len(works) == 1:
        return [works[0](on_told)]
    pool = _pool(len(works), max(1, torch.get_num_threads() // len(works)))
    news: SimpleQueue[tuple[int, int | None]] = SimpleQueue()
    ended, gradients = Event(), torch.is_grad_enabled()  # which torch keeps for each thread

    def lane(number: int) -> T:
        def tell(done: int) -> None:
            if ended.is_set():
                raise _Ended
            news.put((number, done))

        try:
            with torch.set_grad_enabled(gradients):
                return works[number](tell)
        finally:
            news.put((number, None))

    futures: list[Future[T]] = [pool.submit(lane, number) for number in range(len(works))]
    done, open_ = [0] * len(works), len(works)
    try:
        while open_:
            number, much = news.get()
            if much is None:
                open_ -= 1
                if futures[number].exception() is not None:
                    ended.set()
            elif not ended.is_set():
                done[number] = much
                on_told(sum(done))
    finally:
        ended.set()
        wait(futures)
    raised = [error for future in futures if (error := future.exception()) is not None]
    for error in raised:
        if not isinstance(error, _Ended):
            raise error
    return [future.result() for future in futures]


class _Ended(Exception):
    """Another lane failed, or the calling thread wants no more."""


@functools.cache
def _pool(count: int, threads: int) -> ThreadPoolExecutor:
    """Threads that stay, since each has threads of torch's own."""

    def begin() -> None:
        torch.get_num_threads()  # torch sets a new thread's number when it is first asked, and would do so later
        torch.set_num_threads(threads)

    return ThreadPoolExecutor(count, thread_name_prefix="lane", initializer=begin)
