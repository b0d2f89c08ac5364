"""Random numbers, sets, tuples, intervals and matrices in random spellings: equal exactly when their values are."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from reward_funcs import compute_score

pytestmark = pytest.mark.slow
WIDE = str.maketrans("0123456789-", "０１２３４５６７８９−")
FRAMES = (
    r"So \boxed{%s}.",
    "%s",
    "The answer is %s",
    "<answer>%s</answer>",
    "Step 1: 7\nStep 2: 9\nThe answer is:\n%s",
)


def decimal(x: Fraction) -> str | None:
    """The finite decimal of x, or None."""
    places = next((k for k in range(9) if (x * 10**k).denominator == 1), None)
    if places is None:
        return None
    digits = str(abs(int(x * 10**places))).rjust(places + 1, "0")
    return ("-" if x < 0 else "") + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def spelled(x: Fraction, rng: random.Random, *, alone: bool = True) -> str:
    """x in one of many spellings; alone: also in those that only an answer of one number has."""
    sign, n, d, m = "-" if x < 0 else "", abs(x.numerator), x.denominator, rng.randint(2, 5)
    ways = [f"{sign}{n}/{d}", rf"{sign}\frac{{{n}}}{{{d}}}", rf"{sign}\dfrac{{{n * m}}}{{{d * m}}}"]
    ways += [rf"\frac{{{sign}{n}}}{{{d}}}", rf"{sign}\tfrac {{{n}}} {{ {d} }}"]
    if text := decimal(x):
        ways += [text, f"{text}0" if "." in text else f"{text}.00"]
    if d == 1:
        ways += [f"{sign}{n}", f"{sign}{n}.0", f"{sign} {n}" if alone else f"{sign}{n}"]
    if alone:
        ways += [
            rf"$ {sign}\frac{{{n}}}{{{d}}} $",
            rf"\left({sign}\frac{{{n}}}{{{d}}}\right)",
            rf"x={sign}\frac{{{n}}}{{{d}}}",
        ]
        if d == 1:
            ways += [f"{sign}{n:,}", f"{sign}00{n}", rf"{sign}{n}\text{{ apples}}", f"{sign}{n}".translate(WIDE)]
        if (tenth := decimal(x / 1000)) and (hundredfold := decimal(x * 100)):
            ways += [rf"{tenth} \times 10^3", f"{hundredfold}e-2", rf"{hundredfold}\cdot10^{{-2}}"]
        if d > 1 and n > d:
            ways += [rf"{sign}{n // d}\frac{{{n % d}}}{{{d}}}", f"{sign}{n // d} {n % d}/{d}"]
    return rng.choice(ways)


def number(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(-60, 60), rng.choice([1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 100]))


@pytest.mark.parametrize("seed", range(4))
def test_a_number_is_the_same_in_every_spelling_and_no_other_is(seed: int):
    rng = random.Random(seed)
    for i in range(500):
        x = number(rng)
        other = rng.choice(
            [-x, x + 1, x / 10, x * 10, 1 / x if x else Fraction(1), x + Fraction(1, 100), x * 100, x / 100]
        )
        truth = x if i % 2 else other
        said, expected = spelled(x, rng), spelled(truth, rng)
        # "- 5" on a line of its own is the 5 of a list
        response = rng.choice(FRAMES[:-1] if said.startswith("- ") else FRAMES) % said
        assert compute_score("math", response, expected) == float(x == truth), (response, expected)


def shaped(kind: str, values: list[Fraction], rng: random.Random) -> str:
    """Values as a set, a tuple, an interval or a row or column of a matrix."""
    parts = [spelled(value, rng, alone=False) for value in values]
    space = rng.choice([",", ", ", r",\ ", " , "])
    if kind == "set":
        rng.shuffle(parts)
        left, right = rng.choice([(r"\{", r"\}"), (r"\left\{", r"\right\}"), (r"\lbrace ", r"\rbrace")])
        return left + space.join(parts) + right
    if kind in ("column", "row"):
        name = rng.choice(["pmatrix", "bmatrix"])
        return rf"\begin{{{name}}}" + (r" \\ " if kind == "column" else " & ").join(parts) + rf"\end{{{name}}}"
    left, right = {"tuple": ("(", ")"), "closed": ("[", "]"), "half": ("[", ")")}[kind]
    if rng.random() < 0.5:
        left, right = rf"\left{left}", rf"\right{right}"
    return left + space.join(parts) + right


@pytest.mark.parametrize("seed", range(4))
def test_a_structure_is_the_same_when_its_kind_and_its_values_are(seed: int):
    rng = random.Random(100 + seed)
    for _ in range(250):
        kind = rng.choice(["set", "tuple", "closed", "half", "column", "row"])
        count = 2 if kind in ("closed", "half") else rng.randint(2, 4)
        values = [number(rng) for _ in range(count)]
        while len(set(values)) < count:
            values = [number(rng) for _ in range(count)]
        other_kind, others = kind, list(values)
        change = rng.choice(["none", "none", "value", "order", "kind", "shorter"])
        if change == "value":
            others[rng.randrange(count)] += Fraction(1, 3)
        elif change == "order":
            others = [*others[1:], others[0]]
        elif change == "kind":
            other_kind = rng.choice(["set", "tuple", "column", "row"])
        elif change == "shorter" and count > 2:
            others = others[:-1]
        equal = kind == other_kind and (sorted(values) == sorted(others) if kind == "set" else values == others)
        response, truth = rf"\boxed{{{shaped(kind, values, rng)}}}", shaped(other_kind, others, rng)
        assert compute_score("math", response, truth) == float(equal), (response, truth)
