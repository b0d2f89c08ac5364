r"""Where a response marks its answer: `\boxed{}`, `<answer>`, and phrases such as "the answer is" and 答案是.

Only where the marks are. Whether their content makes sense is left to those who know what they look for
(math_answer.py, text_match.py).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from reward_funcs.plain_text import ANSWER_LIMIT

Mark = tuple[int, str]

_MOST_BOXES = 24  # of one list
_JOINS = re.compile(
    r"(?:\s|[$,;、和或与]|\\q?quad(?![a-z])|\\[()\[\],;]|\\text ?\{ ?(?:and|or)? ?\}|\band\b|\bor\b){1,40}"
)
_SAYS_AND = re.compile(r"[,;、和或与]|\band\b|\bor\b")
_CLOSING_TAG = re.compile(r"</answer\s?>", re.IGNORECASE)
_OPENING_TAG = re.compile(r"<answer\s?>", re.IGNORECASE)
_LINK = r"[*_\"']{0,3} {0,3}(?:\bis\b|\bare\b|\bequals\b|\bwould be\b|\bshould be\b|[:=])[*_]{0,3}(?: {0,3}:)?"
_PHRASE = re.compile(
    rf"(?:\banswers?|\bcorrect (?:option|choice))\b(?:[*_]{{0,3}} (?:to|of|for|in) [^\n.:=?]{{0,40}}?)?{_LINK}"
    r"|^ {0,4}[*_]{0,3}(?-i:A)[*_]{0,3} ?:[*_]{0,3}"
    r"|(?:答案|结果)[^\n。:=是为]{0,8}(?:是|为|等于|[:=])[*_]{0,3} ?:?|(?:故|所以|因此|应|应该)选(?:择|项)? ?:?"
    r"|(?<!解)答[*_]{0,3} ?:",
    re.IGNORECASE | re.MULTILINE,
)
_FINAL = re.compile(r"final |最终|最后", re.IGNORECASE)
_MOST_PHRASES = 20  # the last ones; what an earlier one announced has been said again since
_ONLY_MARKUP = re.compile(r"(?:\n {0,8}- |[\s*_:>]|\\[\[(](?=\s)|\$\$?(?=\s)|```\w{0,9}\n)*")


@dataclass(frozen=True)
class Phrase:
    """An announced answer. start: where in the text. final: it calls itself final.

    line: what follows on the phrase's line, or on the next one with text. last: nothing comes after that line.
    """

    start: int
    final: bool
    line: str
    last: bool


def last_box(text: str) -> Mark | None:
    r"""The last `\boxed{...}` or `\fbox{...}` with its braces balanced. One that never closes was cut off: "".

    A later sentence cannot take back a box, but a later box can. Boxes with nothing but "and", "or" or a comma between
    them are one list: `\boxed{1} and \boxed{2}` is `1, 2`.
    """
    last = _box_before(text, len(text))
    if last is None:
        return None
    start, content, _ = last
    contents = [content]
    while len(contents) < _MOST_BOXES and (before := _box_before(text, start)) is not None:
        if not _JOINS.fullmatch(text, before[2], start) or not _SAYS_AND.search(text, before[2], start):
            break
        start = before[0]
        if before[1] not in contents:  # the same answer again is no second answer
            contents.insert(0, before[1])
    return last[0], ", ".join(contents)


def _box_before(text: str, end: int) -> tuple[int, str, int] | None:
    """(where it starts, its content, where it ends) of the last box that starts before `end`."""
    start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
    if start < 0:
        return None
    begin = start + (6 if text.startswith("\\boxed", start) else 5)
    opening = begin
    while opening < len(text) and text[opening].isspace():
        opening += 1
    inside = text[opening : opening + ANSWER_LIMIT + 20]
    if not inside.startswith("{"):
        content = re.split(r"[\s$]", inside, maxsplit=1)[0]  # \boxed 5
        return start, content, opening + len(content)
    depth = i = 0
    while i < len(inside):
        c = inside[i]
        if c == "\\":
            i += 1  # \{ and \} are characters of the answer
        elif c in "{}":
            depth += 1 if c == "{" else -1
            if depth == 0:
                return start, inside[1:i], opening + i + 1
        i += 1
    return start, "", len(text)


def last_tag(text: str) -> Mark | None:
    """The last `<answer>...</answer>`; one at the very end may lack its closing tag (a stop string takes it)."""
    if "<" not in text:
        return None
    openings = deque(_OPENING_TAG.finditer(text), maxlen=1)
    if not openings:
        return None
    opening = openings[0]
    closing = _CLOSING_TAG.search(text, opening.end())
    return opening.start(), text[opening.end() : closing.start() if closing else len(text)]


def phrases(text: str) -> list[Phrase]:
    """The phrases that announce an answer, last first."""
    if text.isascii() and not ("A" in text and ":" in text):  # what the pattern needs; looking for that is cheaper
        lower = text.lower()
        if "answer" not in lower and "correct" not in lower:
            return []
    found = []
    for match in reversed(deque(_PHRASE.finditer(text), maxlen=_MOST_PHRASES)):
        begin = _ONLY_MARKUP.match(text, match.end())
        start = begin.end() if begin else match.end()
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end][:ANSWER_LIMIT]
        if "$" in text[match.end() : start] and line.count("$") % 2:  # the one that opened is gone
            line = line.rstrip(" .").removesuffix("$")
        final = bool(_FINAL.search(text, max(0, match.start() - 8), match.start() + 4))
        found.append(Phrase(match.start(), final, line, not text[end:].strip()))
    return found
