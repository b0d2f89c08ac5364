r"""Whether an answer to a mathematical problem is the right one: exact numbers, then structure, then the same LaTeX.

math_reasoning, gsm8k and math share this. Numbers follow the policies of numerals.py. Sets and bare lists are
unordered, tuples, intervals and matrices ordered; `x=5` is 5 unless both sides name a variable and the names differ.
An empty answer never matches. Algebra (1+x is x+1) comes last, after what is cheap and exact, and is symbolic.py's.
"""

from __future__ import annotations

import re
from functools import lru_cache

from reward_funcs.latex import canonical, tidy
from reward_funcs.math_answer import announced_answer, final_answer
from reward_funcs.numerals import Number, read_number, same_number
from reward_funcs.structure import ORDERED, SET, UNION, UNORDERED, as_interval, named_value, only_element, structure
from reward_funcs.symbolic import Budget
from reward_funcs.units import unit_name

_DEEPEST = 4  # brackets in brackets; deeper ones are compared as text
_MOST_UNORDERED = 24  # elements; a longer list is compared as sorted text
_DECIMAL_COMMA = re.compile(r"([+-]?[0-9]{1,300}),([0-9]{1,300})")
_CHOICE = re.compile(r"(?:[Oo]ption |[Cc]hoice )?(?:\( ?([A-J]) ?\)|([A-J])(?=[).:]|$))[).:]?(?: (?P<rest>.{1,200}))?")
_MORE_CHOICES = re.compile(r"\b(?:or|and)\b|\([A-J]\)|\b[A-J][).:]|[或和]")
_CHOICES = frozenset("ABCDEFGHIJ")
Shape = tuple[str, list[str]]
_TRAILING_UNIT = re.compile(r"(.*[})\w]) ((?:square |cubic )?[a-z]{2,12}(?:\^\{?[23]\}?|s)?|°)", re.DOTALL)


def math_score(response: str, ground_truth: str) -> float:
    """1.0 when the response's final answer is the ground truth's, else 0.0."""
    return float(same_answer(final_answer(response), _announced(ground_truth)))


@lru_cache(maxsize=4096)  # a truth is compared with every response of its group
def _announced(ground_truth: str) -> str:
    return ground_truth if _is_integer(ground_truth) else announced_answer(ground_truth)


def same_answer(answer: str, truth: str) -> bool:
    """Whether two answers, already cut out of their texts, say the same."""
    if _is_integer(answer) and _is_integer(truth):  # most of what is compared, ten times as fast
        return int(answer) == int(truth)
    return _same(tidy(answer), tidy(truth), _DEEPEST, Budget())


def _is_integer(text: str) -> bool:
    return len(text) < 300 and text.isascii() and text.isdigit()


def _same(answer: str, truth: str, depth: int, budget: Budget) -> bool:
    whole = answer, truth
    answer, truth = _values(answer, truth)
    if not answer or not truth:
        return False
    ours, theirs = read_number(answer), read_number(truth)
    if ours and theirs:
        return same_number(ours, theirs)
    if canonical(answer) == canonical(truth) or (truth in _CHOICES and _choice(answer) == truth):
        return True
    if depth == 0:
        return False
    if ours or theirs:
        one, other = (answer, theirs) if theirs else (truth, ours)
        return bool(other and _same_as_number(one, other, is_answer=bool(theirs))) or budget.same(answer, truth)
    if _same_structure(answer, truth, depth, budget) or _same_without_unit(answer, truth):
        return True
    return budget.same(answer, truth) or (whole != (answer, truth) and budget.same(*whole))


def _choice(text: str) -> str:
    """The letter of an answer such as `Option B`, `B)` or `(B) 5`; "" for none, and for more than one."""
    match = _CHOICE.fullmatch(text)
    return (match[1] or match[2]) if match and not _MORE_CHOICES.search(match["rest"] or "") else ""


def _values(answer: str, truth: str) -> tuple[str, str]:
    """Both sides without the name they are given; two different names stay, and so do not match."""
    (our_name, ours), (their_name, theirs) = named_value(answer), named_value(truth)
    return (answer, truth) if our_name and their_name and our_name != their_name else (ours, theirs)


def _same_as_number(text: str, number: Number, *, is_answer: bool) -> bool:
    """Something that is no number against one: ❴5❵ is 5, and 1,22 is 1.22 where a comma marks decimals.

    is_answer: `text` is the answer and `number` the truth, else the other way round.
    """
    decimal = _DECIMAL_COMMA.sub(r"\1.\2", text) if _DECIMAL_COMMA.fullmatch(text) else only_element(text)
    read = read_number(decimal) if decimal != text else None
    return read is not None and (same_number(read, number) if is_answer else same_number(number, read))


def _same_structure(answer: str, truth: str, depth: int, budget: Budget) -> bool:
    ours, theirs = structure(answer), structure(truth)
    if ours and not theirs:
        theirs = structure(as_interval(truth))
    elif theirs and not ours:
        ours = structure(as_interval(answer))
    elif not ours:
        ours, theirs = structure(as_interval(answer)), structure(as_interval(truth))
    if not ours or not theirs:
        return False
    (our_kind, our_parts), (their_kind, their_parts) = _as_unions(ours, theirs)
    kinds = {our_kind, their_kind}
    # A list without brackets may be meant as a set or as a tuple.
    if len(our_parts) != len(their_parts) or not (len(kinds) == 1 or kinds in ({UNORDERED, SET}, {UNORDERED, ORDERED})):
        return False
    if kinds <= {UNORDERED, SET, UNION}:
        return _same_unordered(our_parts, their_parts, depth - 1, budget)
    return all(_same(ours, theirs, depth - 1, budget) for ours, theirs in zip(our_parts, their_parts, strict=True))


def _as_unions(*sides: Shape) -> list[Shape]:
    r"""`x \le -1 or x \ge 1` as the union that the other side writes."""
    if not any(kind == UNION for kind, _ in sides):
        return list(sides)
    found = []
    for kind, parts in sides:
        pieces = [as_interval(part) for part in parts]
        is_union = kind == UNORDERED and all(piece != part for piece, part in zip(pieces, parts, strict=True))
        found.append((UNION, pieces) if is_union else (kind, parts))
    return found


def _same_unordered(ours: list[str], theirs: list[str], depth: int, budget: Budget) -> bool:
    if len(ours) > _MOST_UNORDERED:
        return sorted(map(canonical, ours)) == sorted(map(canonical, theirs))
    left = list(theirs)
    for part in ours:
        match = next((i for i, other in enumerate(left) if _same(part, other, depth, budget)), None)
        if match is None:
            return False
        del left[match]
    return not left


def _same_without_unit(answer: str, truth: str) -> bool:
    r"""`2\sqrt{3} cm` is `2\sqrt{3}` when only one of the two has a unit."""
    sides = []
    for text in (answer, truth):
        match = _TRAILING_UNIT.fullmatch(text)
        is_unit = bool(match and "\\" in match[1] and unit_name(match[2], attached=False))
        sides.append(match[1] if match and is_unit else text)
    only_one = (sides[0] != answer) != (sides[1] != truth)
    return only_one and canonical(sides[0]) == canonical(sides[1])
