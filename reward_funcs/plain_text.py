"""Text made comparable before anything looks at it: width, invisible characters, thinking, length.

Left out: what the text means. LaTeX is latex.py's, case and articles are text_match.py's.
"""

from __future__ import annotations

import re

RESPONSE_LIMIT = 100_000  # characters; of a longer response only the end is read
ANSWER_LIMIT = 2_000  # characters; what is longer is not an answer

_FULL_WIDTH = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)}
_MATH_DIGITS = {0x1D7CE + i: str(i % 10) for i in range(50)}  # bold, double-struck and monospace digits
_SPACES = dict.fromkeys([0x00A0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000, 0x09, 0x0D, 0x0B, 0x0C], " ")
_INVISIBLE = dict.fromkeys([0x00AD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF])
_LOOKALIKES = str.maketrans("−‐‑‒–﹣⁄∕￥￡﹪﹩‘’“”", "------//¥£%$''\"\"")
_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5"}
_VULGAR |= {"⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"}
_VULGAR = {ord(c): f" {fraction} " for c, fraction in _VULGAR.items()}  # a space keeps 1½ from becoming 11/2
_TABLE = {**_LOOKALIKES, **_FULL_WIDTH, **_MATH_DIGITS, **_SPACES, **_INVISIBLE, **_VULGAR}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_THOUGHT = re.compile("</think(?:ing)?>", re.IGNORECASE)
_SPECIAL_TOKEN = re.compile(r"<\|[^|<>\n]{1,40}\|>|</s>")


def plain(text: str) -> str:
    """`text` with ASCII digits and punctuation for full-width ones, and `10²` as `10^{2}`, `x₁` as `x_{1}`.

    Linear in its length. The full stop 。 and the list comma 、 stay: in ASCII they would join numbers to what follows.
    """
    if text.isascii():
        return text.translate(_TABLE) if not text.isprintable() else text
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + run.group().translate(_SUBSCRIPTS) + "}", text)
    return text.translate(_TABLE)


def spoken(response: str) -> str:
    """The part of a response that is meant to be read: after the last `</think>`, without special tokens.

    A response that ends with its thought is taken whole.
    """
    text = _SPECIAL_TOKEN.sub(" ", plain(response[-RESPONSE_LIMIT:]))
    thoughts = list(_THOUGHT.finditer(text))
    after = text[thoughts[-1].end() :] if thoughts else ""
    return after if after.strip() else text
