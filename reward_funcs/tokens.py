"""Words of a text in any language, for rewards that count or compare words. Nothing is downloaded.

A word is a run of letters and digits, in lower case; each Chinese or Japanese character is one. On ASCII text these are
the words of rouge-score's own tokenizer without its stemmer. Left out: segmenting Chinese into words.
"""

from __future__ import annotations

import re

from reward_funcs.score import Sample

_CHARACTERS = "㐀-䶿一-鿿豈-﫿぀-ヿ\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CHARACTERS}]|[^\W_{_CHARACTERS}]+")
MOST = 20_000  # words read of one text; the time of what comes after is bounded by it


def words(text: str) -> list[str]:
    """The words of `text`, at most MOST of them."""
    found = []
    for match in _WORD.finditer(text.lower()):
        found.append(match.group())
        if len(found) == MOST:
            break
    return found


def response_length(sample: Sample) -> int:
    """Tokens of the response, as the engine counted them; its words where nobody did (a file scored offline)."""
    return len(words(sample.solution)) if sample.length is None else sample.length
