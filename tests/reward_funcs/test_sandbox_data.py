"""Plain data over a boundary: it keeps its types, and what is not it is refused."""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest

from reward_funcs.sandbox.data import BadData, NotPlain, dumps, loads, pack, unpack

pytestmark = pytest.mark.slow  # processes of its own

Pair = namedtuple("Pair", "a b")


class Two(IntEnum):
    TWO = 2


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def _there_and_back(value: object) -> object:
    return unpack(loads(dumps(pack(value))))


PLAIN = [
    *(None, True, False, 0, -5, 2**53, -(10**5000), 1.5, -0.0, math.inf, -math.inf, "", "é\n\ud800\x00", b"\xff"),
    *(bytearray(b"x"), [], [1, [2, (3,)]], (), (1,), set(), {1, "a", (2,)}, frozenset({1}), {}, {1: 2, (3, 4): [5]}),
    *(1j, complex(math.inf, -2.5), range(2, 10, 3), Decimal("1.10"), Fraction(-1, 3), {"v": {"l": []}}),
    *('{"l": [', "[[[" * 500, date(2020, 1, 2), datetime(2020, 1, 2, 3, 4, 5, 6), time(1, 2), timedelta(-1, 2, 3)),
    *(deque([1, (2,)]), deque([1], 5)),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_itself_with_its_types(value: object):
    back = _there_and_back(value)
    assert type(back) is type(value)
    assert back == value
    assert not isinstance(value, float) or math.copysign(1, value) == math.copysign(1, back)  # type: ignore[arg-type]


def test_random_values_come_back():
    rng = random.Random(3)

    def value(depth: int) -> object:
        kind = rng.randrange(9 if depth else 5)
        leaf = [rng.getrandbits(90), rng.random(), rng.choice('aé\n\\"[]{}'), None, rng.random() < 0.5]
        if kind < 5:
            return leaf[kind]
        inner = [value(depth - 1) for _ in range(rng.randrange(4))]
        return [inner, tuple(inner), {str(i): v for i, v in enumerate(inner)}, dict(enumerate(inner))][kind - 5]

    for _ in range(300):
        made = value(4)
        assert _there_and_back(made) == made


def test_nan_comes_back():
    assert math.isnan(_there_and_back([math.nan])[0])  # type: ignore[index]


def test_subclasses_travel_as_their_builtin_base_without_what_they_override():
    for value, plain in (
        (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(a=1), {"a": 1}), (defaultdict(int, {1: 2}), {1: 2}),
        (Pair(1, 2), (1, 2)), (Two.TWO, 2), (Liar(7), 7),
    ):  # fmt: skip
        back = _there_and_back(value)
        assert type(back) is type(plain)
        assert back == plain


def test_an_object_and_an_endless_list_are_not_plain():
    endless: list[object] = []
    endless.append(endless)
    for value in (object(), [object()], {1: object()}, print, int, endless, iter([]), (x for x in "a")):
        with pytest.raises(NotPlain):
            pack(value)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"nope", b"[" * 1_000_000, b"[" * 200_000 + b"]" * 200_000, b'{"l":' * 50_000, b"NaN",
        b"Infinity",
        b"9" * 100_000, b"-" + b"1" * 50, b"1e" + b"0" * 100 + b"9", b"\xff", "é".encode(), b"{]", b'"' + b"[",
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_at_once(raw: bytes):
    with pytest.raises(BadData):
        loads(raw)


@pytest.mark.parametrize(
    "message",
    [
        [], [1], {"l": 3}, {"l": None}, {"d": [[1]]}, {"d": [[{"l": []}, 1]]}, {"s": [{"l": []}]}, {"i": "zz"},
        {"i": 3},
        {"b": "xyz"}, {"r": ["0x1", "0x2", "0x0"]}, {"q": ["0x1", "0x0"]}, {"e": "no"}, {"c": [1]}, {},
        {"l": [], "t": []},
        {"h": 0}, {"__class__": "os"}, {"x": {}},
    ],
)  # fmt: skip
def test_json_that_is_no_packed_value_is_refused(message: object):
    with pytest.raises(BadData):
        unpack(message)


def test_brackets_in_texts_are_no_nesting():
    text = '["\\' * 3000
    assert _there_and_back({"k": text}) == {"k": text}


@pytest.mark.parametrize(
    "forged",
    [
        {"m": ["date", 5]}, {"m": ["object", "2020-01-02"]}, {"m": []}, {"m": "date"}, {"w": [1, 2]},
        {"w": [10**30, 0, 0]}, {"w": ["a", 0, 0]}, {"u": [{"l": []}, -1]}, {"u": [5, None]}, {"u": []}, {"u": 3},
    ],
    ids=str,
)  # fmt: skip
def test_forged_dates_and_deques_are_no_data(forged: object):
    with pytest.raises(BadData):
        unpack(loads(dumps(forged)))
