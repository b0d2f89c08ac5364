"""Algebra in processes that are killed: the deadline, the same verdict from anywhere, and nothing executed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from reward_funcs import build_reward, compute_score, load_reward, symbolic, symbolic_main

PAIRS = [
    (r"\boxed{1+x}", "x+1", 1.0),
    (r"\boxed{\sec^2 y}", r"\tan^2 y+1", 1.0),
    (r"\boxed{x+2}", "x+1", 0.0),
    (r"\boxed{9^{9^{9^{9}}}}", "9^{9^{9}}", 0.0),
]
HANGS = ["9^{9^{9}}", "(10^9)!", r"\binom{10^7}{5\cdot10^6}", r"\sum_{k=1}^{10^9}1/k", "9^{9^{9^{9}}}"]


@pytest.fixture(autouse=True, scope="module")
def _installed(missing):
    if not symbolic.available():
        missing(f"{symbolic.PACKAGE} is not installed")


def verdicts() -> list[float]:
    symbolic._verdicts.clear()
    return [compute_score("math", response, truth) for response, truth, _ in PAIRS]  # type: ignore[return-value]


EXPECTED = [verdict for _, _, verdict in PAIRS]


@pytest.mark.slow
def test_the_verdict_is_the_same_in_the_main_thread_a_thread_pool_and_asyncio():
    # verl#5635, MV#50: signal.alarm made every MATH score 0 outside of the main thread
    assert verdicts() == EXPECTED
    with ThreadPoolExecutor(4) as pool:
        assert [one.result() for one in [pool.submit(verdicts) for _ in range(8)]] == [EXPECTED] * 8

    async def inside() -> list[float]:
        loop = asyncio.get_running_loop()
        return verdicts() if loop else []

    async def in_executor() -> list[float]:
        return await asyncio.get_running_loop().run_in_executor(None, verdicts)

    assert asyncio.run(inside()) == EXPECTED
    assert asyncio.run(in_executor()) == EXPECTED


IN_A_DAEMON = """
import multiprocessing, signal, sys, threading
from tests.reward_funcs.test_symbolic import EXPECTED, verdicts

def work(results):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    found = []
    thread = threading.Thread(target=lambda: found.extend(verdicts()))
    thread.start()
    thread.join()
    results.put(found)

if __name__ == "__main__":
    assert verdicts() == EXPECTED
    context = multiprocessing.get_context(sys.argv[1])
    results = context.Queue()
    process = context.Process(target=work, args=(results,), daemon=True)
    process.start()
    assert results.get(timeout=120) == EXPECTED
    process.join()
    assert verdicts() == EXPECTED
    print("the same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_the_verdict_is_the_same_in_a_worker_process_that_may_have_no_children_of_its_own(tmp_path, method, repo):
    # A daemonic process, as of a pool, cannot use multiprocessing; after a fork it must not talk to its parent's child;
    # and a framework's workers set signal handlers of their own.
    (tmp_path / "program.py").write_text(IN_A_DAEMON)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), method],
        env=os.environ | {"PYTHONPATH": str(repo)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.stdout == "the same\n", done.stderr


def test_what_hangs_is_refused_before_it_reaches_sympy():
    began = time.monotonic()
    for text in HANGS:
        assert not symbolic._worth_asking(text, "x^2+1")
        assert not symbolic._worth_asking(text, "9^{9}")
        assert compute_score("math", rf"\boxed{{{text}}}", "7") == 0.0
    assert time.monotonic() - began < 1


@pytest.mark.slow
@pytest.mark.parametrize("text", ["9^{9^{9}}", "(10^9)!"])
def test_what_hangs_in_sympy_is_killed_at_the_deadline_and_the_next_pair_is_answered(text):
    # the refusals left out: straight to the process
    assert symbolic._ask("x+1", "1+x", 3.0)
    began = time.monotonic()
    assert not symbolic._ask(text, "x", 0.4)
    assert 0.3 < time.monotonic() - began < 2
    began = time.monotonic()
    assert symbolic._ask("x+1", "1+x", 3.0)
    assert time.monotonic() - began < 1  # a fork, not a new start of sympy


@pytest.mark.slow
def test_many_comparisons_of_one_pair_share_its_deadline():
    budget = symbolic.Budget(seconds=0.0)
    symbolic._verdicts.clear()
    assert symbolic.Budget().same("x+1", "1+x")
    assert not budget.same("x+2", "2+x")  # its time is used up
    assert budget.same("x+1", "1+x")  # remembered


def test_verdicts_are_remembered():
    symbolic._verdicts.clear()
    assert symbolic.Budget().same("x+7", "7+x")
    began = time.monotonic()
    for _ in range(1000):
        assert symbolic.Budget().same("x+7", "7+x")
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {file}')",
        "().__class__.__base__.__subclasses__()",
        r"\text{{__import__('os').system('touch {file}')}}",
        "x + open('{file}', 'w').write('1')",
        "exec(\"open('{file}', 'w')\")",
        "x^{{__import__('os').system('touch {file}')}}",
    ],
)
def test_no_answer_is_executed(tmp_path, text):
    # CVE-2026-6878: verl's prime_math evaluates answers
    file = tmp_path / "executed"
    text = text.format(file=file)
    assert compute_score("math", rf"\boxed{{{text}}}", "x+1") == 0.0
    assert compute_score("math", text, text + "+x") == 0.0
    symbolic._ask(text, "x+1", 3.0)  # the refusals left out
    symbolic._ask("x+1", text, 3.0)
    assert not file.exists()


@pytest.mark.slow
def test_the_process_that_compares_can_touch_nothing(tmp_path):
    # Should text ever reach Python's eval there
    file = tmp_path / "touched"
    program = (
        "import sys, os\nfrom reward_funcs import symbolic_main as m\nm._same('x', 'x')\nsys.addaudithook(m._refuse)\n"
        "import subprocess, socket\nrefused = 0\n"
        f"for act in (lambda: eval('1+1'), lambda: exec('x=1'), lambda: os.system('touch {file}'),\n"
        f"            lambda: open({str(file)!r}, 'w'), lambda: subprocess.run(['true']), lambda: os.remove('x'),\n"
        "            lambda: socket.create_connection(('127.0.0.1', 9)), lambda: os.fork()):\n"
        "    try:\n        act()\n    except PermissionError:\n        refused += 1\n"
        "print(refused, m._same('x+3', '3+x'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=os.getcwd())
    assert done.stdout.split() == ["8", "True"], done.stderr
    assert not file.exists()


@pytest.mark.slow
def test_a_process_that_is_killed_from_outside_costs_one_verdict_and_no_more():
    assert symbolic._ask("x+1", "1+x", 3.0)
    for child in symbolic._processes[os.getpid()]._idle:
        child.process.kill()
    symbolic._ask("x+1", "1+x", 3.0)
    symbolic._ask("x+1", "1+x", 3.0)
    assert any(symbolic._ask("x+1", "1+x", 3.0) for _ in range(3))


def test_without_the_package_the_exact_path_decides_alone_and_that_is_said(monkeypatch):  # S3-01
    monkeypatch.setattr(symbolic, "available", lambda: False)
    symbolic._verdicts.clear()
    assert compute_score("math", r"\boxed{1+x}", "x+1") == 0.0
    assert compute_score("math", r"\boxed{\frac{1}{2}}", "0.5") == 1.0
    (note,) = symbolic.notes()
    assert "pip install math-verify==0.9.0" in note


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x^2-1", "(x-1)(x+1)", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\ln x^2", r"2\ln x", True),
        ("x", "X", False),
        ("x=1", "2x=2", True),
        ("x=1", "x+y=1", False),
        ("x<1", "-x>-1", True),
        ("x<1", "-x<-1", False),
        (r"\frac{1}{x}", "x^{-1}", True),
        (r"\frac{x}{0}", r"\frac{y}{0}", False),
    ],
)
def test_equality_by_value(one, other, same):
    assert symbolic_main._same(one, other) is same
    assert symbolic_main._same(other, one) is same


def test_a_run_without_the_package_is_told_once(monkeypatch):
    monkeypatch.setattr(symbolic, "available", lambda: False)
    for reward in (load_reward(None), build_reward(names="accuracy,format")):
        assert len([note for note in reward.notes if "math-verify is not installed" in note]) == 1
