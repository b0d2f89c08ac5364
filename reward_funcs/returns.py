"""What a reward may return. A finite number is a score; so is a dict with `score`, whose other numbers are its parts.

Everything else (None, NaN, text, lists, tensors of more than one number) is a failed call, never a 0.
"""

from __future__ import annotations

import inspect
import math
import numbers
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reward_funcs.errors import NotScored, RewardError


@dataclass(frozen=True)
class Score:
    """score: what training maximises. parts: what it is made of, by name, for the curves."""

    score: float
    parts: dict[str, float] = field(default_factory=dict)


ERRORS = "errors"  # no part has this name: reward/errors counts the calls that failed
Attempt = Score | BaseException  # what became of one call


def checked(result: Any, place: str) -> Score:
    """What a reward returned for one response, as a Score; raises RewardError. place: the reward, for the message."""
    if isinstance(result, Score):
        _check_names(result.parts, place)
        return Score(_finite(_number(result.score), result.score, place), dict(result.parts))
    if isinstance(result, Mapping):
        if "score" not in result:
            raise RewardError(f"{place} returned a dict without 'score': it has {_listed(result)}")
        parts = {str(name): _number(value) for name, value in result.items() if name != "score"}
        _check_names(parts, place)
        for name, value in parts.items():
            if value is not None and not math.isfinite(value):
                raise RewardError(f"{place} returned {value} for the part '{name}'; parts have to be finite numbers")
        score = _number(result["score"])
        named = {name: value for name, value in parts.items() if value is not None}  # text cannot be a curve
        return Score(_finite(score, result["score"], place), named)
    return Score(_finite(_number(result), result, place))


def _check_names(parts: Mapping[str, Any], place: str) -> None:
    """The curve of a part is reward/NAME."""
    if ERRORS in parts:
        raise RewardError(
            f"{place} returned a part '{ERRORS}': reward/{ERRORS} is the count of failed reward calls; rename it"
        )


def checked_list(result: Any, count: int, place: str) -> list[Attempt]:
    """What a reward returned for `count` responses, one by one; raises RewardError when it is no list of that many.

    None in the list stands for "does not apply to this response", as in TRL: NotScored. An exception is a failed call.
    """
    if callable(getattr(result, "tolist", None)) and len(getattr(result, "shape", ())) == 1:  # numpy, torch
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        raise RewardError(f"{place} returned {_shown(result)}; a reward of `completions` returns a list of scores")
    if len(result) != count:
        raise RewardError(f"{place} returned {len(result)} scores for {count} completions; it has to be one for each")
    return [_one_of_list(value, place) for value in result]


def _one_of_list(value: Any, place: str) -> Attempt:
    if isinstance(value, BaseException):
        return value
    if value is None:
        return NotScored(f"{place} gave None: it does not apply to this response, and no other reward does")
    try:
        return checked(value, place)
    except RewardError as error:
        return error


def _listed(names: Mapping[Any, Any]) -> str:
    return ", ".join(repr(str(name)[:40]) for name in list(names)[:8]) or "nothing"


def _number(value: Any) -> float | None:
    """A float for bool, int, float and the scalars of numpy and torch; None for anything else."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _finite(score: float | None, returned: Any, place: str) -> float:
    if score is not None and math.isfinite(score):
        return score
    if inspect.iscoroutine(returned):
        returned.close()  # or Python warns, later and elsewhere, that nobody awaited it
    raise RewardError(f"{place} returned {_shown(returned)}; a reward is a finite number, or a dict with 'score'")


def _shown(returned: Any) -> str:
    if returned is None:
        return "None (is a `return` missing?)"
    return f"{reprlib.repr(returned)} ({type(returned).__name__})"
