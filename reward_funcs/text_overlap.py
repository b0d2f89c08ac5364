"""Rewards that compare the response with a reference text: `rouge` and `length_similarity`, as for summaries.

Words are those of tokens.py, so that two identical Chinese texts score 1, and nothing is downloaded (S1-26). Leaves out
the thought before `</think>`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.plain_text import spoken
from reward_funcs.score import Sample
from reward_funcs.tokens import words

KINDS = ("average", "rouge1", "rouge2", "rougeL")
LONGEST = 2_000  # words compared of one text: the time of rougeL grows with the product of both lengths


def rouge(sample: Sample, *, kind: str = "average") -> dict[str, float]:
    """F1 of the words (rouge1), pairs of words (rouge2) or longest common sequence (rougeL) shared with the reference.

    Range 0 to 1; best value 1, the same words. kind: one of them, or the average of the three, which are the parts.
    The reference is the ground truth. Requirement S1-12; Lin 2004, computed by the package rouge-score.
    """
    reference = str(sample.ground_truth)
    count = len(_Tokens.tokenize(spoken(reference)))
    if not count:
        raise RewardError("rouge needs a reference text as ground_truth, and this record's has no words")
    scores = _scorer().score(spoken(reference), spoken(sample.solution))
    found = {name: float(scores[name].fmeasure) for name in KINDS[1:]}
    if kind == "average":
        counted = [found[name] for name in KINDS[1:] if name != "rouge2" or count > 1]  # one word makes no pair
        return {"score": sum(counted) / len(counted), **found}
    return {"score": found[kind], **found}


def length_similarity(sample: Sample) -> float:
    """The shorter length over the longer one, of response and reference, in words. Range 0 to 1; best value 1.

    Twice as long as the reference is 0.5, and so is half as long. Requirement S1-15.
    """
    reference, response = len(_words(sample.ground_truth)), len(_words(sample.solution))
    if not reference:
        raise RewardError("length_similarity needs a reference text as ground_truth, and this record's has no words")
    return min(reference, response) / max(reference, response)


def _words(text: Any) -> list[str]:
    return words(spoken(str(text)))


class _Tokens:
    """Our words in the form that rouge-score asks for."""

    @staticmethod
    def tokenize(text: str) -> list[str]:
        return words(text)[:LONGEST]


@cache
def _scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError as error:
        raise RewardError(f"rouge needs the package rouge-score: pip install rouge-score==0.1.2 ({error})") from None
    return RougeScorer(list(KINDS[1:]), tokenizer=_Tokens())


def _check_rouge(*, kind: str = "average") -> None:
    if kind not in KINDS:
        raise RewardError(f"rouge:kind={kind} has to be {', '.join(KINDS)}")
    _scorer()


CHECKS: dict[str, Callable[..., None]] = {"rouge": _check_rouge}
