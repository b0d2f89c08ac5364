"""Which prompts say the same, or nearly: exact Jaccard similarity of word triples, found by their rarest ones.

Every pair over the threshold is found (prefix filtering: Chaudhuri, Ganti and Kaushik 2006; Bayardo, Ma and Srikant
2007), but for triples of boilerplate, which many prompts share and which are left aside. Numbers have to be the same:
"3 apples" is not "4 apples". Knows texts and nothing of records.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain

SIMILAR = 0.8  # share of triples that two prompts have in common
MOST_PAIRS = 2_000_000  # compared; of texts that are all alike the rest is left out
BOILERPLATE = 0.02  # share of the texts that has a triple ...
LEAST_BOILERPLATE = 50  # ... and at least so many texts, before it says nothing
_WORD = re.compile(r"[0-9]+(?:[.,][0-9]+)*|[\u3400-\u9fff\u3040-\u30ff]|[^\W\d_]+|[+*/=<>^%$€£¥-]")


def words(text: str) -> list[str]:
    """Words, numbers, single Chinese characters and signs of arithmetic; case, width and punctuation are gone."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.casefold())


def near_pairs(texts: Sequence[Sequence[str]], *, similar: float = SIMILAR) -> dict[int, int]:
    """For each text that is like an earlier one, the first such: place -> place. texts: their words.

    Equal word lists count as alike, whatever their length; of nearly equal ones only those with the same numbers.
    """
    found: dict[int, int] = {}
    first: dict[tuple[str, ...], int] = {}
    for place, text in enumerate(texts):
        same = first.setdefault(tuple(text), place)
        if same != place:
            found[place] = same
    distinct = list(first.values())
    sets = _triples([texts[place] for place in distinct])
    keys: dict[tuple[str, ...], int] = {}
    numbers = [tuple(sorted(word for word in texts[place] if word[0].isdigit())) for place in distinct]
    numbered = [keys.setdefault(key, len(keys)) for key in numbers]
    for later, earlier in _joined(sets, numbered, similar).items():
        found[distinct[later]] = distinct[earlier]
    return found


def _triples(texts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Each text's triples of words as numbers, the rarest first, without those of boilerplate."""
    ids: dict[str, int] = {}
    sets = []
    for text in texts:
        known = [ids.setdefault(word, len(ids)) for word in text]
        sets.append({(a << 48) | (b << 24) | c for a, b, c in zip(known, known[1:], known[2:], strict=False)})
    counts = Counter(chain.from_iterable(sets))
    limit = max(LEAST_BOILERPLATE, BOILERPLATE * len(texts))
    return [sorted((t for t in triples if counts[t] <= limit), key=lambda t: (counts[t], t)) for triples in sets]


def _joined(sets: Sequence[Sequence[int]], numbers: Sequence[int], similar: float) -> dict[int, int]:
    """Place -> the first earlier place with a Jaccard similarity of at least `similar` and the same numbers."""
    found: dict[int, int] = {}
    index: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    compared = 0
    # Two sets of similarity t share a member among the rarest |x| - ceil(t |x|) + 1 of each.
    for place, triples in enumerate(sets):
        size = len(triples)
        if size == 0:
            continue
        prefix = triples[: size - math.ceil(similar * size) + 1]
        near = {other for triple in prefix for other in index[triple, numbers[place]]}
        mine = set(triples)
        for other in sorted(near):
            if compared >= MOST_PAIRS:
                break
            theirs = sets[other]
            if not similar * size <= len(theirs) <= size / similar:
                continue
            compared += 1
            common = len(mine.intersection(theirs))
            if common >= similar * (size + len(theirs) - common):
                found[place] = other
                break
        for triple in prefix:
            index[triple, numbers[place]].append(place)
    return found
