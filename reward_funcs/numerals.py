r"""A written number read exactly: `read_number` gives a Fraction, `same_number` compares two of them.

Policies. Exact: no tolerance, 0.333 is not 1/3; only a decimal of at least six significant digits may stand for a
fraction that has no finite decimal. Percent: 28% is 28 percent and also 0.28; two percentages are compared as they
stand, a truth of 28% takes a bare 28, and a bare truth of 28 takes 28%, but a bare truth below 1 takes a percentage
by its value only (0.5 is 50%, not 0.5%). Units: one that is missing on either side is forgiven, two that differ are
not, and none is converted. 1e3 is a thousand. A number beyond a thousand digits is not read. inf and nan are no
numbers. Left out: sums, roots, powers other than of ten: an expression is not an answer, and 15+27 is not yet 42.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from reward_funcs.chinese_numerals import to_digits
from reward_funcs.units import same_unit, unit_name

_LARGEST_EXPONENT = 1_000
_MOST_DIGITS = 1_000
_FEWEST_DIGITS = 6  # significant, of a decimal that stands for a fraction

_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_SCALES |= {"百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8}
_SCALE = re.compile(r"\s?(hundred|thousand|million|billion|trillion|dozen|[百千万亿])s?(?![A-Za-z])", re.IGNORECASE)
_PERCENT = re.compile(r"\s?(?:%|(?:percent(?:age)?|per cent|pct)(?![A-Za-z]))", re.IGNORECASE)

_WHOLE = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.[0-9]*)?|\.[0-9]+)"
_SIGNED = rf" ?([+-]? ?{_DECIMAL}) ?"
_EXPONENT = r"(?:\{ ?([+-]? ?[0-9]{1,9}) ?\}|([+-]?[0-9]{1,9}))"
_SIGN_AND_CURRENCY = re.compile(r"([+-]?) ?((?:US|HK|A|C)?\$|[€£¥₹]|(?:USD|RMB|CNY|EUR|GBP)(?=[ 0-9]))? ?([+-]?)")
_LATEX_FRACTION = re.compile(rf"(?:([0-9]+) ?)?\\frac ?\{{{_SIGNED}\}} ?\{{{_SIGNED}\}}")
_SLASH_FRACTION = re.compile(rf"(?:([0-9]+)(?: and)? )?({_DECIMAL}) ?/ ?({_DECIMAL})(?! ?/)")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\overline ?\{ ?([0-9]+) ?\}")
_POWER_OF_TEN = re.compile(rf"()10 ?\^ ?{_EXPONENT}")
_SCIENTIFIC = re.compile(rf"({_DECIMAL}) ?[*×x] ?10 ?\^ ?{_EXPONENT}")
_E_NOTATION = re.compile(rf"({_DECIMAL})[eE]([+-]?[0-9]{{1,9}})()")
_PLAIN = re.compile(rf"({_DECIMAL})()()")

_Magnitude = tuple[Fraction, "Fraction | None", int]  # value, worth of the last decimal, significant digits


@dataclass(frozen=True)
class Number:
    """A number as it was written. value: exact, 28 for 28%. last_place: worth of its last decimal; None for a fraction.

    digits: significant digits written, 0 for a fraction. percent: a percent sign followed. unit: "" without one.
    """

    value: Fraction
    last_place: Fraction | None
    digits: int
    percent: bool
    unit: str


@lru_cache(maxsize=2048)  # an answer is read where it is looked for, and again where it is compared
def read_number(tidied: str) -> Number | None:
    """The number that the whole of a tidied text is, with its unit, or None when it is anything else."""
    if tidied.isascii() and tidied.isdigit() and len(tidied) <= _MOST_DIGITS:
        return Number(Fraction(int(tidied)), Fraction(1), len(tidied.lstrip("0")), False, "")
    text = to_digits(tidied)
    prefix = _SIGN_AND_CURRENCY.match(text)
    if not prefix or (prefix[1] and prefix[3]):
        return None
    found = _magnitude(text, prefix.end())
    if found is None:
        return None
    (value, last_place, digits), end = found
    rest, scale = text[end:], 1
    while word := _SCALE.match(rest):
        rest, scale = rest[word.end() :], scale * _SCALES[word.group(1).lower()]
        if scale > 10**24:
            return None
    sign = _PERCENT.match(rest)
    rest = rest[sign.end() :] if sign else rest
    unit = unit_name(rest, attached=rest[:1] not in (" ", "(") and scale == 1 and not sign)
    if unit is None:
        return None
    if prefix[2]:
        unit = unit_name(prefix[2], attached=False) or unit
    scale = -scale if "-" in (prefix[1], prefix[3]) else scale
    return Number(value * scale, last_place and last_place * abs(scale), digits, bool(sign), unit)


def same_number(answer: Number, truth: Number) -> bool:
    """Whether `answer` states the value of `truth`, by the policies at the top of this file."""
    if not same_unit(answer.unit, truth.unit):
        return False
    if answer.percent == truth.percent:
        return _same_value(answer, truth, Fraction(1))
    if answer.unit or truth.unit:
        return False
    as_share = Fraction(1, 100) if answer.percent else Fraction(100)
    if _same_value(answer, truth, as_share):
        return True
    return (truth.percent or abs(truth.value) >= 1) and _same_value(answer, truth, Fraction(1))


def _same_value(answer: Number, truth: Number, factor: Fraction) -> bool:
    """answer * factor == truth, or one is the decimal of the other, a fraction without a finite decimal."""
    if answer.value * factor == truth.value:
        return True
    if answer.last_place is not None and truth.last_place is None:
        return answer.digits >= _FEWEST_DIGITS and _stands_for(answer.value * factor, answer.last_place * factor, truth)
    if truth.last_place is not None and answer.last_place is None:
        written = replace(answer, value=answer.value * factor)
        return truth.digits >= _FEWEST_DIGITS and _stands_for(truth.value, truth.last_place, written)
    return False


def _stands_for(decimal: Fraction, last_place: Fraction, fraction: Number) -> bool:
    """Whether the decimal is the fraction rounded or cut at its last place, and no finite decimal would be exact."""
    was_cut = abs(decimal) < abs(fraction.value)
    if abs(decimal - fraction.value) > last_place / (1 if was_cut else 2):
        return False
    rest = fraction.value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest > 1


def _magnitude(text: str, start: int) -> tuple[_Magnitude, int] | None:
    """The unsigned number at `start` and where it ends; None for none, for 1/0 and for one too long to read."""
    for pattern, read in _FORMS:
        if match := pattern.match(text, start):
            if any(len(part) > _MOST_DIGITS for part in match.groups() if part):
                return None
            magnitude = read(*match.groups())
            return magnitude and (magnitude, match.end())
    return None


def _decimal(text: str, exponent: str | None, in_braces_or_not: str | None) -> _Magnitude | None:
    power = int((exponent or in_braces_or_not or "0").replace(" ", ""))
    if abs(power) > _LARGEST_EXPONENT:
        return None
    whole, _, places = (text or "1").replace(",", "").replace(" ", "").partition(".")
    last_place = Fraction(10) ** (power - len(places)) if power != len(places) else Fraction(1)
    return Fraction(int(whole + places)) * last_place, last_place, len((whole + places).lstrip("0"))


def _fraction(whole: str | None, top: str, under: str) -> _Magnitude | None:
    over, below = _signed(top), _signed(under)
    if below == 0:
        return None
    value = over / below
    if whole is None:
        return value, None, 0
    return (int(whole) + value, None, 0) if 0 <= value < 1 else None  # 2\frac{3}{2}: a sum or a product? neither


def _repeating(whole: str, places: str, period: str) -> _Magnitude:
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    return (int(whole + places or "0") + repeated) / 10 ** len(places), None, 0


def _signed(text: str) -> Fraction:
    number = text.replace(",", "").replace(" ", "")
    whole, _, places = number.lstrip("+-").partition(".")
    value = Fraction(int(whole + places), 10 ** len(places))
    return -value if number.startswith("-") else value


# The first that fits is the one meant: 1 1/2 before 1, 10^6 and 1.5e3 before 10 and 1.5.
_FORMS = [
    (_LATEX_FRACTION, _fraction),
    (_SLASH_FRACTION, _fraction),
    (_REPEATING, _repeating),
    (_POWER_OF_TEN, _decimal),
    (_SCIENTIFIC, _decimal),
    (_E_NOTATION, _decimal),
    (_PLAIN, _decimal),
]
