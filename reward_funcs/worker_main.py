"""What runs in a worker process: makes the rewards of its recipes, then scores what it is sent, one result at a time.

The other end is workers.py. Messages in: {"recipes", "without_jail"}, once; then, for each job, {"reward": which,
"samples", "timeout"}. Messages out: {"ready"} or {"refused": why}; then, for each sample, {"i": which, "score",
"parts"} or {"i", "error", "traceback", "none": it does not apply}, and {"end"}.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from reward_funcs.child import Parent
from reward_funcs.code_options import run_without_jail
from reward_funcs.errors import NotScored, RewardError
from reward_funcs.recipes import rebuilt
from reward_funcs.returns import Attempt, Score
from reward_funcs.score import Reward, last_line, shown_traceback

MOST_PARTS = 1_000


def main(fd: int, lifeline: int) -> None:
    """Work until the parent is gone."""
    parent = Parent(fd, lifeline)
    begin = parent.receive()
    if begin is None:
        return
    run_without_jail(begin["without_jail"])
    try:
        rewards = [rebuilt(recipe) for recipe in begin["recipes"]]
    except RewardError as error:
        parent.send({"refused": str(error)})
        return
    parent.send({"ready": True})
    try:
        while (job := parent.receive()) is not None:
            reward = rewards[job["reward"]]
            with contextlib.suppress(KeyboardInterrupt):  # raised by the reward, and sent as its failure
                reward.attempts(
                    job["samples"],
                    timeout=job["timeout"],
                    done=lambda i, attempt, reward=reward: parent.send({"i": i} | _told(attempt, reward)),
                )
            parent.send({"end": True})
    except OSError:  # a reward closed the socket, or there is no parent: either way nobody listens
        os._exit(1)


def _told(attempt: Attempt, reward: Reward) -> dict[str, Any]:
    if isinstance(attempt, Score) and len(attempt.parts) <= MOST_PARTS:
        return {"score": attempt.score, "parts": attempt.parts}
    if isinstance(attempt, Score):
        attempt = RewardError(f"{reward.place} returned {len(attempt.parts)} parts; at most {MOST_PARTS} can be curves")
    try:
        return {
            "error": last_line(attempt, reward),
            "traceback": shown_traceback(attempt),
            "none": isinstance(attempt, NotScored),
        }
    except Exception as odd:  # noqa: BLE001 - an exception whose own text raises
        name = type(attempt).__name__
        return {"error": f"{name}, which cannot be shown ({type(odd).__name__})", "traceback": name, "none": False}
