r"""What shape a tidied answer has: a value with a name (`x = 5`), or a set, tuple, interval, list, union or matrix.

Only the shape. Whether the parts are equal is math_match.py's.
"""

from __future__ import annotations

import re

from reward_funcs.latex import ROW, SET_CLOSE, SET_OPEN, canonical, outer_brackets, top_level_parts
from reward_funcs.numerals import read_number

ORDERED, UNORDERED, SET, UNION = "()", "", "{}", "cup"  # kinds; intervals and matrices name theirs themselves

_DEEPEST_SHELL = 4
_LETTER = r"[A-Za-z](?:_(?:\{[0-9A-Za-z]{1,9}\}|[0-9A-Za-z]))?"
_POINTS = r"(?:\\(?:angle|triangle|overline) ?)?\{? ?[A-Z]{1,4} ?\}?"
_NAME = (
    r"[A-Za-z][A-Za-z ]{1,30}|[A-Za-z](?:_\{?[0-9A-Za-z]{1,9}\}?|'|\([A-Za-z]\))?|\\[a-z]{1,9}"
    rf"|\( ?{_LETTER}(?: ?, ?{_LETTER}){{1,5}} ?\)"  # (p,q)
    rf"|\| ?[A-Z]{{1,3}} ?\||{_POINTS}(?: ?: ?{_POINTS})?|{_LETTER} ?: ?{_LETTER}"
    r"|\\frac\{[A-Z]{1,3}\}\{[A-Z]{1,3}\}"
)
_ASSIGNMENT = re.compile(rf"({_NAME}) ?(?:=|\\in(?![a-z])|\\approx(?![a-z])) ?(?=\S)(?!=)")
_ARITHMETIC = re.compile(r"[0-9+\-*/^().,{} =$%]{1,500}")
_OR = re.compile(r" ?(?:\bor\b|\band\b|或者|或|和|;) ?|, ?(?:or|and) ")
_MATRIX = re.compile(
    r"(?:\[ ?)?\\begin ?\{([pbBvV]?matrix|array)\}(?:\{[lcr| ]{0,20}\})?(.{0,1900})\\end ?\{\1\}(?: ?\])?", re.DOTALL
)
_CHAIN = re.compile(r"([^<>=]{1,99}?) ?(<|\\le) ?([A-Za-z](?:\([A-Za-z]\))?) ?(<|\\le) ?([^<>=]{1,99})")
_FALLING = re.compile(r"([^<>=]{1,99}?) ?(>|\\ge) ?([A-Za-z](?:\([A-Za-z]\))?) ?(>|\\ge) ?([^<>=]{1,99})")
_OUTWARD = re.compile(r"([\[\]]) ?([^\[\](){}]{1,200},[^\[\](){}]{1,200}?) ?([\[\]])")
_VALUE_FIRST = re.compile(r"([^=]{1,200}?) ?= ?([A-Za-z](?:_\{?[0-9A-Za-z]{1,9}\}?)?)")
_HALF_LINE = re.compile(r"([A-Za-z]) ?(<|>|\\le|\\ge) ?([^<>=]{1,99})")


def named_value(text: str) -> tuple[str, str]:
    """(name, value): `x = 5` gives ("x", "5"), `15 + 27 = 42` gives ("", "42"), what names nothing ("", text)."""
    text = without_shell(text).removeprefix("=").removeprefix(r"\approx").strip()
    if (turned := _VALUE_FIRST.fullmatch(text)) and read_number(turned[1]):  # 3 = x
        text = f"{turned[2]} = {turned[1]}"
    name = _ASSIGNMENT.match(text)
    if name and (_OR.search(text) or len(top_level_parts(text, ",")) > 1):
        return "", text
    value = text[name.end() :].strip() if name else text
    exact = value.partition(r"\approx")[0].strip()
    chain, _, last = exact.rpartition("=")
    if (exact != value or chain) and read_number(last.strip()) and (not chain or _ARITHMETIC.fullmatch(chain)):
        value = last.strip()
    return (name[1].strip() if name else ""), value


def without_shell(text: str) -> str:
    """`(5)` and `{5}` as 5; a list in brackets keeps them."""
    for _ in range(_DEEPEST_SHELL):
        shell = outer_brackets(text)
        if not shell or shell[0] + shell[2] not in ("()", "{}") or len(top_level_parts(shell[1], ",;")) > 1:
            break
        text = shell[1].strip()
    return text


def only_element(text: str) -> str:
    """`❴5❵` as 5: a set of one element may stand for it."""
    shell = outer_brackets(text)
    return shell[1].strip() if shell and shell[0] == SET_OPEN else text


def as_interval(text: str) -> str:
    r"""`1 < x \le 2` as `(1,2]`, `x \ge 5` as `[5,\infty)` and `]0,1[` as `(0,1)`; any other text as it is."""
    if match := _CHAIN.fullmatch(text):
        return f"{'(['[match[2] != '<']}{match[1].strip()},{match[5].strip()}{')]'[match[4] != '<']}"
    if match := _FALLING.fullmatch(text):
        return f"{'(['[match[4] != '>']}{match[5].strip()},{match[1].strip()}{')]'[match[2] != '>']}"
    if (match := _OUTWARD.fullmatch(text)) and match[1] + match[3] != "[]":  # ]0,1[ is (0,1)
        return f"{'(['[match[1] == '[']}{match[2]}{')]'[match[3] == ']']}"
    if match := _HALF_LINE.fullmatch(text):
        end, is_open = match[3].strip(), match[2] in "<>"
        if match[2] in ("<", r"\le"):
            return rf"(-\infty,{end}{')' if is_open else ']'}"
        return rf"{'(' if is_open else '['}{end},\infty)"
    return text


def structure(text: str) -> tuple[str, list[str]] | None:
    """(kind, parts) of an answer that is made of several; None for one that is not."""
    if matrix := _MATRIX.fullmatch(text):
        rows = [row for row in matrix[2].split(ROW) if row.strip()]
        kind = {"vmatrix": "determinant", "Vmatrix": "norm"}.get(matrix[1], "matrix")
        return f"{kind} of {len(rows)} rows", [cell.strip() for row in rows for cell in row.split("&")]
    if r"\cup" in text:
        return UNION, [part.strip() for part in text.split(r"\cup")]
    if text.count(r"\pm") == 1:
        return UNORDERED, [text.replace(r"\pm", sign).removeprefix("+").strip() for sign in "+-"]
    shell = outer_brackets(text)
    if shell and shell[0] == SET_OPEN and shell[2] == SET_CLOSE:
        return SET, _distinct(top_level_parts(shell[1], ","))
    if shell and len(parts := top_level_parts(shell[1], ",")) > 1:
        kind = shell[0] + shell[2]
        return (UNORDERED if kind == "{}" else kind), parts  # bare braces are LaTeX's, and may hold any list
    parts = [part for part in top_level_parts(_OR.sub(",", text), ",") if part]
    if len(parts) < 2:
        return None
    names = {match[1] for part in parts if (match := _ASSIGNMENT.match(part))}
    if len(names) == 1 or _numbered(names, parts):  # x=1, x=2 and x=1, 2 and x_1=1, x_2=2: one variable's values
        parts = [_ASSIGNMENT.sub("", part, count=1) for part in parts]
    return UNORDERED, parts


def _numbered(names: set[str], parts: list[str]) -> bool:
    """Whether every part is named, by one letter with different numbers."""
    return len(names) == len(parts) and len({re.sub(r"_\{?[0-9]\}?$", "", name) for name in names}) == 1


def _distinct(parts: list[str]) -> list[str]:
    seen: dict[object, str] = {}
    for part in parts:
        number = read_number(part)
        seen.setdefault((number.value, number.percent) if number else canonical(part), part)
    return list(seen.values())
