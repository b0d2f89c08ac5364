"""Runs the tests of a record, in a jail of their own: the program's names are stand-ins, only plain data is compared.

The tests come from the data file: they are trusted to judge, and still not let near the trainer.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import sys
from typing import Any, NoReturn

from reward_funcs.sandbox import data, frames
from reward_funcs.sandbox.remote_names import CannotCross, Connection, Gone, Remote, coroutine_function

_CHANNEL, _PEER = 3, 4
_MODULES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas", "scipy": "scipy", "sympy": "sympy"}
# Names that solutions import bare and tests then use: the genuine ones, as long as something else is being tested.
_COMMON = {"math": ("isclose", "gcd", "sqrt", "floor", "ceil", "pi", "inf", "factorial", "comb", "prod", "log"),
           "collections": ("Counter", "defaultdict", "deque", "OrderedDict", "namedtuple"),
           "copy": ("deepcopy",), "itertools": ("permutations", "combinations", "product", "chain"),
           "functools": ("reduce", "cmp_to_key")}  # fmt: skip


def run(largest: int) -> None:
    """Receives the tests, runs them against the program at the other end of the peer socket, says how each ended."""
    order = json.loads(frames.receive(_CHANNEL) or b"{}")
    _say({"standing": True})
    try:
        cases = _cases(order)
        names = _trusted_names(order)
        connection = Connection(_PEER, largest)
        introduced = connection.names()
    except Gone as error:
        _finish({"gone": str(error)})
    except Exception as error:  # noqa: BLE001 - the record's own code
        _finish({"broken": f"{type(error).__name__}: {str(error)[:300]}"})
    _add_stand_ins(names, introduced, connection, cases, order.get("entry"))
    gone = None
    for i, case in enumerate(cases):
        verdict: dict[str, Any] = {"case": i, "counts": case.counts, "ok": False}
        connection.spoiled = False
        if gone is None:
            try:
                exec(case.code, names)  # noqa: S102 - in a jail; the record's tests
                verdict["ok"] = not connection.spoiled
            except CannotCross as error:
                _finish({"broken": str(error)[:300]})
            except Gone as error:
                gone = str(error)
            except BaseException as error:  # noqa: BLE001 - a test fails by any of them
                verdict["why"] = f"{type(error).__name__}: {_text(error)}"
        _say(verdict)
    _finish({"done": True})


def _say(message: dict[str, Any]) -> None:
    frames.send(_CHANNEL, data.dumps(message))


def _finish(message: dict[str, Any]) -> NoReturn:
    _say(message)
    os._exit(0)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except Exception:  # noqa: BLE001 - an exception class of the record
        return ""


class _Case:
    """A piece of the tests, in order. counts: whether it has an assert, or only prepares the next ones."""

    def __init__(self, body: list[ast.stmt], counts: bool) -> None:
        self.names = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
        self.bound = _bound(body)
        module = ast.Module(body=body, type_ignores=[])
        self.code = compile(ast.fix_missing_locations(module), "tests", "exec", dont_inherit=True)
        self.counts = counts


def _bound(body: list[ast.stmt]) -> set[str]:
    """Names that the tests themselves define or import."""
    bound: set[str] = set()
    for node in (node for part in body for node in ast.walk(part)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return bound


def _asserts(node: ast.AST, helpers: set[str]) -> bool:
    """Whether it asserts something, itself or by calling a function of the tests that does."""
    return any(
        isinstance(inner, ast.Assert)
        or (isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id in helpers)
        for inner in ast.walk(node)
    )


def _cases(order: dict[str, Any]) -> list[_Case]:
    """The record's asserts one by one; a text of them by its statements; `check(candidate)` by those of its body."""
    setup = ast.parse(order["setup"]).body
    cases = [_Case(setup, counts=False)] if setup else []
    if isinstance(order["tests"], list):
        return cases + [_Case(ast.parse(text).body, counts=True) for text in order["tests"]]
    body = ast.parse(order["tests"]).body
    helpers = {node.name for node in body if isinstance(node, _DEFINES) and _asserts(node, set())}
    check = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    if check is not None and len(check.args.args) == 1 and order.get("entry"):
        return cases + _check_cases(body, check, order["entry"], helpers)
    return cases + [_Case([node], counts=not isinstance(node, _DEFINES) and _asserts(node, helpers)) for node in body]


_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _check_cases(body: list[ast.stmt], check: ast.FunctionDef, entry: str, helpers: set[str]) -> list[_Case]:
    """What stands around check() first, then the statements of its body, with its parameter bound to the program's.

    They run at module level, so that a failing assert does not hide the next ones. A body that returns is run whole.
    """
    around = [node for node in body if node is not check and not _asserts(node, {"check"})]
    around += [node for node in body if isinstance(node, _DEFINES) and node is not check and node not in around]
    cases = [_Case(around, counts=False)] if around else []
    inner = [node for part in check.body for node in ast.walk(part)]
    if any(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Nonlocal, ast.Global)) for node in inner):
        return [*cases, _Case([check], counts=False), _Case(ast.parse(f"check({entry})").body, counts=True)]
    cases.append(_Case(ast.parse(f"{check.args.args[0].arg} = {entry}").body, counts=False))
    return cases + [_Case([node], counts=_asserts(node, helpers)) for node in check.body]


def _trusted_names(order: dict[str, Any]) -> dict[str, Any]:
    """The namespace of the tests, with the helpers that the record's prompt defines, but not the function asked for."""
    names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        prompt = ast.parse(order["before"] + "\n    pass\n") if order["before"] else ast.Module([], [])
    except SyntaxError:
        return names
    wanted = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    prompt.body = [
        node for node in prompt.body if isinstance(node, wanted) and getattr(node, "name", None) != order.get("entry")
    ]
    exec(compile(prompt, "prompt", "exec", dont_inherit=True), names)  # noqa: S102 - in a jail; the record's prompt
    return names


def _add_stand_ins(
    names: dict[str, Any], introduced: list[list[Any]], connection: Connection, cases: list[_Case], entry: str | None
) -> None:
    """Binds what the program defines, unless the tests or Python define it: a program's own `abs` judges nothing."""
    used = {name for case in cases for name in case.names} - {name for case in cases for name in case.bound}
    offered = {entry_[0] for entry_ in introduced}
    genuine = {name: module for module, members in _COMMON.items() for name in members}
    asked = [entry] if entry else []
    known = {*genuine, *sys.stdlib_module_names, *_MODULES}
    asked += sorted(name for name in used & offered if not hasattr(builtins, name) and name not in known)
    if not asked:  # `assert sum(10, 15) == 6` tests the program's sum; `assert sum(f(3)) == 6` tests f
        asked = sorted(used & offered)
    for name, kind, more in introduced:
        if name in names or name.startswith("__") or (name not in asked and hasattr(builtins, name)):
            continue
        module = name if name in sys.stdlib_module_names else _MODULES.get(name)
        if kind == "module" or (module is not None and name not in asked):
            if module is not None:
                names[name] = importlib.import_module(module)
        elif name in genuine and name not in asked:
            names[name] = getattr(importlib.import_module(genuine[name]), name)
        elif kind == "async":
            names[name] = coroutine_function(connection, name)
        elif kind == "value":
            names[name] = _value(connection, name, more)
        else:
            names[name] = Remote(connection, {"g": name})


def _value(connection: Connection, name: str, packed: Any) -> Any:
    try:
        return data.unpack(packed)
    except data.BadData:
        return Remote(connection, {"g": name})
