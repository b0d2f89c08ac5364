"""The one exception of this room, and how a message quotes what it found. No checks live here."""

from __future__ import annotations

import json
import re

LONGEST_QUOTE = 40  # characters
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class DataError(Exception):
    """The user's data cannot be used; the text is one line: what is wrong, where (file, record, line), what to do.

    Control characters (in a file's name, say) are written out, so that it stays one line and leaves a terminal alone.
    """

    def __init__(self, text: str) -> None:
        super().__init__(_one_line(text))


def quote(value: object) -> str:
    """`value` as it may stand in a one-line message: in double quotes, short, control characters written out."""
    text = str(value)
    if len(text) > LONGEST_QUOTE:
        text = text[:LONGEST_QUOTE] + "..."
    return _one_line(json.dumps(text, ensure_ascii=False))


def plural(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _one_line(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
