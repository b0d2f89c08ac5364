"""Runs `async def` rewards from ordinary code: one event loop per process, in a thread of its own.

The same loop for the whole run, so that a session or client which a reward keeps stays usable; and it works where the
caller has a running loop (a notebook).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from reward_funcs.errors import TooLate

if TYPE_CHECKING:
    import asyncio

AT_ONCE = 64  # calls in flight

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork has no thread that runs its parent's loop


def run_all(
    calls: Sequence[Callable[[], Awaitable[Any]]], done: Callable[[int, Any], None], *, timeout: float | None = None
) -> None:
    """Await every call, AT_ONCE at a time; done(i, result) is told as each ends, with the exception where it raised.

    timeout: seconds for one call; a longer one is cancelled, and its result is a TooLate.
    """
    import asyncio  # 30 ms, and most rewards need none of it

    async def guarded(call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except BaseException as error:  # noqa: BLE001 - the caller decides; SystemExit here would end the loop
            return error

    async def one(i: int, call: Callable[[], Awaitable[Any]], slots: asyncio.Semaphore) -> None:
        async with slots:
            task = asyncio.ensure_future(guarded(call))
            ended, _ = await asyncio.wait({task}, timeout=timeout)
            if not ended:
                task.cancel()
        done(i, task.result() if ended else TooLate(f"took longer than {timeout:g} s (--reward_timeout)"))

    async def everything() -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(one(i, call, slots) for i, call in enumerate(calls)))

    asyncio.run_coroutine_threadsafe(everything(), _loop()).result()


def _loop() -> asyncio.AbstractEventLoop:
    import asyncio

    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
        return loop
