"""pass@k and the forecast of group signal: S2-21, PEERS section 5, row 3. Numbers by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from reward_funcs.pass_rates import equal_share, forecast, mean_pass_at_k, pass_at_k, plain_equal


@pytest.mark.parametrize(
    ("c", "m", "k", "expected"),
    [
        (1, 4, 1, 1 / 4),
        (1, 4, 2, 1 / 2),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (2, 4, 2, 5 / 6),  # 1 - C(2,2)/C(4,2) = 1 - 1/6
        (0, 4, 4, 0.0),
        (4, 4, 1, 1.0),
        (1, 4, 4, 1.0),
        (3, 10, 5, 11 / 12),  # 1 - C(7,5)/C(10,5) = 1 - 21/252
    ],
)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_response(c, m, k, expected):
    assert pass_at_k(c, m, k) == pytest.approx(expected)


def test_prompts_with_too_few_responses_have_no_pass_at_k():
    assert mean_pass_at_k([(1, 2), (0, 4), (2, 4)], 4) == pytest.approx(0.5)  # 0 and 1
    assert mean_pass_at_k([(1, 2)], 4) is None


def test_equal_groups_by_p():
    assert plain_equal(0.5, 3) == 0.25  # all right 1/8, all wrong 1/8
    assert plain_equal(0.1, 2) == pytest.approx(0.82)
    assert plain_equal(1.0, 16) == 1.0


def test_equal_groups_of_the_responses_that_there_are():
    assert equal_share(2, 4, 3) == 0.0  # no three of two right and two wrong are equal
    assert equal_share(3, 4, 3) == pytest.approx(1 / 4)  # one of four triples
    assert equal_share(2, 4, 2) == pytest.approx(2 / 6)
    assert equal_share(2, 3, 3) == 0.0  # the one triple
    assert equal_share(1, 2, 3) == 0.25  # only two responses: p^3 + (1-p)^3


def test_the_estimate_is_unbiased_where_there_are_enough_responses_and_too_high_where_not():
    # all 2^5 outcomes of five responses at p = 0.3, weighted: the mean of the estimate is 0.3^3 + 0.7^3 = 0.37
    mean = above = 0.0
    for outcome in itertools.product([0, 1], repeat=5):
        c = sum(outcome)
        weight = 0.3**c * 0.7 ** (5 - c)
        mean += weight * equal_share(c, 5, 3)
        above += weight * plain_equal(c / 5, 3)
    assert mean == pytest.approx(0.37)
    assert above > 0.37 + 0.1


def test_the_forecast_names_the_size_from_which_more_responses_add_little():
    # p = 1/2, many responses: equal groups 25% at 3, 6.25% at 5, 0.8% at 8
    ahead = forecast([(500, 1000)] * 10)
    assert ahead is not None
    assert ahead.at_most[3] == 0.25
    assert ahead.equal[3] == pytest.approx(0.25, abs=1e-3)
    assert ahead.advised == 5  # 3 -> 5 wins 19 groups of 100, 5 -> 8 only 5
    hard = forecast([(100, 1000)] * 10)  # p = 0.1: 73%, 59%, 43%, 19%
    assert hard is not None
    assert hard.advised == 16
    assert (hard.never, hard.always) == (0.0, 0.0)


def test_prompts_that_teach_nothing_are_counted_and_single_responses_tell_nothing():
    ahead = forecast([(0, 4), (4, 4), (4, 4), (2, 4), (1, 1)])
    assert ahead is not None
    assert (ahead.prompts, ahead.never, ahead.always) == (4, 0.25, 0.5)
    assert ahead.equal[3] == pytest.approx(3 / 4)
    assert forecast([(1, 1), (0, 1)]) is None


def test_pass_at_k_agrees_with_drawing():
    rng = random.Random(7)
    responses = [1] * 3 + [0] * 7
    drawn = sum(any(rng.sample(responses, 4)) for _ in range(20_000)) / 20_000
    assert pass_at_k(3, 10, 4) == pytest.approx(drawn, abs=0.015)
