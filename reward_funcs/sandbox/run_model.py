"""Runs the program under test, inside its jail: as a script, for calls of its functions, or for its tests' process.

Everything here shares the interpreter with the program, so nothing it says is a verdict: it sends plain data, and the
other side compares. Names are bound before the program runs only so that an honest program's tricks break nothing.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import os
import site
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from reward_funcs.sandbox import data, frames
from reward_funcs.sandbox.answer import find_program

_CHANNEL, _PEER = 3, 4
_FILE = "solution.py"


def as_main(_largest: int) -> None:
    """The program as a script: stdin and stdout are the client's pipes, and its exit code is the process's."""
    _, source = _receive_order()
    os.close(_CHANNEL)
    _exit(_run(source, "__main__")[1] or 0)


def calls(largest: int) -> None:
    """The program as a module, then each call of the order; a message with the result after each."""
    order, source = _receive_order()
    module, code = _run(source, "solution")
    if code is not None:
        _exit(code)
    function = _lookup(module, order["entry"])
    for arguments in order["calls"]:
        frames.send(_CHANNEL, _within(largest, _call(function, [data.unpack(argument) for argument in arguments])))
    _exit(0)


def serve(largest: int) -> None:
    """The program as a module, whose names the process with the tests then uses over the peer socket."""
    from reward_funcs.sandbox.remote_model import Model

    _, source = _receive_order()
    os.close(_CHANNEL)
    module, code = _run(source, "solution")
    if code is not None:
        _exit(code)
    Model(module, _PEER, largest).serve()
    _exit(0)


def _receive_order() -> tuple[dict[str, Any], bytes]:
    """What to do, and the program's source. Tells the client that the jail stands, and which program was found."""
    raw = frames.receive(_CHANNEL)
    frames.send(_CHANNEL, b'{"standing": true}')  # the program's time counts from here: compiling is part of it
    order = json.loads(raw or b"{}")
    source = order["source"] if "source" in order else find_program(order["text"], order["before"])
    reply: dict[str, Any] = {"ready": source is not None}
    if order.get("tell"):
        reply["source"] = source
    frames.send(_CHANNEL, json.dumps(reply).encode("ascii"))
    if source is None:
        os._exit(1)
    return order, source.encode("utf-8", "surrogatepass")


def _run(source: bytes, name: str) -> tuple[types.ModuleType, int | None]:
    """Executes the program as module `name`. Returns it with the exit code that it ended itself with, if it did."""
    site.setquit()  # exit() and quit(), which the server's -S left out
    for ours in [module for module in sys.modules if module.split(".")[0] == "reward_funcs"]:
        del sys.modules[ours]
    module = types.ModuleType(name)
    module.__file__ = os.path.join(os.getcwd(), _FILE)
    sys.modules[name] = module
    sys.argv = [_FILE]
    try:
        with contextlib.suppress(OSError), open(_FILE, "wb") as file:  # for inspect and tracebacks only
            file.write(source)
        code = compile(source, module.__file__, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - this is what the jail is for
    except SystemExit as error:
        return module, _exit_code(error)
    except BaseException as error:  # noqa: BLE001 - whatever it raises is its own failure
        if isinstance(error, Exception) and error.__traceback__:
            error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        return module, 1
    return module, None


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _exit(code: int) -> None:
    """As the interpreter ends: threads waited for, exit handlers run, output flushed; and no slower than that."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - the program may have put anything in their place
        code = code or 120
    finally:
        os._exit(code)


def _lookup(module: types.ModuleType, entry: str) -> Callable[..., Any] | None:
    """`name`, `Class.method` on a new instance, or a method of the class Solution, as LeetCode's programs have it."""
    found: Any = module
    if not hasattr(module, entry.split(".")[0]) and hasattr(module, "Solution"):
        entry = "Solution." + entry
    for name in entry.split("."):
        if isinstance(found, type):
            found = found()
        found = getattr(found, name, None)
    return found


def _call(function: Callable[..., Any] | None, arguments: list[Any]) -> dict[str, Any]:
    if function is None:
        return {"x": ["NameError", "the program does not define it"]}
    try:
        return {"v": data.pack(function(*arguments))}
    except data.NotPlain as error:
        return {"x": ["TypeError", f"returned what is no plain data: {error}"]}
    except BaseException as error:  # noqa: BLE001 - it crosses as a name and a text
        return {"x": described(error)}


def described(error: BaseException) -> list[str]:
    """The nearest builtin exception's name, and a short text."""
    names = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    try:
        text = str(error)[:500]
    except BaseException:  # noqa: BLE001 - its __str__ is the program's, too
        text = ""
    return [names[0] if names else "Exception", text if type(text) is str else ""]


def _within(largest: int, reply: dict[str, Any]) -> bytes:
    raw = data.dumps(reply)
    return raw if len(raw) <= largest else data.dumps({"x": ["ValueError", f"a result of {len(raw)} bytes"]})
