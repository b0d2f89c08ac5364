"""The reward for programs: runs what the model wrote in a sandbox, and pays for passing all of the record's tests.

Three outcomes of a test: passed, failed, and SandboxError when it could not be judged; the last is never a 0. The
program's process gets arguments and stdin only; what is expected stays here, or with tests in a process of their own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from reward_funcs.code_compare import same_output, same_value
from reward_funcs.code_options import CodeOptions, code_options
from reward_funcs.code_truth import Asserts, Calls, Scripts, Truth, read_truth
from reward_funcs.errors import RewardError
from reward_funcs.sandbox import data
from reward_funcs.sandbox.client import server
from reward_funcs.sandbox.errors import SandboxError
from reward_funcs.sandbox.limits import Limits
from reward_funcs.sandbox.peers import peer_sockets
from reward_funcs.sandbox.probe import JAILS, NO_JAIL, usable_jail
from reward_funcs.sandbox.talk import Talk, hold

_ATTEMPTS = 3  # a jail that breaks is made anew; one that breaks again and again is an error
_SMALLEST_SHARE = 0.05  # seconds; a case that has less left of the deadline is not begun
_MOST_AT_ONCE = max(2, 2 * (os.cpu_count() or 1))
_at_once = threading.BoundedSemaphore(_MOST_AT_ONCE)


def _after_fork() -> None:
    global _at_once
    _at_once = threading.BoundedSemaphore(_MOST_AT_ONCE)  # a copy of the parent's may be held by threads left behind


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def code_score(
    solution_str: str, ground_truth: Any, extra_info: Any = None, *, options: CodeOptions | None = None
) -> dict[str, float]:
    """{"score": 1.0 if every test passes, else 0.0; "pass_rate": the share that passes}. Best value 1.

    ground_truth: code_truth.py. With the option `partial` the score is the pass rate. Raises SandboxError when the
    program could not be judged, and RewardError when the record itself cannot be.
    """
    options = options or code_options()
    truth = read_truth(ground_truth, extra_info)
    if options.url:
        from reward_funcs.sandbox.fusion import run_remote

        passed, total, all_passed = run_remote(solution_str, truth, options)
    else:
        jail = chosen_jail(options)
        passed, total, all_passed = _with_new_attempts(lambda: _judge(jail, solution_str, truth, options.limits))
    rate = passed / total
    perfect = float(all_passed and passed == total)
    return {"score": rate if options.partial and not perfect else perfect, "pass_rate": rate}


def chosen_jail(options: CodeOptions) -> str:
    """The jail that will be used. Raises SandboxError, a line for the user, when there is none: ask before training."""
    if options.unsafe:
        return NO_JAIL
    return usable_jail(JAILS if options.jail == "auto" else (options.jail,))


def refuse_without_jail(options: CodeOptions) -> None:
    """Raises SandboxError when programs could neither be run here nor sent to a server, and nobody allowed it so."""
    if options.url is None:
        chosen_jail(options)


Verdict = tuple[int, int, bool]  # tests passed, tests, and whether nothing failed beside them


def _with_new_attempts(judge: Callable[[], Verdict]) -> Verdict:
    for attempt in range(_ATTEMPTS):
        try:
            with _at_once:
                return judge()
        except SandboxError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.05 * 4**attempt)
    raise AssertionError("unreachable")


def _judge(jail: str, text: str, truth: Truth, limits: Limits) -> Verdict:
    if isinstance(truth, Calls):
        return _judge_calls(jail, text, truth, limits)
    if isinstance(truth, Scripts):
        return _judge_scripts(jail, text, truth, limits)
    return _judge_asserts(jail, text, truth, limits)


def _judge_calls(jail: str, text: str, truth: Calls, limits: Limits) -> Verdict:
    calls = [[data.pack(argument) for argument in arguments] for arguments, _ in truth.cases]
    order = {"text": text, "before": truth.before, "entry": truth.entry, "calls": calls}
    running = server(jail)
    talk = Talk(running.spawn("calls", limits), data.dumps(order))
    hold(running, [talk], limits, limits.timeout)
    passed = 0
    if not talk.over:
        for frame, (_, accepted) in zip(talk.frames[1:], truth.cases):  # noqa: B905 - a program may end early
            passed += _is_one_of(frame, accepted)
    return passed, len(truth.cases), True


def _is_one_of(frame: bytes, accepted: tuple[Any, ...]) -> bool:
    try:
        reply = data.loads(frame)
        if not isinstance(reply, dict) or "v" not in reply:
            return False
        got = data.unpack(reply["v"])
    except data.BadData:
        return False
    return any(same_value(got, expected) for expected in accepted)


def _judge_scripts(jail: str, text: str, truth: Scripts, limits: Limits) -> Verdict:
    running = server(jail)
    order: dict[str, Any] = {"text": text, "before": truth.before, "tell": len(truth.cases) > 1}
    left = limits.timeout
    passed = 0
    for stdin, stdout in truth.cases:
        if left < _SMALLEST_SHARE:
            break
        talk = Talk(
            running.spawn("main", limits, stdin=True), data.dumps(order), stdin.encode("utf-8", "surrogatepass")
        )
        left -= hold(running, [talk], limits, left)
        ready = _first_frame(talk)
        if not ready.get("ready"):
            break  # there is no program in the text
        if isinstance(ready.get("source"), str):
            order = {"source": ready["source"]}
        right = not talk.over and talk.end.get("code") == 0
        passed += right and same_output(talk.stdout.decode("utf-8", "replace"), stdout)
    return passed, len(truth.cases), True


def _first_frame(talk: Talk) -> dict[str, Any]:
    """Sent before a line of the program has run."""
    try:
        first = json.loads(talk.frames[0]) if talk.frames else {}
    except ValueError:
        return {}
    return first if isinstance(first, dict) else {}


def _judge_asserts(jail: str, text: str, truth: Asserts, limits: Limits) -> Verdict:
    running = server(jail)
    with peer_sockets() as (for_model, for_tests):
        program = running.spawn("serve", limits, peer=for_model)
        try:
            judge = running.spawn("tests", limits, peer=for_tests)
        except SandboxError:
            running.kill(program)
            program.close()
            raise
    order = {"tests": truth.tests, "setup": truth.setup, "entry": truth.entry, "before": truth.before}
    model = Talk(program, data.dumps({"text": text, "before": truth.before}))
    tests = Talk(judge, data.dumps(order))
    hold(running, [model, tests], limits, limits.timeout)
    try:
        said = [data.loads(frame) for frame in tests.frames]
    except data.BadData as error:
        raise RewardError(f"this code record's tests write to the sandbox's own descriptors ({error})") from None
    return _verdict_of_tests(said, truth, model)


def _verdict_of_tests(said: list[dict[str, Any]], truth: Asserts, model: Talk) -> Verdict:
    last = said[-1] if said else {}
    if "broken" in last:
        raise RewardError(f"this code record's tests cannot be run: {last['broken']}")
    cases = [message for message in said if "case" in message]
    counted = [case for case in cases if case["counts"]]
    if "done" in last and not counted:
        raise RewardError("this code record's tests assert nothing")
    total = len(counted) if "done" in last else max(len(counted), 1) + 1
    if isinstance(truth.tests, list):
        total = len(truth.tests)
    passed = sum(case["ok"] for case in counted)
    nothing_failed = "done" in last and all(case["ok"] for case in cases) and not model.over
    return passed, total, nothing_failed


def limits_as_text(options: CodeOptions) -> str:
    """For a run's plan: every limit with its value."""
    return ", ".join(f"{name}={value:g}" for name, value in asdict(options.limits).items())
