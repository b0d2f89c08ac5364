"""Bootstrap intervals over prompts, against binomial distributions worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from grpo.metrics.intervals import measured


def one(values: Sequence[float]) -> dict[str, list[tuple[float, float]]]:
    """A number that every prompt counts once in."""
    return {"accuracy": [(value, 1) for value in values]}


def test_an_interval_is_the_middle_of_all_draws_of_as_many_prompts():
    # 5 of 10 right: a draw has Binomial(10, 1/2) right. P(at most 1) = 11/1024, P(at most 2) = 56/1024 = 5.5 %,
    # so the quantile of 2.5 % is 2 of 10, and by symmetry that of 97.5 % is 8 of 10.
    (found,) = measured([one([1, 0] * 5)], seed=1)
    assert (found["accuracy"].value, found["accuracy"].low, found["accuracy"].high) == (0.5, 0.2, 0.8)
    assert measured([one([1, 0] * 5)], seed=1) == measured([one([1, 0] * 5)], seed=1)


def test_a_difference_is_paired_by_prompt():
    # B has one more right of ten. Paired, a draw's difference is Binomial(10, 1/10) / 10: P(0) = 35 %, P(at most 2)
    # = 93.0 %, P(at most 3) = 98.7 %. Drawn apart it would fall below 0 in a third of the draws.
    a, b, difference = measured([one([1, 0] * 5), one([1, 0] * 4 + [1, 1])], seed=1)
    assert (a["accuracy"].value, b["accuracy"].value) == (0.5, 0.6)
    found = difference["accuracy"]
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.0, 0.3), abs=1e-9)
    assert not found.excludes_zero
    better = measured([one([0] * 10), one([1] * 6 + [0] * 4)], seed=1)[-1]["accuracy"]
    assert better.excludes_zero  # P(no right one in a draw) = 0.4^10


def test_a_number_is_a_ratio_of_sums_not_a_mean_of_ratios():
    # 1 of 1 and 0 of 3 right: 1/4, where the mean of the two rates would be 1/2
    (found,) = measured([{"accuracy": [(1, 1), (0, 3)]}], seed=1)
    assert found["accuracy"].value == 0.25
    assert (found["accuracy"].low, found["accuracy"].high) == (0.0, 1.0)


def test_draws_without_anything_counted_are_left_out_and_a_single_prompt_has_no_interval():
    (found,) = measured([{"maj@4": [(1, 1), (0, 0)]}], seed=1)
    assert (found["maj@4"].low, found["maj@4"].high) == (1.0, 1.0)
    (found,) = measured([{"accuracy": [(1, 2)]}], seed=1)
    assert (found["accuracy"].value, found["accuracy"].low) == (0.5, None)
    assert not found["accuracy"].excludes_zero
    assert measured([{"accuracy": [(1, 2)], "reward/part": [(0, 0)]}], seed=1)[0].keys() == {"accuracy"}


@pytest.mark.slow
def test_many_prompts_are_drawn_in_parts_that_fit_in_memory():
    # the standard error of a share of 1/2 of 10,000 prompts is 0.005: 1.96 of them on each side
    (found,) = measured([one([1, 0] * 5_000)], seed=1, resamples=500)
    low, high = found["accuracy"].low, found["accuracy"].high
    assert low is not None
    assert high is not None
    assert math.isclose(high - low, 2 * 1.96 * 0.005, rel_tol=0.15)
