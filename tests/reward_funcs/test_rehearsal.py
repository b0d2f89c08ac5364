"""The reward tried on known answers before training: S2-35, reward all 0 or 1."""

from __future__ import annotations

import itertools

import pytest

from reward_funcs import Reward, RewardError, Sample, load_reward, rehearse

GOLD = [Sample("math_reasoning", str(n), str(n), {"index": 10 + n}) for n in range(4)]


def test_a_reward_that_knows_its_answers_passes_without_a_word():
    assert rehearse(load_reward(None), GOLD) == []


def test_a_right_answer_that_scores_zero_is_named():
    # S2-35: the truth's format and the reward do not fit
    odd = [*GOLD, Sample("math_reasoning", "see page 7b", "see page 7b", {"index": 77})]
    notes = rehearse(Reward(lambda solution_str: float(solution_str != "see page 7b")), odd)
    assert len(notes) == 2  # and the empty response was paid
    assert "1 of 5 right answers score less than 1" in notes[0]
    assert "record 77 ('see page 7b') scores 0" in notes[0]


def test_a_reward_that_pays_for_nothing_is_named():
    assert "empty response as much as the right answer, 4 times" in rehearse(Reward(lambda solution_str: 1.0), GOLD)[0]


def test_a_reward_that_throws_dice_is_named():
    rolls = itertools.cycle([1.0, 2.0, 0.0])
    notes = rehearse(Reward(lambda solution_str: next(rolls)), GOLD)
    assert notes == ["reward <lambda> scored the same response differently, 4 times of 4"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda solution_str: None, "fails on its right answer, record 10: returned None"),
        (lambda solution_str: float("nan"), "fails on its right answer, record 10: returned nan"),
        (lambda solution_str: "1", "fails on its right answer, record 10: returned '1' .str"),
        (lambda solution_str: 1 / 0, "fails on its right answer, record 10: ZeroDivisionError: division by zero"),
        (lambda solution_str: 1.0 / len(solution_str), "fails on an empty response, record 10: ZeroDivisionError"),
        (lambda solution_str: 1.0 if solution_str in "01" else [], "record 12: returned"),
    ],
)
def test_a_reward_that_fails_is_refused_before_training(function, said):
    with pytest.raises(RewardError, match=said) as error:
        rehearse(Reward(function), GOLD)
    assert "\n" not in str(error.value)


def test_an_unknown_source_is_found_before_training():
    with pytest.raises(RewardError, match="no reward for data_source 'poetry'; known: math_reasoning"):
        rehearse(load_reward(None), [Sample("poetry", "a", "a")])
