"""Whether what a program gave is what was expected. Runs in the trusted process, on plain data only."""

from __future__ import annotations

import math
from typing import Any


def same_output(printed: str, expected: str) -> bool:
    """The whole output; spaces at the ends of lines and blank lines at the end of the text are forgiven, no more."""
    return _tidy(printed) == _tidy(expected)


def _tidy(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def same_value(got: Any, expected: Any) -> bool:
    """Equal, and of the same type, all the way down. 2 and 2.0 are the same number; True is no number.

    JSON has no tuples and no keys but text: a tuple is accepted for a list, and the key 1 for "1". NaN is itself.
    """
    if isinstance(expected, bool) or isinstance(got, bool):
        return type(got) is type(expected) and got == expected
    if isinstance(expected, (int, float)):
        if type(got) not in (int, float):
            return False
        return got == expected or (_is_nan(got) and _is_nan(expected))
    if type(expected) is list:
        return (
            type(got) in (list, tuple)
            and len(got) == len(expected)
            and all(same_value(mine, theirs) for mine, theirs in zip(got, expected, strict=True))
        )
    if type(got) is not type(expected):
        return False
    if type(expected) is tuple:
        return len(got) == len(expected) and all(map(same_value, got, expected))
    if type(expected) is dict:
        return _same_dict(got, expected)
    if type(expected) in (set, frozenset):  # {True} == {1} in Python
        members = {member: member for member in got}
        return got == expected and all(same_value(members[member], member) for member in expected)
    return got == expected


def _is_nan(value: float) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _same_dict(got: dict[Any, Any], expected: dict[Any, Any]) -> bool:
    if len(got) != len(expected):
        return False
    keys = {key: key for key in got}
    by_text = {str(key): key for key in got if type(key) is int}
    for key, value in expected.items():
        if key in keys:
            mine = keys[key]
            same_key = same_value(mine, key)
        else:
            mine = by_text.get(key) if type(key) is str else None
            same_key = mine is not None
        if not same_key or not same_value(got[mine], value):
            return False
    return True
