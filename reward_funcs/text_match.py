r"""Answers in words: `text_score` for qa and trivia, `label_score` for classification. 1.0 or 0.0, nothing between.

One candidate is read from the response (the last `<answer>` or `\boxed{}`, a last line behind `####`, an announced
answer, else the last line or what its last "is" states) and has to equal a right answer once case, articles,
punctuation, width and spaces are gone. Equal, not contain: a response that lists every candidate names none. Left
out: synonyms and partial credit; give the accepted spellings as a JSON list in ground_truth.
"""

from __future__ import annotations

import json
import re
import unicodedata

from reward_funcs.markers import last_box, last_tag, phrases
from reward_funcs.plain_text import ANSWER_LIMIT, plain, spoken

_SENTENCE_END = re.compile(r"(?:(?<=\w\w)|(?<=[)\"'一-鿿]))[.!?](?=\s)|[。！？；!?](?=.)|;")
_LEAST_WORDS_OF_A_SENTENCE = 3  # "positive. negative." are two labels, not a label and its explanation
_COPULA = re.compile(r"(?:^|\s)(?:is|was|are|were|be|=|:|->|=>|→)\s|(?<!不)属于|(?<![不非])[是为]|[:→]")
_OF = re.compile(r"的[。.！!]?$")  # 是正面的 says 正面
_LABEL = re.compile(
    r"^\W{0,4}(?:final |predicted |correct )?"
    r"(?:label|class|category|sentiment|classification|prediction|类别|分类|标签|情感)"
    r"[*_]{0,3} ?(?:is\b|=|:|是|为)[*_]{0,3}",
    re.IGNORECASE,
)
_OPTION = re.compile(r"\(?([A-Z])(?:[).:]\s(?!.*\b[A-Z]\b).+|\))", re.DOTALL)  # no second option behind it
_WRAPPER = re.compile(r"\\(?:text[a-z]{0,6}|mathrm|mathbf) ?\{([^{}]*)\}")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SEPARATED_DIGITS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_KEPT = set("#%&+$€£¥°")  # C is not C++ or C#, 5 is not 5%
_CJK = re.compile(r"(?<=[぀-ヿ一-鿿]) | (?=[぀-ヿ一-鿿])")


def text_score(response: str, ground_truth: str) -> float:
    """1.0 when the response's answer is the ground truth, or one of them when it is a JSON list, else 0.0."""
    right = {normalised(text) for text in alternatives(ground_truth)} - {""}
    return float(any(normalised(text) in right for text in _candidates(response)))


def label_score(response: str, ground_truth: str) -> float:
    """1.0 when the last label that the response states is the ground truth's, else 0.0.

    Labels are compared like text, `_` and `-` as spaces; `B) Paris` is label B. Two labels side by side match none.
    """
    right = {_label(text) for text in alternatives(ground_truth)} - {""}
    stated = _candidates(response, _LABEL)
    options = [match[1] for text in stated if (match := _OPTION.fullmatch(text.strip()))]
    return float(any(_label(text) in right for text in [*stated, *options]))


def readings(response: str, *, labels: bool = False) -> list[str]:
    """What is read out of a response, first the likeliest. labels: as label_score does."""
    return [text.strip() for text in _candidates(response, _LABEL if labels else None)]


def alternatives(ground_truth: str) -> list[str]:
    """The right answers: the entries of a JSON list, else the text itself."""
    text = ground_truth.strip()
    if not text.startswith("["):
        return [text]
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):  # [sic] is an answer that begins with a bracket
        return [text]
    return [entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False) for entry in entries]


def normalised(text: str) -> str:
    """`text` in lower case, without articles, punctuation and width; "" for one too long to be an answer.

    A decimal point, a leading minus and signs that change the meaning (C++, 5%) stay.
    """
    if len(text) > ANSWER_LIMIT:
        return ""
    text = _SEPARATED_DIGITS.sub("", unicodedata.normalize("NFKC", plain(text)).casefold())
    kept = "".join(_keep(text, i) for i in range(len(text)))
    bare = " ".join(_ARTICLES.sub(" ", kept).split()) or " ".join(kept.split())  # vitamin A: an article is all there is
    return _CJK.sub("", bare)


def _keep(text: str, i: int) -> str:
    c = text[i]
    if c.isalnum() or c in _KEPT or unicodedata.category(c) in ("Mn", "Mc", "So", "Sm"):
        return c
    before, behind = text[i - 1 : i], text[i + 1 : i + 2]
    if c == "." and behind.isdigit() and (before.isdigit() or not before.strip()):
        return c
    if c == "-" and behind.isdigit() and not before.isalnum():
        return "-"
    return "" if c in "'’`." else " "


def _label(text: str) -> str:
    return normalised(text.replace("_", " "))


def _candidates(response: str, heading: re.Pattern[str] | None = None) -> list[str]:
    """Readings of the one answer that a response gives: with and without the explanation behind it."""
    text = spoken(response)
    marks = [mark for mark in (last_box(text), last_tag(text)) if mark]
    if marks:
        content = _WRAPPER.sub(r"\1", max(marks)[1])
        announced = phrases(content)
        return _readings(announced[0].line if announced else content)
    lines = [line.strip() for line in text[-10 * ANSWER_LIMIT :].strip().split("\n") if line.strip()]
    if not lines:
        return []
    if heading and (match := heading.match(lines[-1])):
        return _readings(lines[-1][match.end() :])
    if lines[-1].startswith("#### "):  # further up it is a heading
        return _readings(lines[-1][5:])
    if announced := phrases(text):
        return _readings(announced[0].line)
    last = lines[-1][-ANSWER_LIMIT:]
    stated = _COPULA.split(last.rstrip(" ."))
    return [last, stated[-1], *([_OF.sub("", stated[-1])] if len(stated) > 1 else [])]


def _readings(stated: str) -> list[str]:
    stated = stated.strip()
    end = _SENTENCE_END.search(stated)
    if not end:
        return [stated]
    rest = stated[end.end() :].strip()
    words = len(rest) // 2 if not rest.isascii() else len(rest.split())
    return [stated, stated[: end.start()]] if words >= _LEAST_WORDS_OF_A_SENTENCE else [stated]
