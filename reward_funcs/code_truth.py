"""What a code record asks for: its ground_truth, in any of the shapes that data sets use, as one of three kinds.

Ours: {"kind": "call"|"stdio"|"assert", ...}. Others': a text of asserts, HumanEval's test with entry_point, MBPP's
test_list, and the inputs/outputs (with fn_name or without) of APPS, TACO, CodeContests, Codeforces and LiveCodeBench.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reward_funcs.errors import RewardError


@dataclass(frozen=True)
class Calls:
    """Calls of `entry`. cases: (arguments, accepted results)."""

    entry: str
    cases: tuple[tuple[list[Any], tuple[Any, ...]], ...]
    before: str = ""


@dataclass(frozen=True)
class Scripts:
    """Runs of the program as a script. cases: (stdin, stdout)."""

    cases: tuple[tuple[str, str], ...]
    before: str = ""


@dataclass(frozen=True)
class Asserts:
    """Python code that asserts: a list of cases, or one text. setup: runs before. before: the prompt, as code."""

    tests: list[str] | str
    setup: str = ""
    entry: str | None = None
    before: str = ""


Truth = Calls | Scripts | Asserts


def read_truth(ground_truth: Any, extra_info: Any = None) -> Truth:
    """The record's tests. extra_info may hold `entry_point`. RewardError says what is wrong with a record."""
    truth = _parsed(ground_truth)
    more = extra_info if isinstance(extra_info, Mapping) else {}
    if isinstance(truth, str):
        return _asserts({"test": truth, "entry_point": more.get("entry_point")})
    if isinstance(truth, (list, tuple)):
        return _from_list(list(truth))
    if not isinstance(truth, Mapping):
        raise _bad(f"is {type(truth).__name__}; it has to be JSON with 'kind', or text with asserts")
    kind = truth.get("kind")
    if kind is not None:
        if kind not in _KINDS:
            raise _bad(f"has kind {str(kind)[:40]!r}; known: call, stdio, assert")
        return _KINDS[kind](truth)
    for key, read in _SHAPES:
        if key in truth:
            return read({**truth, "entry_point": truth.get("entry_point", more.get("entry_point"))})
    keys = ", ".join(repr(str(key)[:30]) for key in list(truth)[:6]) or "nothing"
    raise _bad(f"is a JSON object without 'kind'; it has {keys}")


def _parsed(ground_truth: Any) -> Any:
    """JSON text as what it says; any other text as itself."""
    if not isinstance(ground_truth, str):
        return ground_truth
    if not ground_truth.strip():
        raise _bad("is empty")
    if ground_truth.lstrip()[0] not in "{[":
        return ground_truth
    try:
        return json.loads(ground_truth)
    except ValueError as error:
        if ground_truth.lstrip()[0] == "{":
            raise _bad(f"is no JSON ({error}), and no Python either") from None
        return ground_truth
    except RecursionError:
        raise _bad("is nested too deeply") from None


def _calls(truth: Mapping[str, Any]) -> Calls:
    entry = truth.get("entry", truth.get("entry_point"))
    if not isinstance(entry, str) or not all(part.isidentifier() for part in entry.split(".")):
        raise _bad(f"of kind call needs 'entry', the function's name; it has {entry!r}"[:200])
    cases = []
    for i, case in enumerate(_cases(truth)):
        if not isinstance(case, Mapping) or "expected" not in case:
            raise _bad(f"of kind call, case {i}: needs 'args' and 'expected'")
        args = case.get("args", [])
        if not isinstance(args, (list, tuple)):
            raise _bad(f"of kind call, case {i}: 'args' has to be a list, one entry per argument")
        cases.append((list(args), (case["expected"],)))
    return Calls(entry, tuple(cases), _text(truth.get("prompt")))


def _stdio(truth: Mapping[str, Any]) -> Scripts:
    cases = []
    for i, case in enumerate(_cases(truth)):
        if not isinstance(case, Mapping) or not isinstance(case.get("stdout"), str):
            raise _bad(f"of kind stdio, case {i}: needs 'stdin' and 'stdout', both text")
        cases.append((_text(case.get("stdin")), case["stdout"]))
    return Scripts(tuple(cases))


def _cases(truth: Mapping[str, Any]) -> list[Any]:
    cases = truth.get("cases")
    if not isinstance(cases, (list, tuple)) or not cases:
        raise _bad(f"of kind {truth['kind']} needs 'cases', a list that is not empty")
    return list(cases)


def _asserts(truth: Mapping[str, Any]) -> Asserts:
    tests = next((truth[key] for key in ("asserts", "test", "tests", "test_list") if truth.get(key)), None)
    if isinstance(tests, (list, tuple)) and all(isinstance(test, str) for test in tests):
        tests = list(tests)
    elif not isinstance(tests, str):
        raise _bad("of kind assert needs 'asserts': a text, or a list of texts, that is not empty")
    imports = truth.get("test_imports") or []
    setup = "\n".join([*([imports] if isinstance(imports, str) else imports), _text(truth.get("test_setup_code"))])
    setup = "\n".join([setup, _text(truth.get("setup"))]).strip()
    entry = truth.get("entry_point", truth.get("entry"))
    if entry is not None and not (isinstance(entry, str) and entry.isidentifier()):
        raise _bad(f"has the entry_point {str(entry)[:40]!r}, which is no name")
    for code in [setup, *(tests if isinstance(tests, list) else [tests])]:
        _compiles(code)
    if not any("assert" in test for test in ([tests] if isinstance(tests, str) else tests)):
        raise _bad("has no assert")
    if entry is None and isinstance(tests, str) and "def check(" in tests and "\ncheck(" not in tests:
        raise _bad("defines check(candidate) and names no 'entry_point' to give it")
    return Asserts(tests, setup, entry, _text(truth.get("prompt")))


def _compiles(code: str) -> None:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _bad(f"is no Python ({type(error).__name__}: {str(error)[:100]}): {code.strip()[:60]!r}") from None


def _pairs(truth: Mapping[str, Any]) -> Truth:
    """inputs and outputs side by side; with fn_name, arguments and results of a function."""
    inputs, outputs = (truth.get(name, truth.get(name + "s")) for name in ("input", "output"))
    if not isinstance(inputs, (list, tuple)) or not isinstance(outputs, (list, tuple)) or len(inputs) != len(outputs):
        raise _bad("needs 'inputs' and 'outputs', two lists of one length")
    if not inputs:
        raise _bad("has no inputs: nothing to test")
    entry = truth.get("fn_name") or truth.get("func_name")
    if not entry:
        return Scripts(tuple((_lines(i), _lines(o)) for i, o in zip(inputs, outputs, strict=True)))
    return Calls(str(entry), tuple((_args(i), _results(o)) for i, o in zip(inputs, outputs, strict=True)))


def _from_list(cases: list[Any]) -> Truth:
    """A list of asserts (MBPP), or of {"input", "output"} (LiveCodeBench, Codeforces)."""
    if cases and all(isinstance(case, str) for case in cases):
        return _asserts({"asserts": cases})
    if cases and all(isinstance(case, Mapping) and "input" in case and "output" in case for case in cases):
        first = cases[0]
        metadata = first.get("metadata") or {}
        return _pairs({
            "inputs": [case["input"] for case in cases],
            "outputs": [case["output"] for case in cases],
            "fn_name": first.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None),
        })  # fmt: skip
    raise _bad("is a list of neither asserts nor {'input', 'output'} objects")


def _args(given: Any) -> list[Any]:
    """A list of arguments, or a line of JSON for each."""
    if isinstance(given, str):
        return [_json_or_text(line) for line in given.splitlines() if line.strip()]
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _results(given: Any) -> tuple[Any, ...]:
    """APPS writes a result as itself or as a list with it."""
    value = _json_or_text(given) if isinstance(given, str) else given
    accepted = (value,) if value is given or type(value) is str else (value, given)
    return (*accepted, value[0]) if isinstance(given, list) and len(given) == 1 else accepted


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _lines(given: Any) -> str:
    if isinstance(given, (list, tuple)):
        return "\n".join(map(str, given)) + "\n"
    return given if isinstance(given, str) else str(given)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _bad(f"has {type(value).__name__} where text belongs")
    return value


def _bad(what: str) -> RewardError:
    return RewardError(f"this code record's ground_truth {what}")


_KINDS = {"call": _calls, "stdio": _stdio, "assert": _asserts}
_SHAPES = (
    *((key, _asserts) for key in ("asserts", "test", "tests", "test_list")),
    *((key, _pairs) for key in ("inputs", "input")),
)
