"""A sandbox on another machine, by the protocol of SandboxFusion: POST /run_code, the exit code and output back.

What is expected stays here as everywhere. Tests that are more than `assert f(values) == value` need a process beside
the program's, which this protocol has not: such records are refused by name.
"""

from __future__ import annotations

import ast
import asyncio
import json
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from reward_funcs.code_compare import same_output, same_value
from reward_funcs.code_options import CodeOptions
from reward_funcs.code_truth import Asserts, Calls, Scripts, Truth
from reward_funcs.errors import RewardError
from reward_funcs.http_json import check_url, post
from reward_funcs.sandbox import answer, data
from reward_funcs.sandbox.errors import SandboxError

TOKEN_NAME = "CODE_SANDBOX_TOKEN"
_EXTRACT_SECONDS = 20.0
_SLACK_SECONDS = 10.0  # for the network and the server's queue, beyond the program's own time
_MEGABYTE = 2**20

# Runs on the server: defines pack and dumps (data.py), then calls the program's function and prints what it gives.
_DRIVER = """
def _drive(order):
    import sys, types
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(order["source"], "solution.py", "exec", dont_inherit=True), module.__dict__)
    names = order["entry"].split(".")
    if not hasattr(module, names[0]) and hasattr(module, "Solution"):
        names.insert(0, "Solution")
    found = module
    for name in names:
        found = getattr(found() if isinstance(found, type) else found, name)
    for arguments in order["calls"]:
        try:
            reply = {"v": pack(found(*[unpack(argument) for argument in arguments]))}
        except BaseException as error:
            reply = {"x": type(error).__name__}
        sys.stdout.write("\\n" + order["mark"] + dumps(reply).decode() + "\\n")
"""


def run_remote(text: str, truth: Truth, options: CodeOptions) -> tuple[int, int, bool]:
    """Tests passed, tests, and whether nothing else failed. SandboxError when the server gives no judgement."""
    assert options.url is not None
    check_url(options.url, TOKEN_NAME)
    truth = as_calls(truth) if isinstance(truth, Asserts) else truth
    source = _program(text, truth.before)
    if source is None:
        return 0, len(truth.cases), False
    if isinstance(truth, Calls):
        return _run_calls(source, truth, options), len(truth.cases), True
    return _run_scripts(source, truth, options), len(truth.cases), True


def as_calls(truth: Asserts) -> Calls:
    """The same tests as calls, where each is `assert name(values) == value`; RewardError for any other."""
    bodies = [ast.parse(test).body for test in ([truth.tests] if isinstance(truth.tests, str) else truth.tests)]
    cases, names = [], set()
    for node in (node for body in bodies for node in body):
        match node:
            case ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id=name), args=given, keywords=[]),
                    ops=[ast.Eq()],
                    comparators=[expected],
                )
            ):
                names.add(name)
            case _:
                raise _needs_a_jail(ast.unparse(node))
        try:
            cases.append(([ast.literal_eval(argument) for argument in given], (ast.literal_eval(expected),)))
        except ValueError:
            raise _needs_a_jail(ast.unparse(node)) from None
    if len(names) != 1 or truth.setup:
        raise _needs_a_jail(truth.setup or f"asserts of {len(names)} functions")
    return Calls(names.pop(), tuple(cases), truth.before)


def _needs_a_jail(what: str) -> RewardError:
    return RewardError(
        f"code:url can judge asserts of the form `assert f(values) == value` only, and this record has {what[:60]!r}; "
        "its tests need a sandbox on this machine"
    )


def _program(text: str, before: str) -> str | None:
    """Found in a process of its own: a source can crash the compiler that looks at it."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", answer.__file__],
            input=json.dumps({"text": text, "before": before}).encode(),
            capture_output=True,
            timeout=_EXTRACT_SECONDS,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return None


def _run_calls(source: str, truth: Calls, options: CodeOptions) -> int:
    mark = secrets.token_hex(16)
    calls = [[data.pack(argument) for argument in arguments] for arguments, _ in truth.cases]
    order = {"source": source, "entry": truth.entry, "calls": calls, "mark": mark}
    code = Path(data.__file__).read_text(encoding="utf-8") + _DRIVER
    code += f"\n_drive(json.loads({json.dumps(order)!r}))\n"
    result = _ask(code, "", options.limits.timeout, options)
    replies = [line[len(mark) :] for line in result["stdout"].splitlines() if line.startswith(mark)]
    passed = 0
    for reply, (_, accepted) in zip(replies, truth.cases):  # noqa: B905 - a program may end early
        try:
            packed = data.loads(reply.encode())
            got = data.unpack(packed["v"])
        except (data.BadData, KeyError, TypeError, UnicodeError):
            continue
        passed += any(same_value(got, expected) for expected in accepted)
    return passed


def _run_scripts(source: str, truth: Scripts, options: CodeOptions) -> int:
    left = options.limits.timeout
    passed = 0
    for stdin, stdout in truth.cases:
        if left <= 0:
            break
        result = _ask(source, stdin, left, options)
        left -= result["seconds"]
        passed += result["code"] == 0 and same_output(result["stdout"], stdout)
    return passed


def _ask(code: str, stdin: str, seconds: float, options: CodeOptions) -> dict[str, Any]:
    """One run: {"code", "stdout", "seconds"}; code None where it was stopped."""
    question = {
        "code": code,
        "language": "python",
        "stdin": stdin,
        "run_timeout": seconds,
        "compile_timeout": seconds,
        "memory_limit_MB": options.limits.memory // _MEGABYTE,
    }
    began = time.monotonic()
    largest = 2 * (options.limits.output + options.limits.result)
    try:
        reply = _in_a_loop_of_its_own(
            f"{str(options.url).rstrip('/')}/run_code", question, seconds + _SLACK_SECONDS, largest
        )
    except RewardError as error:
        raise SandboxError(str(error)) from None
    run = reply.get("run_result") if isinstance(reply, dict) else None
    if not isinstance(run, dict) or reply.get("status") not in ("Success", "Failed"):
        said = reply.get("message") or reply.get("status") if isinstance(reply, dict) else type(reply).__name__
        raise SandboxError(f"{options.url} did not run the program: {str(said)[:200]}")
    finished = run.get("status") == "Finished"
    stdout = run.get("stdout")
    return {
        "code": run.get("return_code") if finished else None,
        "stdout": stdout if isinstance(stdout, str) else "",
        "seconds": time.monotonic() - began,
    }


def _in_a_loop_of_its_own(url: str, question: dict[str, Any], timeout: float, largest: int) -> Any:
    """`post` is a coroutine, and the caller may already be inside an event loop."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(
                asyncio.run(post(url, question, token_name=TOKEN_NAME, timeout=timeout, retries=2, largest=largest))
            )
        except RewardError as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if not came or isinstance(came[0], RewardError):
        raise came[0] if came else SandboxError(f"{url}: the request failed")
    return came[0]
