"""A reward tried on a few known answers before a model is loaded: does it return scores, and do they make sense?

Left out: time limits, and judging how a reward grades wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reward_funcs.errors import RewardError
from reward_funcs.score import Reward, Sample, Score, attempt, last_line, record_name


def rehearse(reward: Reward, samples: Sequence[Sample]) -> list[str]:
    """Score each sample twice, and once with an empty response. samples: solution holds the right answer.

    Raises RewardError when a call fails (None, NaN, text, an exception). Returns what is odd but allowed, one line
    each: a right answer that scores less than 1, as the first sign that training would see no reward; a reward that
    gives an empty response as much as a right one; a reward that differs between two calls.
    """
    low: list[str] = []
    paid_for_nothing = differs = 0
    for i, sample in enumerate(samples):
        first, second = _must_score(reward, sample, i), _must_score(reward, sample, i)
        empty = _must_score(reward, replace(sample, solution=""), i)
        if first.score < 1:
            low.append(f"{record_name(sample, i)} ({str(sample.solution)[:40]!r}) scores {first.score:g}")
        paid_for_nothing += empty.score >= first.score > 0
        differs += first.score != second.score
    notes = []
    if low:
        notes.append(f"{len(low)} of {len(samples)} right answers score less than 1 by {reward.place}: {low[0]}")
    if paid_for_nothing:
        notes.append(f"{reward.place} gives an empty response as much as the right answer, {paid_for_nothing} times")
    if differs:
        notes.append(f"{reward.place} scored the same response differently, {differs} times of {len(samples)}")
    return notes


def _must_score(reward: Reward, sample: Sample, position: int) -> Score:
    result = attempt(reward, sample)
    if isinstance(result, Score):
        return result
    said = "an empty response" if not sample.solution else "its right answer"
    raise RewardError(
        f"{reward.place} fails on {said}, {record_name(sample, position)}: {last_line(result, reward)}"
    ) from result
