"""A change that makes right answers score, found by trying it: another column as the answer, or other rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reward_funcs.errors import RewardError
from reward_funcs.rehearsal.answers import SHORT, right_answer
from reward_funcs.rehearsal.calls import Caller, spread
from reward_funcs.rehearsal.reading import is_correctness, rules_for
from reward_funcs.reward_func import compute_score, rules_of
from reward_funcs.score import Sample

TRIED = 20  # records
ENOUGH = 0.9  # share of them that has to score 1
COLUMNS = 8  # other columns that are looked at
RULES = ("math", "qa", "classification")
NOT_ANSWERS = ("index", "split", "id", "idx")


def remedy(caller: Caller, samples: Sequence[Sample]) -> str:
    """The change as the user would make it, "" where none was found. samples: of one data_source, ground truths bare.

    Right answers were seen to fail before.
    """
    few = [samples[place] for place in spread(len(samples), TRIED)]
    rules = rules_for(caller.reward, few[0])
    for column in _columns(few):
        moved = [replace(sample, ground_truth=str((sample.extra_info or {})[column])) for sample in few]
        rights = [right_answer(sample, rules) for sample in moved]
        answers = [replace(s, solution=right.whole) for s, right in zip(moved, rights, strict=True) if right]
        scores = [call.score for call in caller.together(answers)]
        if sum(score is not None and score >= 1 for score in scores) >= ENOUGH * len(few):
            return f"the column `{column}` scores: --answer_key {column}"
    if is_correctness(caller.reward) and rules not in (None, "code"):
        for name in RULES:
            if rules_of(name) != rules and _right_by(name, few) >= ENOUGH * len(few):
                return f"the rules of `{name}` score them: --reward accuracy:data_source={name}"
    return ""


def _columns(samples: Sequence[Sample]) -> list[str]:
    """Columns that every record has as text or number, and that tell records apart."""
    shared = set.intersection(*({str(key) for key in sample.extra_info or {}} for sample in samples))
    found = []
    for name in sorted(shared - set(NOT_ANSWERS)):
        values = [(sample.extra_info or {})[name] for sample in samples]
        plain = all(isinstance(value, (str, int, float)) and not isinstance(value, bool) for value in values)
        if plain and all(str(value).strip() for value in values) and (len(set(values)) > 1 or len(values) == 1):
            found.append(name)
    return found[:COLUMNS]


def _right_by(name: str, samples: Sequence[Sample]) -> int:
    right = 0
    for sample in samples:
        truth = str(sample.ground_truth)
        if not 0 < len(truth) <= SHORT:
            continue
        try:
            right += compute_score(name, truth, truth) == 1.0
        except RewardError:
            continue
    return right
