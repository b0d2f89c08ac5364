"""The program's side of the conversation with its tests: answers what the tests ask of the program's names and objects.

Plain values go over as data; of anything else a number goes over, and the object stays here. Runs beside the program.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import types
from typing import Any

from reward_funcs.sandbox import data, frames
from reward_funcs.sandbox.run_model import described

_MOST_NAMES = 2_000
_LARGEST_CONSTANT = 4_096  # bytes of a global that is sent with the names


class _Backwards:
    """A function of the tests, given to the program as an argument."""

    def __init__(self, model: Model, number: int) -> None:
        self._ask = lambda args, kwargs: model.ask_back(number, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask(args, kwargs)


class Model:
    """Serves one module over one descriptor. largest: bytes of one answer."""

    def __init__(self, module: types.ModuleType, fd: int, largest: int) -> None:
        self.names = module.__dict__
        self.fd = fd
        self.largest = largest
        self.objects: list[Any] = []

    def serve(self) -> None:
        """Tells the names, then answers until the tests are done."""
        self._send({"names": [self._introduced(name) for name in list(self.names)[:_MOST_NAMES]]})
        while (request := self._receive()) is not None:
            self._send(self._answer(request))

    def ask_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the tests' function `number`; answers their questions until its result comes."""
        self._send({"back": number, "args": self._pack(list(args)), "kwargs": self._pack(kwargs)})
        while (message := self._receive()) is not None:
            if "op" in message:
                self._send(self._answer(message))
            elif "x" in message:
                kind = getattr(builtins, message["x"][0], RuntimeError)
                raise kind(message["x"][1])
            else:
                return self._unpack(message["v"])
        raise EOFError("the tests are gone")

    def _introduced(self, name: str) -> list[Any]:
        value = self.names[name]
        if isinstance(value, types.ModuleType):
            return [name, "module", value.__name__]
        if inspect.iscoroutinefunction(value):
            return [name, "async", None]
        try:
            packed = data.pack(value)
            if len(data.dumps(packed)) <= _LARGEST_CONSTANT:
                return [name, "value", packed]
        except data.NotPlain:
            pass
        return [name, "object", getattr(value, "__module__", None)]

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            arguments = [self._unpack(packed) for packed in request["args"]]
            keywords = {name: self._unpack(packed) for name, packed in request["kwargs"].items()}
            answer = {"v": self._pack(self._result(request["op"], arguments, keywords))}
            after = [self._pack(value) if isinstance(value, _MUTABLE) else None for value in arguments]
            if any(new is not None and new != old for new, old in zip(after, request["args"], strict=True)):
                answer["after"] = after
            raw = data.dumps(answer)
            return answer if len(raw) <= self.largest else {"x": ["ValueError", f"a result of {len(raw)} bytes"]}
        except data.NotPlain as error:
            return {"x": ["TypeError", f"returned what is no plain data: {error}"]}
        except BaseException as error:  # noqa: BLE001 - it crosses as a name and a text
            return {"x": described(error)}

    def _result(self, op: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        target, *rest = arguments
        if op == "call":
            return target(*rest, **keywords)
        if op == "await":
            return asyncio.run(target(*rest, **keywords))
        return _OPERATIONS[op](target, *rest)

    def _pack(self, value: Any) -> Any:
        return data.pack(value, self._numbered)

    def _numbered(self, value: Any) -> Any:
        self.objects.append(value)
        return {"h": len(self.objects) - 1}

    def _unpack(self, packed: Any) -> Any:
        return data.unpack(packed, self._meant)

    def _meant(self, tag: str, content: Any) -> Any:
        if tag == "h":
            return self.objects[content]
        if tag == "g":
            return self.names[content]
        if tag == "n":
            return getattr(builtins, content)
        if tag == "k":
            return _Backwards(self, content)
        raise data.BadData(tag)

    def _send(self, message: dict[str, Any]) -> None:
        frames.send(self.fd, data.dumps(message))

    def _receive(self) -> dict[str, Any] | None:
        raw = frames.receive(self.fd)
        return None if raw is None else data.loads(raw)


_MUTABLE = (list, dict, set, bytearray, tuple)
_OPERATIONS: dict[str, Any] = {
    "get": getattr,
    "set": setattr,
    "len": len,
    "item": lambda target, key: target[key],
    "put": lambda target, key, value: target.__setitem__(key, value),
    "iter": iter,
    "next": next,
    "text": str,
}
