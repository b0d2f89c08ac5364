"""Rewards in worker processes: whatever one returns or does has a stated outcome, and none ends or hangs the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reward_funcs import RewardError, Sample, Score, build_reward, compute_score, load_reward, score_batch, workers
from reward_funcs.errors import Failed
from reward_funcs.scoring import Scoring

pytestmark = pytest.mark.slow  # processes of its own

FILE = """
import asyncio, ctypes, os, re, signal, sys, threading, time
import numpy as np

class Odd(Exception):
    def __str__(self):
        raise ValueError("no text")

async def later():
    return 0.5

def generator():
    yield 1.0

def fork():
    return 2.0 if os.fork() else 3.0

def raises(error):
    raise error

def recurse():
    return recurse()

def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    return 1.0

def closes_everything():
    os.closerange(3, 200)
    return 1.0

KINDS = {
    "float": lambda: 0.25, "int": lambda: 1, "bool": lambda: True, "numpy": lambda: np.float32(0.5),
    "zero-d": lambda: np.array(2.0), "dict": lambda: {"score": 1, "a": 2, "text": "x"},
    "coroutine": later, "fork": fork, "prints": lambda: print("x" * 100_000) or 1.0,
    "thread": leaves_a_thread, "deep": lambda: {"score": 1.0, "a/b": 2.0},
    "None": lambda: None, "nan": lambda: float("nan"), "inf": lambda: float("inf"), "str": lambda: "1",
    "bytes": lambda: b"1", "list": lambda: [1.0], "tuple": lambda: (1.0, 2), "set": lambda: {1.0},
    "no score": lambda: {"reward": 1}, "score None": lambda: {"score": None}, "complex": lambda: 1j,
    "array": lambda: np.zeros(3), "generator": generator, "object": object, "type": lambda: float,
    "huge int": lambda: 10**400, "parts": lambda: {"score": 1.0} | {str(i): i for i in range(5000)},
    "bad part": lambda: {"score": 1.0, "a": float("nan")},
    "exception": lambda: 1 / 0, "SystemExit": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: raises(KeyboardInterrupt()), "odd exception": lambda: raises(Odd()),
    "recursion": recurse, "long message": lambda: raises(ValueError("x" * 10**6)),
    "exit": lambda: os._exit(3), "segfault": lambda: ctypes.string_at(0), "abort": os.abort,
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM), "closed": closes_everything,
    "kills its group": lambda: os.killpg(0, signal.SIGKILL),
    "100 MB": lambda: "x" * 10**8,
    "sleep": lambda: time.sleep(1000), "spin": lambda: [0 for _ in iter(int, 1)],
    "regex": lambda: re.match(r"(a+)+$", "a" * 40 + "b"),
    "ignores signals": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(1000)),
}

def kind(solution_str):
    return KINDS[solution_str]()

def length(solution_str):
    return len(solution_str)

def lists(completions):
    if "sleep" in completions:
        time.sleep(1000)
    return [None if text == "none" else float(len(text)) for text in completions]

async def waits(solution_str):
    await asyncio.sleep(1000 if solution_str == "sleep" else 0.05)
    return 1.0

def pid(solution_str):
    time.sleep(0.02)
    return os.getpid()
"""

SCORES = {
    "float": 0.25,
    "int": 1,
    "bool": 1,
    "numpy": 0.5,
    "zero-d": 2,
    "dict": 1,
    "coroutine": 0.5,
    "fork": 2,
    "prints": 1,
    "thread": 1,
    "deep": 1,
}
FAILURES = {
    "None": "None (is a `return` missing?)",
    "nan": "returned nan",
    "inf": "returned inf",
    "str": "'1' (str)",
    "bytes": "(bytes)",
    "list": "(list)",
    "tuple": "(tuple)",
    "set": "(set)",
    "no score": "without 'score'",
    "score None": "returned None",
    "complex": "(complex)",
    "array": "(ndarray)",
    "generator": "(generator)",
    "object": "(object)",
    "type": "(type)",
    "huge int": "a finite number",
    "parts": "5000 parts; at most 1000",
    "bad part": "nan for the part 'a'",
    "exception": "ZeroDivisionError",
    "SystemExit": "SystemExit: 3",
    "KeyboardInterrupt": "KeyboardInterrupt",
    "odd exception": "Odd",
    "recursion": "RecursionError",
    "long message": "ValueError: xxx",
    "exit": "ended its process (exit code 3)",
    "segfault": "ended its process (signal SIGSEGV)",
    "abort": "ended its process (signal SIGABRT)",
    "terminate": "ended its process (signal SIGTERM)",
    "closed": "ended its process",
    "100 MB": "(str)",
    "kills its group": "ended its process (signal SIGKILL)",
}
HANGS = ["sleep", "spin", "regex", "ignores signals"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rewards") / "kinds.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def samples(*solutions: str) -> list[Sample]:
    return [Sample("m", solution, "", {"index": i}) for i, solution in enumerate(solutions)]


@pytest.fixture(scope="module")
def outcomes(file: str) -> dict[str, object]:
    """Every kind in one batch, with a good call between any two."""
    names = [*SCORES, *FAILURES]
    batch = samples(*[text for name in names for text in (name, "float")])
    with Scoring(load_reward(f"{file}:kind"), workers=2, timeout=20) as scoring:
        attempts = scoring.attempts(batch)
    assert attempts[1::2] == [Score(0.25)] * len(names)
    return dict(zip(names, attempts[::2], strict=True))


@pytest.mark.parametrize("name", SCORES)
def test_what_is_a_score(outcomes, name):
    got = outcomes[name]
    assert isinstance(got, Score), got
    assert got.score == SCORES[name]
    assert got.parts == {"dict": {"a": 2.0}, "deep": {"a/b": 2.0}}.get(name, {})


@pytest.mark.parametrize("name", FAILURES)
def test_what_is_a_failed_call_and_harms_no_other(outcomes, name):
    got = outcomes[name]
    assert isinstance(got, Failed), got
    assert FAILURES[name] in str(got)
    assert len(str(got)) < 700
    assert "\n" not in str(got)
    assert 0 < len(got.traceback) < 5_000


def test_the_traceback_is_that_of_the_user_s_file(outcomes):
    shown = outcomes["exception"].traceback.splitlines()
    assert shown[-1] == "ZeroDivisionError: division by zero"
    assert "kinds.py" in shown[1]


@pytest.mark.slow
def test_hangs_cost_one_deadline_however_many_workers_they_hold(file, monkeypatch):
    # RELIABILITY 6.18: four of 60 hang, each in its own way, and there are two workers
    monkeypatch.setattr(workers, "SLOW", 0.3)
    batch = samples(*[HANGS[i // 15] if i % 15 == 7 else "float" for i in range(60)])
    with Scoring(load_reward(f"{file}:kind"), workers=2, timeout=2) as scoring:
        scoring.attempts(samples("float", "float", "float", "float"))  # workers are up
        began = time.monotonic()
        got = score_batch(scoring, batch, max_errors=0.1)
        took = time.monotonic() - began
    assert [i for i, value in enumerate(got.scores) if value is None] == [7, 22, 37, 52]
    assert got.errors == 4
    assert got.first_error is not None
    assert "took longer than 2 s (--reward_timeout)" in got.first_error
    assert 2 <= took < 3.9  # 4 s if a worker that waits made no room


def test_results_keep_the_order_of_the_samples(file):
    with Scoring(load_reward(f"{file}:length"), workers=3, timeout=20) as scoring:
        got = score_batch(scoring, samples(*["x" * (i % 50) for i in range(500)]), max_errors=0)
        assert got.scores == [float(i % 50) for i in range(500)]
        assert scoring.attempts([]) == []


def test_calls_run_in_several_processes_and_none_is_ours(file):
    with Scoring(load_reward(f"{file}:pid"), workers=2, timeout=20) as scoring:
        pids = {got.score for got in scoring.attempts(samples(*"abcdefghijkl")) if isinstance(got, Score)}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.slow
def test_list_and_async_rewards_lose_only_the_response_that_hangs(file):
    with Scoring(load_reward(f"{file}:lists"), workers=2, timeout=1) as scoring:
        got = scoring.attempts(samples("a", "sleep", "none", "bb"))
        assert [type(one).__name__ for one in got] == ["Score", "TooLate", "NotScored", "Score"]
    with Scoring(load_reward(f"{file}:waits"), workers=1, timeout=1) as scoring:
        began = time.monotonic()
        got = scoring.attempts(samples(*["a"] * 50, "sleep"))
        assert [type(one).__name__ for one in got] == ["Score"] * 50 + ["Failed"]
        assert time.monotonic() - began < 4


def test_all_named_rewards_come_back_with_their_parts(file):
    reward = build_reward(names=f"accuracy,format,{file}:length", weights=[1, 0.5, 0.1])
    batch = [Sample("math", "42", "42"), Sample("math", "", "42")]
    with Scoring(reward, workers=1, timeout=20) as scoring:
        assert scoring.notes == []
        got = score_batch(scoring, batch, max_errors=0)
    assert got.scores == [1.2, 0.0]
    assert got.parts[0] == {"accuracy": 1.0, "format": 0.0, "length": 2.0}
    assert reward("math", "42", "42").score == got.scores[0]


def test_an_edited_file_changes_nothing_in_a_run_that_has_begun(tmp_path):
    path = tmp_path / "r.py"
    path.write_text("def compute_score(solution_str):\n    return 1\n")
    with Scoring(load_reward(str(path)), workers=1, timeout=20) as scoring:
        path.write_text("def compute_score(solution_str):\n    return 2\n")
        assert scoring.attempts(samples("a")) == [Score(1.0)]


def test_a_function_that_a_worker_cannot_import_stays_here_and_that_is_said():
    local = build_reward(function=lambda solution_str: os.getpid())
    with Scoring(local, workers=2, timeout=20) as scoring:
        assert scoring.attempts(samples("a")) == [Score(float(os.getpid()))]
        (note,) = scoring.notes
    assert "without a deadline" in note
    with Scoring(local, workers=0, timeout=20) as scoring:
        assert scoring.notes == []  # nothing was asked of workers


def test_a_function_from_python_that_a_worker_can_import_goes_there():
    with Scoring(build_reward(function=compute_score), workers=1, timeout=20) as scoring:
        assert scoring.notes == []
        assert scoring.attempts([Sample("math", "42", "42"), Sample("math", "41", "42")]) == [Score(1.0), Score(0.0)]


def test_rewards_of_this_room_can_stay_here_where_the_process_is_a_worker_already(file):
    with Scoring(build_reward(names="format"), workers=1, timeout=20, ours_here=True) as scoring:
        assert scoring._workers is None
    with Scoring(load_reward(f"{file}:length"), workers=1, timeout=20, ours_here=True) as scoring:
        assert scoring._workers is not None


def test_a_file_that_loads_here_and_not_in_a_worker_stops_the_run(tmp_path):
    path = tmp_path / "r.py"
    path.write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise RuntimeError('only once')\n"
        "def compute_score(solution_str):\n    return 1\n"
    )
    with Scoring(load_reward(str(path)), workers=1, timeout=20) as scoring:
        with pytest.raises(RewardError, match=r"in a worker process: .*r.py, line 3: does not import: RuntimeError"):
            scoring.attempts(samples("a"))


def test_waiting_can_be_ended_and_leaves_no_process(file):
    def stop() -> None:
        if time.monotonic() - began > 0.6:
            raise InterruptedError

    with Scoring(load_reward(f"{file}:kind"), workers=2, timeout=1000, on_wait=stop) as scoring:
        began = time.monotonic()
        with pytest.raises(InterruptedError):
            scoring.attempts(samples(*HANGS))
        assert time.monotonic() - began < 5
    assert children() == set()


def test_several_threads_may_score_at_once(file):
    found: dict[int, list[float | None]] = {}
    with Scoring(load_reward(f"{file}:length"), workers=2, timeout=20) as scoring:

        def work(k: int) -> None:
            found[k] = score_batch(scoring, samples(*["x" * k] * 20), max_errors=0).scores

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {k: [float(k)] * 20 for k in range(6)}


def test_no_process_and_no_descriptor_is_left(file):
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with Scoring(load_reward(f"{file}:kind"), workers=2, timeout=1) as scoring:
        scoring.attempts(samples("float", "exit", "sleep", "fork", "segfault"))
    assert children() == set()
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_timeout_has_to_be_a_time():
    with pytest.raises(RewardError, match="--reward_timeout 0 has to be more"):
        Scoring(load_reward(None), workers=1, timeout=0)


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["sleep", "regex"])
def test_workers_end_with_their_parent_even_when_it_is_killed(file, hang, repo):
    program = (
        "import sys; from reward_funcs import *; from reward_funcs.scoring import Scoring\n"
        f"s = Scoring(load_reward({file + ':kind'!r}), workers=1, timeout=1000)\n"
        "s.attempts([Sample('m', 'float', '')]); print(s._workers._idle[0].child.process.pid, flush=True)\n"
        f"s.attempts([Sample('m', {hang!r}, '')])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=repo, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(50):
        if not running(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children() -> set[str]:
    """Worker processes of this test process, symbolic comparison aside."""
    done = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return {line for line in done.stdout.splitlines() if "worker_main" in line}
