"""The tests' side of the conversation: stand-ins for what the program defines.

A plain value arrives as data and compares as such. An object of the program arrives as a `Remote`: its methods can be
called, its items and attributes read, and everything by which it could decide a test itself (==, <, bool, in, hash,
arithmetic, isinstance) fails the test.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, NoReturn

from reward_funcs.sandbox import data, frames


class Untrusted(BaseException):
    """A test asked an object of the program to judge itself. No `except Exception` of a test can hide it."""


class Gone(BaseException):
    """The program has ended, or says what is no message."""


class CannotCross(BaseException):
    """The tests give the program an object of theirs, which this sandbox cannot do: the record is at fault."""


class Connection:
    """Questions to the program over one descriptor, and its calls of the tests' functions. spoiled: an `Untrusted`."""

    def __init__(self, fd: int, largest: int) -> None:
        self.fd = fd
        self.largest = largest
        self.functions: list[Callable[..., Any]] = []
        self.spoiled = False

    def names(self) -> list[list[Any]]:
        """What the program defines: [name, kind, more] each."""
        names = self._receive().get("names")
        if not isinstance(names, list):
            raise Gone("no list of names")
        return [entry for entry in names if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str)]

    def ask(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """The answer, as a value. Raises the exception that the program raised, as a builtin one."""
        packed = [self._pack(argument) for argument in args]
        self._send({"op": op, "args": packed, "kwargs": {name: self._pack(value) for name, value in kwargs.items()}})
        while True:
            message = self._receive()
            if "back" not in message:
                break
            self._send(self._called_back(message))
        if "x" in message:
            raise _exception(message["x"], ends_a_loop=op == "next")
        try:
            after = message.get("after")
            if isinstance(after, list) and len(after) == len(args):
                for old, new in zip(args, after, strict=True):
                    if new is not None:
                        _update(old, self._unpack(new))
            return self._unpack(message.get("v", {}))
        except data.BadData as error:
            raise Gone(str(error)) from None

    def spoil(self, what: str) -> NoReturn:
        """Ends a test that has asked the program's object for a verdict."""
        self.spoiled = True
        raise Untrusted(f"an object of the program was asked for {what}; only plain values are compared")

    def _called_back(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self.functions[message["back"]]
            args, kwargs = self._unpack(message["args"]), self._unpack(message["kwargs"])
        except (data.BadData, KeyError, IndexError, TypeError) as error:
            raise Gone(str(error)) from None
        try:
            return {"v": self._pack(function(*args, **kwargs))}
        except Exception as error:  # noqa: BLE001 - the program gets it, as it would have
            return {"x": [type(error).__name__, str(error)[:500]]}

    def _pack(self, value: Any) -> Any:
        return data.pack(value, self._reference)

    def _reference(self, value: Any) -> Any:
        if type(value) is Remote:
            return object.__getattribute__(value, "_reference")
        if getattr(builtins, getattr(value, "__name__", ""), None) is value:
            return {"n": value.__name__}
        if not callable(value):
            raise CannotCross(
                f"the tests give the program a {type(value).__name__}; only plain values and functions can"
            )
        self.functions.append(value)
        return {"k": len(self.functions) - 1}

    def _unpack(self, packed: Any) -> Any:
        return data.unpack(packed, self._meant)

    def _meant(self, tag: str, content: Any) -> Any:
        if tag == "h" and type(content) is int:
            return Remote(self, {"h": content})
        if tag == "k" and type(content) is int and 0 <= content < len(self.functions):
            return self.functions[content]
        raise data.BadData(f"an unknown tag {tag[:20]!r}")

    def _send(self, message: dict[str, Any]) -> None:
        try:
            frames.send(self.fd, data.dumps(message))
        except OSError:
            raise Gone("the program has ended") from None

    def _receive(self) -> dict[str, Any]:
        try:
            raw = frames.receive(self.fd, self.largest + 1024)
            message = data.loads(raw) if raw is not None else None
        except (OSError, data.BadData) as error:
            raise Gone(str(error)) from None
        if not isinstance(message, dict):
            raise Gone("the program has ended")
        return message


class Remote:
    """An object or a name of the program."""

    __slots__ = ("_connection", "_reference")

    def __init__(self, connection: Connection, reference: dict[str, Any]) -> None:
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_reference", reference)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _connection(self).ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _connection(self).ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _connection(self).ask("set", self, name, value)

    def __len__(self) -> int:
        return _plain(self, _connection(self).ask("len", self), int)

    def __getitem__(self, key: Any) -> Any:
        return _connection(self).ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _connection(self).ask("put", self, key, value)

    def __iter__(self) -> Any:
        iterator = _connection(self).ask("iter", self)
        while True:
            try:
                value = _connection(self).ask("next", iterator)
            except StopIteration:
                return
            yield value

    def __next__(self) -> Any:
        return _connection(self).ask("next", self)

    def __str__(self) -> str:
        return _plain(self, _connection(self).ask("text", self), str)


def _connection(remote: Remote) -> Connection:
    return object.__getattribute__(remote, "_connection")


def _plain(remote: Remote, value: Any, kind: type) -> Any:
    return value if type(value) is kind else _connection(remote).spoil(f"a {kind.__name__}")


def _forbidden(name: str) -> Callable[..., Any]:
    def refuse(self: Remote, *_: Any) -> Any:
        _connection(self).spoil(name)

    return refuse


for _name in (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "contains", "hash", "instancecheck", "subclasscheck", "index"),
    *("int", "float", "complex", "round", "abs", "neg", "pos", "invert", "add", "radd", "sub", "rsub", "mul", "rmul"),
    *("truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "and", "rand", "or", "ror"),
    *("xor", "rxor", "lshift", "rlshift", "rshift", "rrshift", "matmul", "rmatmul", "divmod", "rdivmod"),
):
    setattr(Remote, f"__{_name}__", _forbidden(_name))


def coroutine_function(connection: Connection, name: str) -> Callable[..., Any]:
    """A stand-in for an `async def` of the program: awaiting it runs the whole coroutine there."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        return connection.ask("await", Remote(connection, {"g": name}), *args, **kwargs)

    return call


def _exception(described: Any, *, ends_a_loop: bool) -> BaseException:
    """The builtin exception that the program raised. A call that raises StopIteration ends no loop of the tests."""
    if not (isinstance(described, list) and len(described) == 2 and all(isinstance(part, str) for part in described)):
        return Gone("no exception")
    kind = getattr(builtins, described[0], None)
    if not (isinstance(kind, type) and issubclass(kind, (Exception, SystemExit))):
        kind = RuntimeError
    if issubclass(kind, (StopIteration, StopAsyncIteration)) and not ends_a_loop:
        kind = RuntimeError  # as Python has it for generators, PEP 479
    try:
        return kind(described[1])
    except TypeError:  # UnicodeDecodeError and its like want more
        return ValueError(described[1]) if issubclass(kind, ValueError) else RuntimeError(described[1])


def _update(old: Any, new: Any) -> None:
    """Makes the tests' own value what the program has turned its copy into, in place, as deep as the shapes agree."""
    if type(old) is not type(new):
        return
    if isinstance(old, list):
        for mine, theirs in zip(old, new):  # noqa: B905 - it may have grown or shrunk
            _update(mine, theirs)
        old[:] = [_kept(mine, theirs) for mine, theirs in zip(old, new)] + new[len(old) :]  # noqa: B905
    elif isinstance(old, tuple):
        for mine, theirs in zip(old, new):  # noqa: B905
            _update(mine, theirs)
    elif isinstance(old, dict):
        kept = {key: _kept(old[key], value) if key in old else value for key, value in new.items()}
        for key, value in new.items():
            if key in old:
                _update(old[key], value)
        old.clear()
        old.update(kept)
    elif isinstance(old, set):
        old.intersection_update(new)
        old.update(new)
    elif isinstance(old, bytearray):
        old[:] = new


def _kept(mine: Any, theirs: Any) -> Any:
    return mine if isinstance(mine, (list, dict, set, bytearray)) and type(mine) is type(theirs) else theirs
