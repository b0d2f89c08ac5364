r"""The one answer that a response to a mathematical problem commits to. Comparing it is math_match.py's.

Order: the last formal mark (`\boxed{}`, `#### 18`, `<answer>`, "the final answer is 18"); without one the last phrase
that announces an answer ("the answer is", `A: 18`, 答案是); without one the last number, or the last mathematics of the
last line. One answer comes out, never a choice: a response cannot earn by naming several. A box that never closes was
cut off and is empty.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from reward_funcs.latex import tidy
from reward_funcs.markers import Mark, Phrase, last_box, last_tag, phrases
from reward_funcs.numerals import read_number
from reward_funcs.plain_text import ANSWER_LIMIT, spoken
from reward_funcs.units import measure_at

_CALCULATOR = re.compile(r"<<[^<>\n]{0,200}>>")  # GSM8K's annotations, <<3*6=18>>18
_HASHES = re.compile(r"#### ?([^\n]{1,200})")
_MOST_HASHES = 20  # looked at, from the last
_ENUMERATION = re.compile(r"[0-9]{1,2}[.)] ?[^\W0-9]")
_SENTENCE_END = re.compile(r"[。!]|[.;](?=\s|$)|;(?=[一-鿿])")
_REASON = re.compile(r" (?:because|since|as|so|when|if)\b|,? ?(?:因为|所以)", re.IGNORECASE)
_ASIDE = re.compile(rf" ?, ?(?=[A-Za-z一-鿿])| \((?=\w)|{_REASON.pattern}", re.IGNORECASE)
_ALTERNATIVE = re.compile(r"\bor\b|或|还是", re.IGNORECASE)
_WORD = re.compile(
    r"(?<![\\A-Za-z])(?!(?:and|sin|cos|tan|cot|sec|csc|log|exp|sqrt|mod|lim|max|min|gcd|lcm|inf)(?![A-Za-z]))[A-Za-z]{3,}"
    r"|(?<!\\)\b(?:[Ii]t|[Ss]o|[Hh]e|[Ww]e|is|in|of)\b|(?![或和])[一-鿿]"
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end) ?\{[A-Za-z]{1,20}\}")
_DOLLARS = re.compile(r"\$\$?([^$\n]{1,500})\$\$?(?![0-9])")
_PARENTHESES = re.compile(r"\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]")
_TOKEN = re.compile(r"(?:[^\s一-鿿。、]|分之|(?<=[0-9])又(?=[0-9]))+")
_TEXT = re.compile(r"\\[a-z]+ ?\{[^{}]*\}")
_CHANGED_BY_WHAT_FOLLOWS = re.compile(
    r" ?(?:and (?:a|one|two|three) )?(?:hal(?:f|ves)|thirds?|fourths?|fifths?|sixths?|eighths?|tenths?|hundredths?)\b"
    r"| ?(?:squared|cubed|factorial|pi)\b|[个元米年天岁]?[半多]",
    re.IGNORECASE,
)
_DENIED = re.compile(r"(?:not|never|cannot|neither|\w+n't)|.*(?:不是|不等于|并非|非)", re.IGNORECASE)
_COMPARED = re.compile(r"\b(?:than|between \S{1,40} and)$", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]{1,9},[0-9]{1,2}")
_SCALE = re.compile(r" ?(?:hundred|thousand|million|billion|dozen|percent|%|[百千万亿])+", re.IGNORECASE)
_OPERATORS = set("+*/^×÷=<>")
_EDGES = " '\"`*_()[]<>,;:!?.。、"


def final_answer(response: str) -> str:
    """The answer in `response`, as written there; "" when it gives none. Linear in its length."""
    text = _CALCULATOR.sub("", spoken(response))
    announced = phrases(text)
    formal = _formal(text, announced)
    if formal is not None:
        return formal
    for phrase in announced:
        said = _stated(phrase.line, is_last=phrase.last)
        if said is not None:
            return said
    return _unmarked(text)


def announced_answer(truth: str) -> str:
    """The answer in a ground truth: what a mark announces (`#### 18` below a whole solution), else all of it."""
    text = _CALCULATOR.sub("", spoken(truth))
    announced = phrases(text)
    formal = _formal(text, announced)
    if formal is not None:
        return formal
    for phrase in announced:
        return _stated(phrase.line, is_last=True) or phrase.line
    return text.strip()


def _formal(text: str, announced: Sequence[Phrase]) -> str | None:
    marks = [mark for mark in (last_box(text), last_tag(text), _last_hashes(text), _final_phrase(announced)) if mark]
    if not marks:
        return None
    start, content = max(marks)
    is_tag = text.startswith("<", start)
    return _stated(content.strip(), is_last=True) or "" if is_tag else content.strip()


def _final_phrase(announced: Sequence[Phrase]) -> Mark | None:
    """The last "final answer is", if a number or a formula follows at once."""
    for phrase in announced:
        if phrase.final:
            said = _stated(phrase.line, is_last=False)
            return (phrase.start, said) if said and (_is_number(said) or _last_mathematics(phrase.line)) else None
    return None


def _last_hashes(text: str) -> Mark | None:
    """The last `#### 18`; a heading (`#### Step 2`, `#### 1. Plan`) is none."""
    if "####" not in text:
        return None
    for match in reversed(deque(_HASHES.finditer(text), maxlen=_MOST_HASHES)):
        line = match[1].strip()
        if not _ENUMERATION.match(line) and _is_number(line):
            return match.start(), line
    return None


def _is_number(text: str) -> bool:
    return read_number(tidy(text)) is not None


def _stated(line: str, *, is_last: bool) -> str | None:
    """The answer in the words behind a mark, or None when they give none (a heading, a sentence without numbers)."""
    if "{" not in line:
        line = line.rstrip("\"'} ")  # {"answer": "18"}
    sentence = _SENTENCE_END.split(line, maxsplit=1)[0].strip()
    short = sentence if _ALTERNATIVE.search(sentence) else _ASIDE.split(sentence, maxsplit=1)[0].strip()
    for candidate in (line.strip(), sentence, short):
        if candidate and _is_number(candidate):
            return candidate
    if not sentence:
        return None
    claim = _REASON.split(sentence, maxsplit=1)[0].strip()
    if claim and not _is_prose(claim) and (is_last or _has_digit(claim) or len(claim.split()) == 1):
        return claim
    if not is_last:
        return None  # a heading: the answer is further down
    return _last_of_prose(sentence)


def _unmarked(text: str) -> str:
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    if not lines:
        return ""
    last = lines[-1][-ANSWER_LIMIT:]
    if len(lines) == 1 and (not _is_prose(last) or _is_number(last)):
        return last
    if mathematics := _last_mathematics(last):
        return mathematics
    return _last_number(text) if _has_digit(text) else last


def _last_of_prose(sentence: str) -> str:
    return _last_mathematics(sentence) or (_last_number(sentence) if _has_digit(sentence) else sentence)


def _has_digit(text: str) -> bool:
    return any(digit in text for digit in "0123456789")


def _is_prose(text: str) -> bool:
    """Words beside digits or a formula; without either, more words than an answer in words has."""
    words = len(_WORD.findall(_ENVIRONMENT.sub("", text)))
    return words > (0 if _has_digit(text) or "$" in text else 3)


def _last_mathematics(line: str) -> str | None:
    r"""The last `$...$`, `\(...\)` or `\[...\]` of a line when no number comes after it."""
    for pattern in (_DOLLARS, _PARENTHESES):
        for match in deque(pattern.finditer(line), maxlen=1):
            content = next(group for group in match.groups() if group)
            before = line[: match.start()].rstrip(" $")
            is_alternative = _ALTERNATIVE.search(before[-15:])
            if not (_has_digit(line[match.end() :]) or _WORD.search(_TEXT.sub("", content)) or is_alternative):
                return content.strip()
    return None


def _last_number(text: str) -> str:
    """The last thing in prose that holds a digit, if it reads as a number of its own, else "".

    Not a part of an expression (x + 3), of a word (step2) or of an alternative (5 or 6).
    """
    end = max(text.rfind(digit) for digit in "0123456789")
    start = text.rfind("\n", 0, end) + 1
    window = text[max(start, end - 120) : end + 40].split("\n", 1)[0]
    at = end - max(start, end - 120)
    tokens = _tokens(window)
    last = next((i for i, (begin, token) in enumerate(tokens) if begin <= at < begin + len(token)), None)
    if last is None:
        return ""
    behind = window[tokens[last][0] + len(tokens[last][1]) :]
    scale = _SCALE.match(behind)
    for width in (3, 2, 1):
        parts = [token for _, token in tokens[max(0, last - width + 1) : last + 1]]
        written = " ".join(parts)
        if width > 1 and not any(c in written for c in "/^÷\\"):
            continue
        number = tidy(written.rpartition("=")[2]).rstrip(_EDGES).lstrip(_EDGES.replace(".", ""))
        if len(parts) < width or (width > 1 and (not set(number) & set("/^") or parts[0] in "+-")):
            continue
        number += scale.group() if scale else ""
        number += measure_at(behind[scale.end() if scale else 0 :])
        first = max(0, last - width + 1)
        before = [token for _, token in tokens[max(0, first - 3) : first]]
        if _ALTERNATIVE.search(window[max(0, tokens[first][0] - 3) : tokens[first][0]]):
            return ""
        if (_is_number(number) or _DECIMAL_COMMA.fullmatch(number)) and not _belongs_to_more(
            before, "=" in written, behind
        ):
            return number
    return ""


def _tokens(window: str) -> list[tuple[int, str]]:
    return [(m.start(), m.group()) for m in _TOKEN.finditer(window)]


def _belongs_to_more(before: list[str], after_equals: bool, behind: str) -> bool:
    if _CHANGED_BY_WHAT_FOLLOWS.match(behind):
        return True
    if after_equals:
        return bool(behind.lstrip()) and behind.lstrip()[0] in _OPERATORS
    if before and _COMPARED.search(" ".join(before)):
        return True
    if any(
        _ALTERNATIVE.fullmatch(token.strip(_EDGES)) or _DENIED.fullmatch(token.strip(_EDGES)) for token in before[-2:]
    ):
        return True
    if before and before[-1] in _OPERATORS - {"="}:
        return True
    if len(before) > 1 and before[-1] == "-" and (len(before[-2]) == 1 or before[-2][-1:].isdigit()):
        return True
    return bool(behind.lstrip()) and behind.lstrip()[0] in _OPERATORS - {"<", "*"}
