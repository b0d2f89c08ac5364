"""Every estimator but GRPO's own, and what is done to rewards before, against numbers worked out by hand.

GRPO's has test_algorithm.py; agreement with verl is in test_algorithm_equals_verl.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor
from torch.testing import assert_close

from grpo.algorithm import (
    ADV_ESTIMATORS,
    WHITENED,
    adapted_kl_coef,
    advantages_of,
    discounted_returns,
    gdpo_advantages,
    gpg_advantages,
    group_advantages,
    groups_with_signal,
    normalized,
    opo_advantages,
    overlong_penalty,
    passk_advantages,
    rloo_advantages,
    token_rewards,
    whiten,
)

NAN = math.nan


def close(got: Tensor, expected: list | float, *, atol: float = 1e-6) -> None:
    assert_close(got, torch.as_tensor(expected, dtype=got.dtype), atol=atol, rtol=0)


def test_the_biased_deviation_divides_by_the_size_of_the_group():
    """S1-02: mean 1/4; squares 9/16 and three times 1/16, over 4: 3/16, so sqrt(3)/4 in place of the unbiased 1/2."""
    rewards, uid = tensor([1.0, 0, 0, 0]), tensor([0, 0, 0, 0])
    root = math.sqrt(3)
    got = group_advantages(rewards, uid, norm_by_std=True, biased=True)
    close(got, [root, -1 / root, -1 / root, -1 / root], atol=1e-5)


def test_rloo_compares_with_the_mean_of_the_others():
    # 3 against (1 + 2) / 2, 1 against 2.5, 2 against 2; the one alone has no others
    close(rloo_advantages(tensor([3.0, 1, 2, 7]), tensor([5, 5, 5, 6])), [1.5, -1.5, 0, 7])


def test_opo_weights_the_baseline_by_length():
    # (1 * 30 + 0 * 10) / 40 = 3/4: the long right answer was to be expected
    got = opo_advantages(tensor([1.0, 0, 4]), tensor([0, 0, 1]), tensor([30, 10, 5]))
    close(got, [0.25, -0.75, 4.0])


def test_gpg_makes_up_for_rewards_of_zero():
    # two of four rewards are not 0: times 2; means 1/2 and 1/2
    got = gpg_advantages(tensor([1.0, 0, 0, 1]), tensor([0, 0, 1, 1]))
    close(got, [1, -1, -1, 1])
    close(gpg_advantages(tensor([0.0, 0]), tensor([0, 0])), [0, 0])


def test_passk_rewards_the_best_by_its_lead_over_the_second():
    rewards, uid = tensor([0.5, 3, 1, 2, 2]), tensor([0, 0, 0, 1, 1])
    close(passk_advantages(rewards, uid, norm_by_std=False), [0, 2, 0, 0, 0])
    # mean 1.5: squares 1, 2.25, 0.25; unbiased std sqrt(3.5 / 2)
    close(passk_advantages(rewards, uid, norm_by_std=True), [0, 2 / math.sqrt(1.75), 0, 0, 0], atol=1e-5)


def test_gdpo_tells_mixes_apart_that_have_the_same_sum():
    # parts (1, 0), (0, 1), (1, 1), (1, 1): the sums of the first two are equal, and GRPO would treat them alike.
    # part a: 1, 0, 1, 1: mean 3/4, std 1/2 -> 1/2, -3/2, 1/2, 1/2; part b: the first two changed about, times 2
    parts, uid = tensor([[1.0, 0], [0, 1], [1, 1], [1, 1]]), torch.zeros(4, dtype=torch.long)
    got = gdpo_advantages(parts, uid, weights=[1.0, 2.0], norm_by_std=True)
    close(got, [0.5 - 3, -1.5 + 1, 1.5, 1.5], atol=1e-5)
    close(gdpo_advantages(parts, uid, weights=None, norm_by_std=True)[:2], [-1, -1], atol=1e-5)


def test_gdpo_leaves_a_part_out_that_a_response_does_not_have():
    # only responses 0 and 1 have part b: 0.5 each way without the deviation; in the second group one alone has it
    parts = tensor([[1.0, 1], [1, 0], [1, NAN], [1, 5], [0, NAN]])
    got = gdpo_advantages(parts, tensor([0, 0, 0, 1, 1]), weights=None, norm_by_std=False)
    close(got, [0.5, -0.5, 0, 0.5, -0.5])


def test_returns_are_what_is_still_to_come():
    """S0-02: gamma 1/2; the token in the middle that is not trained passes on what follows it."""
    rewards = tensor([[1.0, 2, 4, 0], [0, 9, 4, 8]])
    mask = tensor([[1, 1, 1, 0], [1, 0, 1, 1]])
    got = discounted_returns(rewards, mask, gamma=0.5)
    close(got, [[1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4, 0], [0.5 * (4 + 4), 0, 4 + 0.5 * 8, 8]])


def test_whitening_is_over_the_trained_tokens_of_the_batch():
    # 1, 2, 3: mean 2, unbiased variance 1; what lies in the padding is not looked at
    close(whiten(tensor([[1.0, 2], [3, NAN]]), tensor([[1, 1], [1, 0]])), [[-1, 0], [1, 0]])
    close(whiten(tensor([[5.0, NAN]]), tensor([[1, 0]])), [[0, 0]])


REWARDS, MASK = tensor([[0.0, 1], [0, 0], [2, 0], [0, 4]]), tensor([[1, 1], [1, 1], [1, 0], [1, 1]])


def test_reinforce_plus_plus_spreads_the_kl_and_whitens():
    """S0-02: returns 1 + k, 1; 0, 0; 2; 4, 4 with a KL of -k at the first token."""
    rewards = REWARDS.clone()
    rewards[0, 0] = -0.5
    got = advantages_of(rewards, MASK, tensor([0, 0, 1, 1]), estimator="reinforce_plus_plus", norm_by_std=True)
    returns = tensor([0.5, 1, 0, 0, 2, 4, 4])
    expected = (returns - returns.mean()) / returns.std()
    close(got[MASK.bool()], expected.tolist(), atol=1e-5)
    assert got[2, 1] == 0


def test_reinforce_plus_plus_with_a_baseline_takes_the_groups_mean_and_the_batchs_deviation():
    got = advantages_of(REWARDS, MASK, tensor([0, 0, 1, 1]), estimator="reinforce_plus_plus_baseline", norm_by_std=True)
    centered = tensor([0.5, 0.5, -0.5, -0.5, -1, 1, 1])
    close(got[MASK.bool()], ((centered - centered.mean()) / centered.std()).tolist(), atol=1e-5)


@pytest.mark.parametrize("estimator", ADV_ESTIMATORS)
def test_whitening_is_a_switch_of_its_own(estimator: str):
    """S0-31: on, off, or as the estimator has it."""
    given = {"estimator": estimator, "norm_by_std": True, "parts": tensor([[1.0], [0], [2], [4]])}

    def got(normalize: bool | None) -> Tensor:
        return advantages_of(REWARDS, MASK, tensor([0, 0, 1, 1]), normalize=normalize, **given)

    close(got(True), whiten(got(False), MASK).tolist())
    assert not torch.equal(got(True), got(False))
    assert torch.equal(got(None), got(estimator in WHITENED))


def test_an_unknown_estimator_and_gdpo_without_parts_are_refused():
    for estimator in ("gae", "gdpo"):
        with pytest.raises(ValueError, match="one of grpo"):
            advantages_of(REWARDS, MASK, tensor([0, 0, 1, 1]), estimator=estimator, norm_by_std=True)


def test_the_overlong_penalty_grows_over_the_buffer():
    """S0-41: limit 100, buffer 20: nothing up to 80, half of it at 90, all at 100."""
    got = overlong_penalty(tensor([10, 80, 81, 90, 100]), max_length=100, buffer=20, factor=2.0)
    close(got, [0, 0, -0.1, -1, -2])


def test_rewards_normalised_over_the_batch():
    """S0-31: mean 2, unbiased std 2."""
    close(normalized(tensor([0.0, 2, 4])), [-1, 0, 1])
    close(normalized(tensor([3.0])), [0])
    close(normalized(tensor([1.0, 1])), [0, 0])


def test_a_reward_comes_at_the_last_token_of_its_response():
    got = token_rewards(tensor([1.0, 2, 3]), tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]))
    close(got, [[0, 1, 0], [2, 0, 0], [0, 0, 0]])


def test_only_groups_whose_values_differ_have_a_signal():
    """S0-41."""
    got = groups_with_signal(tensor([1.0, 1, 0, 1, 0.1, 0.1, 0.1, 5]), tensor([0, 0, 3, 3, 2, 2, 2, 9]))
    assert got.tolist() == [False, False, True, True, False, False, False, False]


def test_the_adaptive_weight_of_the_kl_moves_by_a_fifth_of_the_batchs_share_at_most():
    # target 0.1, 50 of 1000 responses: KL 0.11 is 10 percent over; 0.5 counts as 20; 0 as -20
    for kl, factor in ((0.11, 1 + 0.1 * 0.05), (0.5, 1 + 0.2 * 0.05), (0.0, 1 - 0.2 * 0.05), (0.1, 1.0)):
        assert adapted_kl_coef(2.0, kl, target_kl=0.1, horizon=1000, responses=50) == pytest.approx(2 * factor)
