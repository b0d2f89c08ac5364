"""The group's advantage, log-probs, entropy and KL of grpo/algorithm/ against numbers worked out by hand.

The loss has its own file, test_algorithm_loss.py; the other estimators and objectives have test_advantages.py and
test_objectives.py; agreement with verl is in test_algorithm_equals_verl.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, tensor
from torch.autograd import gradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo.algorithm import (
    entropy_of,
    group_advantages,
    group_std,
    kl_penalty,
    log_probs_of,
    rewards_minus_kl,
    token_probs,
    zero_std_fraction,
)

LN2, LN3, NAN = math.log(2), math.log(3), math.nan


def close(got: Tensor | None, expected: list | float, *, atol: float = 1e-6) -> None:
    assert got is not None
    assert_close(got, torch.as_tensor(expected, dtype=got.dtype), atol=atol, rtol=0)


# The advantage: S2-01, S2-13, S2-28


def test_the_only_success_of_four_stands_one_and_a_half_deviations_up():
    # S2-28: mean 1/4, centred 3/4 and -1/4 (x3), unbiased std sqrt((9 + 3) / 16 / 3) = 1/2
    got = group_advantages(tensor([1.0, 0, 0, 0]), tensor([7, 7, 7, 7]), norm_by_std=True)
    close(got, [1.5, -0.5, -0.5, -0.5], atol=1e-5)


def test_without_the_deviation_the_advantage_is_the_distance_to_the_mean():
    # S2-13 off, as DrGRPO has it (S2-30)
    got = group_advantages(tensor([1.0, 0, 0, 0]), tensor([7, 7, 7, 7]), norm_by_std=False)
    close(got, [0.75, -0.25, -0.25, -0.25])


def test_groups_of_different_size_may_lie_mixed_and_carry_any_numbers():
    # group 9: 1, 3: mean 2, std sqrt(2). group -3: 2, 2, 5: mean 3, std sqrt((1 + 1 + 4) / 2) = sqrt(3)
    rewards, uid = tensor([1.0, 2, 3, 2, 5], dtype=torch.float64), tensor([9, -3, 9, -3, -3])
    a, b = 1 / math.sqrt(2), 1 / math.sqrt(3)
    close(group_advantages(rewards, uid, norm_by_std=True), [-a, -b, a, -b, 2 * b], atol=1e-5)
    close(group_advantages(rewards, uid, norm_by_std=False), [-1, -1, 1, -1, 2])


def test_eps_stands_outside_the_root():
    # rewards 0 and 2e-6: centred 1e-6, std sqrt(2) 1e-6, so 1 / (sqrt(2) + 1) = sqrt(2) - 1; inside the root it would
    # be 0.001
    got = group_advantages(tensor([0, 2e-6], dtype=torch.float64), tensor([0, 0]), norm_by_std=True)
    close(got, [1 - math.sqrt(2), math.sqrt(2) - 1])


def test_equal_rewards_give_exactly_no_advantage_however_they_round():
    # 0.1 is not a float: three of them have a mean that differs from them in the last bit
    rewards = tensor([0.1, 0.1, 0.1, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3])
    uid = tensor([0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    assert group_advantages(rewards, uid, norm_by_std=True).tolist() == [0.0] * 10
    assert zero_std_fraction(rewards, uid) == 1.0


def test_a_response_alone_in_its_group_keeps_its_reward_as_verl_has_it():
    rewards, uid = tensor([0.7, 1.0, 3.0]), tensor([4, 8, 8])
    close(group_advantages(rewards, uid, norm_by_std=True)[0], 0.7)
    close(group_advantages(rewards, uid, norm_by_std=False)[0], 0.7)


@pytest.mark.parametrize("seed", range(5))
def test_above_the_group_mean_is_positive_and_a_group_sums_to_zero(seed: int):
    """S2-01, in any order, at any level and scale of the rewards."""
    torch.manual_seed(seed)
    uid = torch.randint(0, 6, (40,)).sort().values
    uid = uid[(uid.unsqueeze(0) == uid.unsqueeze(1)).sum(0) > 1]
    rewards = torch.randn(len(uid), dtype=torch.float64)
    got = group_advantages(rewards, uid, norm_by_std=True, eps=0.0)
    for group in uid.unique():
        mine = uid == group
        close(got[mine].sum(), 0.0, atol=1e-12)
        close(got[mine].std(), 1.0, atol=1e-12)
        assert torch.equal(got[mine] > 0, rewards[mine] > rewards[mine].mean())
    order = torch.randperm(len(uid))
    assert_close(group_advantages(rewards[order], uid[order], norm_by_std=True, eps=0.0), got[order])
    assert_close(group_advantages(1000 + 3 * rewards, uid, norm_by_std=True, eps=0.0), got)


def test_reward_std_and_the_share_of_groups_without_signal():
    # S2-38: stds 0 (equal), sqrt(1/2), 0 (equal), and 0 for the one alone
    rewards, uid = tensor([1.0, 1.0, 0.0, 1.0, 0.1, 0.1, 0.1, 5.0]), tensor([0, 0, 1, 1, 2, 2, 2, 3])
    close(group_std(rewards, uid), math.sqrt(0.5) / 4)
    close(zero_std_fraction(rewards, uid), 0.75)


# Log-probs and entropy: S4-11


def test_log_probs_are_those_of_the_chosen_tokens():
    # probabilities 1/4, 3/4 and 1/8, 7/8
    logits = tensor([[[0.0, LN3], [1.0, 1.0 + math.log(7)]]])
    close(log_probs_of(logits, tensor([[0, 1]])), [[math.log(1 / 4), math.log(7 / 8)]])


def test_temperature_divides_the_logits():
    # 2 ln 3 at temperature 2 is ln 3 again
    logits = tensor([[0.0, 2 * LN3]])
    close(log_probs_of(logits, tensor([1]), temperature=2.0), [math.log(3 / 4)])
    close(entropy_of(logits, temperature=2.0), [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75))])


def test_entropy_is_in_nats_and_a_token_ruled_out_adds_nothing():
    logits = tensor([[0.0, 0, 0, 0], [5.0, 5, -math.inf, -math.inf]], requires_grad=True)
    entropy = entropy_of(logits)
    close(entropy, [2 * LN2, LN2])
    entropy.sum().backward()
    close(logits.grad, [[0.0] * 4, [0.0] * 4])  # each is the most even it can be


def test_the_gradient_of_a_log_prob_is_chosen_minus_probability():
    # p = 1/4, 3/4; token 1 chosen: -1/4, 1/4, halved by temperature 2
    for temperature in (1.0, 2.0):
        logits = tensor([[0.0, temperature * LN3]], requires_grad=True)
        log_probs_of(logits, tensor([1]), temperature=temperature).sum().backward()
        close(logits.grad, [[-0.25 / temperature, 0.25 / temperature]])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 8, 10_000])
def test_log_probs_and_entropy_differentiate_in_every_chunking(
    monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float
):
    monkeypatch.setattr(token_probs, "_CHUNK", chunk)
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(4, (1, 3))
    assert gradcheck(lambda x: log_probs_of(x, tokens, temperature=temperature), logits)
    assert gradcheck(lambda x: entropy_of(x, temperature=temperature), logits)


def test_half_precision_logits_are_worked_on_in_float32():
    # in bfloat16, ln(1/4) and ln(3/4) would be off by up to 0.004; the logits here are exact in it
    logits = tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.bfloat16, requires_grad=True)
    norm = math.log(sum(math.exp(i) for i in range(4)))
    got = log_probs_of(logits, tensor([2]))
    assert got.dtype == entropy_of(logits).dtype == torch.float32
    close(got, [2 - norm])
    got.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


class _FreshTensors(TorchDispatchMode):
    """Records how many numbers each tensor holds that does not share the memory of `known`."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self.known = known.untyped_storage().data_ptr()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        out = func(*args, **(kwargs or {}))
        of_views = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in of_views | {self.known}:
                self.sizes.append(t.numel())
        return out


@pytest.mark.parametrize("what", ["log_probs", "entropy"])
def test_no_second_tensor_as_large_as_the_logits_but_their_gradient(monkeypatch: pytest.MonkeyPatch, what: str):
    """S4-11: with a vocabulary of 151,936, one more [B, R, V] is what does not fit."""
    rows, vocabulary = 24, 50
    monkeypatch.setattr(token_probs, "_CHUNK", 3 * vocabulary)
    logits = torch.randn(rows, vocabulary, dtype=torch.bfloat16, requires_grad=True)
    tokens = torch.randint(vocabulary, (rows,))
    with _FreshTensors(logits) as forward:
        out = log_probs_of(logits, tokens) if what == "log_probs" else entropy_of(logits)
    assert 0 < max(forward.sizes) <= 3 * vocabulary
    with _FreshTensors(logits) as backward:
        out.sum().backward()
    assert sorted(backward.sizes)[-1] == rows * vocabulary  # the gradient
    assert sorted(backward.sizes)[-2] <= 3 * vocabulary


# KL to the reference: S2-16, S4-08


@pytest.mark.parametrize(
    ("kinds", "half_to_quarter", "quarter_to_half"),
    [
        # log_prob ln 1/2, ref ln 1/4: d = -ln 2; and the other way round: d = ln 2
        (("kl", "k1"), LN2, -LN2),
        (("abs",), LN2, LN2),
        (("mse", "k2"), LN2**2 / 2, LN2**2 / 2),
        (("low_var_kl", "k3"), 1 / 2 + LN2 - 1, 2 - LN2 - 1),
    ],
)
def test_each_kl_estimate_of_a_probability_halved_and_doubled(kinds, half_to_quarter: float, quarter_to_half: float):
    log_prob, ref = tensor([[-LN2, -2 * LN2]]), tensor([[-2 * LN2, -LN2]])
    for kind in (*kinds, *(kind + "+" for kind in kinds)):
        close(kl_penalty(log_prob, ref, kind=kind), [[half_to_quarter, quarter_to_half]])


@pytest.mark.parametrize(
    ("kind", "gradient"),
    [("k1", 1.0), ("abs", 1.0), ("k2", LN2), ("k3", 1 / 2), ("k1+", LN2), ("abs+", LN2), ("k2+", LN2), ("k3+", LN2)],
)
def test_the_gradient_of_each_kl_estimate_and_of_k2_where_a_plus_stands(kind: str, gradient: float):
    # by log_prob, at d = -ln 2: 1, sign(-d), -d, 1 - exp(d); with `+` always -d
    log_prob = tensor([[-LN2]], requires_grad=True)
    kl_penalty(log_prob, tensor([[-2 * LN2]]), kind=kind).sum().backward()
    close(log_prob.grad, [[gradient]])


def test_k1_and_k3_estimate_the_kl_divergence():
    # S4-08: drawn from (.5, .3, .2) against (.2, .5, .3): .5 ln 2.5 + .3 ln .6 + .2 ln 2/3
    p, q = tensor([0.5, 0.3, 0.2], dtype=torch.float64), tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    kl = 0.5 * math.log(2.5) + 0.3 * math.log(0.6) + 0.2 * math.log(2 / 3)
    for kind in ("kl", "low_var_kl"):
        close((p * kl_penalty(p.log(), q.log(), kind=kind)).sum(), kl, atol=1e-12)
    assert (kl_penalty(p.log(), q.log(), kind="low_var_kl") > 0).all()


def test_low_var_kl_is_held_at_ten_and_pulls_no_more_there():
    log_prob = tensor([[-1.0, -40.0, -900.0]], requires_grad=True)
    got = kl_penalty(log_prob, tensor([[-40.0, -1.0, -1.0]]), kind="low_var_kl")
    got.sum().backward()
    close(got.detach(), [[10.0, 10.0, 10.0]])
    close(log_prob.grad, [[0.0, 0.0, 0.0]])


def test_an_unknown_kl_is_refused_by_name():
    for kind in ("full", "k4+"):
        with pytest.raises(ValueError, match="unknown KL estimate"):
            kl_penalty(tensor([0.0]), tensor([0.0]), kind=kind)


def test_kl_in_the_reward_is_taken_from_every_token_and_the_reward_comes_at_the_last():
    # k1 is ln 2 at each token: two tokens and one; the reward itself stays as it is
    rewards = tensor([1.0, 0.0])
    old = tensor([[-LN2, -LN2], [-LN2, NAN]])
    ref = torch.full((2, 2), -2 * LN2)
    got, mean = rewards_minus_kl(rewards, old, ref, tensor([[1, 1], [1, 0]]), kl_coef=0.1, kind="kl")
    close(got, [[-0.1 * LN2, 1 - 0.1 * LN2], [-0.1 * LN2, 0]])
    close(mean, LN2)
    close(rewards, [1.0, 0.0])
