"""The code reward from outside: its sources, its two numbers, its options, HumanEval, and a long run."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward_funcs import KNOWN_SOURCES, RewardError, compute_score
from reward_funcs.code_options import CodeOptions, code_options, read_options, set_code_options
from reward_funcs.code_score import code_score
from reward_funcs.sandbox import SandboxError, close_servers, usable_jail
from tests.reward_funcs.attacks.world import descendants, read_cases

THREE = json.dumps({"kind": "call", "entry": "f", "cases": [{"args": [n], "expected": 2 * n} for n in (0, 1, 2)]})
SQUARE = "def f(x):\n    return x * x\n"  # right for 0 and 2, wrong for 1


@pytest.fixture(autouse=True)
def _some_jail(request: pytest.FixtureRequest) -> None:
    try:
        usable_jail()
    except SandboxError as error:
        request.getfixturevalue("missing")(str(error))


@pytest.mark.slow
def test_the_score_is_all_or_nothing_and_the_pass_rate_stands_beside_it():
    assert code_score("def f(x):\n    return x + x\n", THREE) == {"score": 1.0, "pass_rate": 1.0}
    assert code_score(SQUARE, THREE) == {"score": 0.0, "pass_rate": pytest.approx(2 / 3)}
    assert code_score("no program here", THREE) == {"score": 0.0, "pass_rate": 0.0}


@pytest.mark.slow
def test_with_partial_the_pass_rate_is_the_score():
    partial = read_options({"partial": "true"})
    assert code_score(SQUARE, THREE, options=partial)["score"] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_pass_rates_of_the_other_kinds():
    stdio = json.dumps({"kind": "stdio", "cases": [{"stdin": f"{n}\n", "stdout": f"{2 * n}"} for n in (0, 1, 2, 3)]})
    assert code_score("n = int(input())\nprint(n * n)\n", stdio)["pass_rate"] == 0.5
    asserts = json.dumps({"kind": "assert", "asserts": [f"assert f({n}) == {2 * n}" for n in (0, 1, 2, 3)]})
    assert code_score(SQUARE, asserts)["pass_rate"] == 0.5
    text = "y = 2\nassert f(0) == 0\nassert f(1) == y\nassert f(2) == 4\nassert f(3) == 6\n"
    assert code_score(SQUARE, text) == {"score": 0.0, "pass_rate": 0.5}
    test = "def check(c):\n    assert c(0) == 0\n    for n in (1, 3):\n        assert c(n) == 2 * n\n"
    check = json.dumps({"test": test, "entry_point": "f"})
    assert code_score(SQUARE, check)["pass_rate"] == 0.5
    loop = json.dumps({"kind": "assert", "asserts": ["while True:\n    pass\nassert f(1)", "assert f(0) == 0"]})
    assert code_score(SQUARE, loop, options=read_options({"timeout": 0.3})) == {"score": 0.0, "pass_rate": 0.0}


def test_compute_score_runs_code_by_its_source_and_by_the_data_sets_own_names():
    # S2-25
    for source in ("code", "code_generation", "codecontests", "apps", "codeforces", "taco", "openai_humaneval"):
        assert source in KNOWN_SOURCES
    assert compute_score("code", f"```python\n{SQUARE}```", THREE) == code_score(SQUARE, THREE)
    apps = json.dumps({"inputs": ["3\n"], "outputs": ["6\n"]})
    assert compute_score("apps", "print(2 * int(input()))", apps)["score"] == 1.0  # type: ignore[index]
    check = "def check(candidate):\n    assert candidate(2) == 4\n"
    assert compute_score("code", SQUARE, check, {"entry_point": "f"})["score"] == 1.0  # type: ignore[index]
    with pytest.raises(RewardError, match="solution_str is NoneType"):
        compute_score("code", None, THREE)  # type: ignore[arg-type]


def test_tests_that_cannot_be_run_are_the_record_s_fault_and_no_score():
    for tests, said in (
        (["import no_such_module_at_all\nassert f(1)"], None),  # that is a failed test: it may be the program's
        (["class C:\n    pass\nassert f(C()) == 1"], "only plain values and functions can"),
        ("for n in ():\n    f(n)  # assert nothing", "assert nothing"),
    ):
        truth = json.dumps({"kind": "assert", "asserts": tests})
        if said is None:
            assert code_score(SQUARE, truth)["score"] == 0.0
        else:
            with pytest.raises(RewardError, match=said) as error:
                code_score(SQUARE, truth)
            assert not isinstance(error.value, SandboxError)


def test_a_program_s_own_names_do_not_stand_in_for_python_s_in_the_tests():
    # HumanEval/50 and its like: the prompt defines the helper that the test uses; the program's version judges nothing
    prompt = "def encode(s):\n    return s[::-1]\n\ndef decode(s):\n    '''undo encode'''\n"
    test = "def check(candidate):\n    for s in ('ab', 'xyz'):\n        assert candidate(encode(s)) == s\n"
    truth = json.dumps({"prompt": prompt, "test": test, "entry_point": "decode"})
    assert code_score("def encode(s):\n    return s\ndef decode(s):\n    return s\n", truth)["score"] == 0.0
    assert code_score("def encode(s):\n    return s\ndef decode(s):\n    return s[::-1]\n", truth)["score"] == 1.0


def test_options_come_from_the_caller_or_the_environment_and_unknown_ones_are_refused(monkeypatch):
    assert code_options() == CodeOptions()
    monkeypatch.setenv("CODE_REWARD", "partial=true, timeout=2,memory=512m")
    read = code_options()
    assert (read.partial, read.limits.timeout, read.limits.memory) == (True, 2.0, 2**29)
    set_code_options(CodeOptions(jail="landlock"))
    assert code_options().jail == "landlock"
    set_code_options(None)
    for text, said in {
        "partial": "has no value",
        "speed=9": "no option 'speed'",
        "partial=maybe": "true or false",
        "jail=chroot": "one of auto, bubblewrap, landlock",
        "url=ftp://x": "begin with http",
    }.items():
        monkeypatch.setenv("CODE_REWARD", text)
        with pytest.raises(RewardError, match=said):
            code_options()


@pytest.mark.slow
def test_the_sandbox_costs_an_import_only_when_code_is_scored(repo: Path):
    program = (
        "import sys, reward_funcs; from reward_funcs import compute_score; compute_score('math', '5', '5');"
        "print([name for name in ('ctypes', 'reward_funcs.sandbox.client', 'reward_funcs.code_score')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=repo, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- HumanEval --------------------------------------------------------------------------------------------------------

SWAPS = ("<>", "><", "+-", "-+", "*+", "12", "01", "23", "%+", "=+", "[(", "ab", "ex")


def _humaneval(shared: Path) -> list[dict[str, str]]:
    with gzip.open(shared / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _bugs(body: str) -> Iterator[str]:
    """The solution with one character changed, the likeliest to matter first."""
    for old, new in SWAPS:
        for i, character in enumerate(body):
            if character == old:
                yield body[:i] + new + body[i + 1 :]


@pytest.mark.slow
def test_humaneval_pays_every_canonical_solution(shared: Path, jail: str):
    options = read_options({"jail": jail, "timeout": 60})

    def score(task: dict[str, str]) -> float:
        text = f"```python\n{task['prompt']}{task['canonical_solution']}```"
        return code_score(text, task, options=options)["score"]

    tasks = _humaneval(shared)
    with ThreadPoolExecutor(4) as pool:
        lost = [task["task_id"] for task, paid in zip(tasks, pool.map(score, tasks), strict=True) if paid < 1]
    assert lost == []


@pytest.mark.slow
def test_humaneval_pays_no_solution_with_a_bug_of_one_character_that_fails_its_tests(shared: Path, jail: str):
    options = read_options({"jail": jail, "timeout": 2})

    def wrong(task: dict[str, str]) -> str | None:
        for body in list(_bugs(task["canonical_solution"]))[:12]:
            program = task["prompt"] + body
            if code_score(program, task, options=options)["score"] < 1:
                return None
            # paid: then plain Python has to agree that the change was none
            plain = f"{program}\n{task['test']}\ncheck({task['entry_point']})\n"
            if subprocess.run([sys.executable, "-c", plain], capture_output=True, timeout=60).returncode:
                return f"{task['task_id']}: wrongly paid"
        return f"{task['task_id']}: no bug was made"

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(wrong, _humaneval(shared))) == {None}


# --- a long run -------------------------------------------------------------------------------------------------------


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_five_hundred_mixed_samples_leave_nothing_behind(jail: str):
    # bench/sandbox.py --soak 10000 does the same with twenty times as many
    honest = [case for case in read_cases("honest") if "thread_stack" not in case.name]
    attacks = [case for case in read_cases("tricks") if case.name.startswith(("exit", "eq_", "forge", "patch"))]
    rng = random.Random(5)
    samples = [rng.choice(attacks if n % 20 == 0 else honest) for n in range(500)]
    options = read_options({"jail": jail, "timeout": 60})

    def wrong(case) -> str | None:
        paid = code_score(case.program, case.truth, options=options)["score"]
        return None if paid == float(case.pays) else case.name

    others = {path.name for path in Path(tempfile.gettempdir()).glob("code-sandbox-*")}
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(wrong, samples[:100])) == {None}
        before, descriptors, processes = _resident(), len(os.listdir("/proc/self/fd")), descendants(os.getpid())
        assert set(pool.map(wrong, samples[100:])) == {None}
        assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(descendants(os.getpid())) <= len(processes)
    assert _resident() - before < 50e6
    close_servers()
    assert {path.name for path in Path(tempfile.gettempdir()).glob("code-sandbox-*")} <= others
