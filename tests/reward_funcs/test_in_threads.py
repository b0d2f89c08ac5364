"""The rewards of this room in threads: order, deadlines, stopping; programs of a step wait at the same time."""

from __future__ import annotations

import os
import threading
import time

import pytest

from reward_funcs import Reward, Sample, Score, build_reward
from reward_funcs.errors import TooLate
from reward_funcs.in_threads import attempts_in_threads
from reward_funcs.scoring import THREADS, Scoring


def samples(*texts: str) -> list[Sample]:
    return [Sample("qa", text, "") for text in texts]


def length(solution_str: str) -> float:
    """Shorter texts take longer, so that results come in another order than calls."""
    time.sleep(0.02 / (1 + len(solution_str)))
    return len(solution_str)


def test_results_come_in_the_order_of_the_samples_and_failures_where_they_belong():
    def score(solution_str: str) -> float:
        return length(solution_str) if solution_str != "bad" else 1 / 0

    texts = ["", "a", "bad", "aaaa", "aa", "bad"]
    found = attempts_in_threads(Reward(score), samples(*texts), threads=3, timeout=20)
    assert [one.score if isinstance(one, Score) else type(one) for one in found] == [
        0.0, 1.0, ZeroDivisionError, 4.0, 2.0, ZeroDivisionError
    ]  # fmt: skip
    assert attempts_in_threads(Reward(score), [], threads=3, timeout=20) == []


@pytest.mark.slow
def test_a_call_over_its_deadline_is_too_late_and_costs_the_others_nothing():
    go_on = threading.Event()

    def waits(solution_str: str) -> float:
        return float(go_on.wait(30)) if solution_str == "hang" else 1.0

    found = attempts_in_threads(Reward(waits), samples("a", "hang", "b", "c"), threads=2, timeout=0.1)
    go_on.set()
    assert [one.score if isinstance(one, Score) else str(one) for one in found] == [
        1.0, "took longer than 0.1 s (--reward_timeout)", 1.0, 1.0
    ]  # fmt: skip
    assert isinstance(found[1], TooLate)


@pytest.mark.slow
def test_what_the_caller_raises_while_it_waits_ends_the_wait_and_begins_no_further_call():
    called: list[str] = []

    def slow(solution_str: str) -> float:
        called.append(solution_str)
        time.sleep(0.4)
        return 1.0

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        attempts_in_threads(Reward(slow), samples(*"abcdef"), threads=2, timeout=20, on_wait=stop)
    time.sleep(0.5)
    assert called == ["a", "b"]


def test_ctrl_c_in_a_reward_passes_on():
    def stop() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempts_in_threads(Reward(stop), samples("a", "b"), threads=2, timeout=20)


@pytest.mark.slow
@pytest.mark.skipif(THREADS < 2, reason="needs two programs at a time")
def test_the_programs_of_a_step_run_at_the_same_time_in_order(jail: str, monkeypatch: pytest.MonkeyPatch):
    # each answers right only if its sleep was its own; one after the other they would take 8 x 0.5 s
    monkeypatch.setenv("CODE_REWARD", f"jail={jail}")
    truth = '{"kind": "call", "entry": "f", "cases": [{"args": [%d], "expected": %d}]}'
    program = "import time\ndef f(x):\n    time.sleep(0.5)\n    return x\n"
    batch = [Sample("code", program, truth % (n, n if n % 3 else -1)) for n in range(8)]
    with Scoring(build_reward(), workers=1, timeout=30, ours_here=True) as scoring:
        scoring.attempts(batch[:1])
        began, most = time.monotonic(), threading.active_count()
        seen: list[int] = []
        scoring.on_wait = lambda: seen.append(threading.active_count() - most)
        found = scoring.attempts(batch)
        assert time.monotonic() - began < 8 * 0.5
    assert [one.score for one in found] == [float(n % 3 > 0) for n in range(8)]  # type: ignore[union-attr]
    assert max(seen) == min(8, THREADS) == min(8, 2 * (os.cpu_count() or 1))


@pytest.mark.slow
def test_a_program_longer_than_the_reward_s_deadline_is_a_failed_call_and_no_zero(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CODE_REWARD", "timeout=9")
    truth = '{"kind": "call", "entry": "f", "cases": [{"args": [1], "expected": 1}]}'
    batch = [
        Sample("code", text, truth)
        for text in ("def f(x):\n    return x", "x = 1\nwhile True:\n    x += 1\n", "def f(x): return x")
    ]
    with Scoring(build_reward(), workers=1, timeout=4, ours_here=True) as scoring:
        scoring.attempts(batch[:1])  # starts the server
        found = scoring.attempts(batch)
    assert [one.score if isinstance(one, Score) else type(one) for one in found] == [1.0, TooLate, 1.0]
