"""Plain data across a process boundary: values of Python's own types as JSON that keeps the types apart.

A list is {"l": [...]}, a tuple {"t": ...}, a set {"s": ...}; bool, None, text, finite floats and ints of up to 53 bits
are themselves. Nothing here runs code of either side, and what comes from a program under test is checked before it is
parsed: its depth, the length of its numbers, its shape. Left out: objects. `pack` calls `other` for them.
"""

from __future__ import annotations

import datetime
import json
import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate
from typing import Any

DEEPEST = 100  # lists within lists
_SAFE = 2**53
_LONGEST_NUMBER = 40  # characters of a number in JSON; longer ones travel as hexadecimal text


class BadData(Exception):
    """What came is not what `pack` makes."""


class NotPlain(Exception):
    """The value, or one inside it, is an object, too deep or endless."""


def _refuse(value: Any) -> Any:
    raise NotPlain(type(value).__name__)


def pack(value: Any, other: Callable[[Any], Any] = _refuse, depth: int = 0) -> Any:
    """`value` as JSON-ready data. Subclasses travel as their builtin base: what they override stays behind.

    other: gets what is no plain value, returns its JSON-ready stand-in or raises NotPlain.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_SAFE < value < _SAFE else {"i": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"f": repr(value)}
    if depth >= DEEPEST:
        raise NotPlain(f"more than {DEEPEST} levels")
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [pack(entry, other, depth + 1) for entry in value]}
    if kind is dict:
        return {"d": [[pack(k, other, depth + 1), pack(v, other, depth + 1)] for k, v in value.items()]}
    return _pack_rarer(value, kind, other, depth)


_DATES: dict[Any, str] = {datetime.date: "date", datetime.time: "time", datetime.datetime: "datetime"}
_SEQUENCES: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z"}


def _pack_rarer(value: Any, kind: type, other: Callable[[Any], Any], depth: int) -> Any:
    if kind in (bytes, bytearray):
        return {"b" if kind is bytes else "y": bytes(value).hex()}
    if kind is complex:
        return {"c": [repr(value.real), repr(value.imag)]}
    if kind is range:
        return {"r": [hex(value.start), hex(value.stop), hex(value.step)]}
    if kind is Decimal:
        return {"e": str(value)}
    if kind is Fraction:
        return {"q": [hex(value.numerator), hex(value.denominator)]}
    if kind is deque:
        return {"u": [pack(list(value), other, depth + 1), value.maxlen]}
    if kind is datetime.timedelta:
        return {"w": [value.days, value.seconds, value.microseconds]}
    if kind in _DATES and getattr(value, "tzinfo", None) is None:
        return {"m": [_DATES[kind], value.isoformat()]}
    for base in (int, float, str, list, tuple, set, frozenset, dict, bytes):
        if issubclass(kind, base):
            return pack(_as_base(value, base), other, depth)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return pack(value.item(), _refuse, depth)
    return other(value)


def _as_base(value: Any, base: Any) -> Any:
    """The builtin part of an instance of a subclass, by the base's own methods (`value` may lie about itself)."""
    if base in (int, float):
        return base.__pos__(value)
    if base is str:
        return str.__str__(value)
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))


def dumps(packed: Any) -> bytes:
    """ASCII, so that lone surrogates survive."""
    return json.dumps(packed, separators=(",", ":"), allow_nan=False).encode("ascii")


def loads(raw: bytes) -> Any:
    """JSON from a program under test. BadData when it is nested too deeply, has a long number, or is no JSON."""
    if _too_deep(raw):
        raise BadData("nested too deeply")
    try:
        return json.loads(
            raw.decode("ascii"), parse_int=_short_int, parse_float=_short_float, parse_constant=_refuse_text
        )
    except (ValueError, RecursionError) as error:
        raise BadData(str(error)[:200]) from None


def unpack(packed: Any, other: Callable[[str, Any], Any] | None = None, depth: int = 0) -> Any:
    """The value that `pack` was given. other: makes what a stand-in means, from its tag and content."""
    if packed is None or isinstance(packed, (bool, str, int, float)):
        return packed
    if depth > DEEPEST or not isinstance(packed, dict) or len(packed) != 1:
        raise BadData("not packed data")
    ((tag, content),) = packed.items()
    try:
        if tag in _PLURALS and isinstance(content, list):
            return _PLURALS[tag](unpack(entry, other, depth + 1) for entry in content)
        if tag == "d":
            return {unpack(k, other, depth + 1): unpack(v, other, depth + 1) for k, v in content}
        if tag == "u":
            return deque(unpack(content[0], other, depth + 1), content[1])
        if tag in _RARER:
            return _RARER[tag](content)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:  # unhashable keys, no hexadecimal, 1/0
        raise BadData(str(error)[:200]) from None
    if other is None:
        raise BadData("not packed data")
    return other(tag, content)


_PLURALS: dict[str, Callable[[Any], Any]] = {"l": list, "t": tuple, "s": set, "z": frozenset}
_RARER: dict[str, Callable[[Any], Any]] = {
    "i": lambda text: int(text, 16),
    "f": lambda text: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(text, math.nan),
    "b": bytes.fromhex,
    "y": bytearray.fromhex,
    "c": lambda parts: complex(float(parts[0]), float(parts[1])),
    "r": lambda parts: range(*(int(part, 16) for part in parts)),
    "e": lambda text: Decimal(text),
    "q": lambda parts: Fraction(int(parts[0], 16), int(parts[1], 16)),
    "w": lambda parts: datetime.timedelta(parts[0], parts[1], parts[2]),
    "m": lambda parts: {name: kind for kind, name in _DATES.items()}[parts[0]].fromisoformat(parts[1]),
}


def _too_deep(raw: bytes) -> bool:
    """Counts brackets outside of texts, without a loop over the characters in Python."""
    structure = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(structure.split(b'"')[::2]).translate(None, delete=_NO_BRACKETS)
    # a level of packed data is an object and an array; the pairs of a dict are one more
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > 4 * DEEPEST


_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _short_int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("a number too long")
    return int(text)


def _short_float(text: str) -> float:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("a number too long")
    return float(text)


def _refuse_text(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
