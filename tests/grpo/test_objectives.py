"""The objectives beside PPO's clip: numbers by hand, and each gradient by finite differences of what its paper says.

PPO's clip has test_algorithm_loss.py; agreement with verl is in test_algorithm_equals_verl.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, tensor
from torch.testing import assert_close

from grpo.algorithm import (
    LOSS_AGG_MODES,
    LOSS_MODES,
    aggregate,
    cispo_loss,
    gpg_loss,
    gspo_loss,
    kl_penalty,
    log_probs_of,
    policy_loss,
    sapo_loss,
)

LN2, NAN = math.log(2), math.nan
SETTINGS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "tau_pos": 1.0, "tau_neg": 1.5}


def close(got: Tensor, expected: list | float, *, atol: float = 1e-6) -> None:
    assert_close(got, torch.as_tensor(expected, dtype=got.dtype), atol=atol, rtol=0)


def test_gspo_takes_the_geometric_mean_of_the_ratios_and_clips_the_response_as_a_whole():
    # ratios 4 and 1/2: geometric mean sqrt(2), clipped at 1.28 when good; when bad it stands. The second response is
    # within: ratios 1.1 and 1.1. NaN lies in the padding
    log_prob = tensor([[2 * LN2, -LN2, NAN], [2 * LN2, -LN2, NAN], [math.log(1.1), math.log(1.1), NAN]])
    mask = tensor([[1, 1, 0], [1, 1, 0], [1, 1, 0]])
    old = torch.zeros(3, 3)
    loss, statistics = gspo_loss(log_prob, old, tensor([1.0, -1, 2]), mask, clip_ratio_low=0.2, clip_ratio_high=0.28)
    close(loss[:, :2], [[-1.28, -1.28], [math.sqrt(2)] * 2, [-2.2, -2.2]])
    close(statistics["clip_fraction"][:, :2], [[1, 1], [0, 0], [0, 0]])


def test_cispo_bounds_the_weight_of_a_token_and_keeps_its_gradient():
    # ratio 4, A 1: PPO would mute this token; here its weight is 1.28. Ratio 1/2, A -2: weight 0.8
    log_prob = tensor([[2 * LN2, -LN2]], requires_grad=True)
    loss, statistics = cispo_loss(
        log_prob, torch.zeros(1, 2), tensor([[1.0, -2]]), clip_ratio_low=0.2, clip_ratio_high=0.28
    )
    close(loss.detach(), [[-1.28 * 2 * LN2, -1.6 * LN2]])
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    close(gradient, [[-1.28, 1.6]])
    close(statistics["clip_fraction"], [[1, 1]])


def test_sapo_opens_at_ratio_one_with_the_slope_of_the_policy_gradient():
    # at ratio 1: sigmoid(0) 4 / tau = 2 / tau, slope 1 whatever tau; at ratio 2 with tau 1: 4 sigmoid(1)
    log_prob = tensor([[0.0, LN2], [0.0, LN2]], dtype=torch.float64, requires_grad=True)
    advantages = tensor([3.0, -3], dtype=torch.float64)
    loss, _ = sapo_loss(log_prob, torch.zeros_like(log_prob), advantages, tau_pos=1.0, tau_neg=1.5)
    at_one, at_two = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-1.5))
    close(loss.detach(), [[-6, -12 * at_one], [4, 3 * 4 / 1.5 * at_two]])
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    # d loss / d log ratio = -A 4 s (1 - s) ratio: at ratio 2 a bad token pulls less than a good one
    expected = [[-3, -3 * 4 * at_one * (1 - at_one) * 2], [3, 3 * 4 * at_two * (1 - at_two) * 2]]
    close(gradient, expected)
    assert abs(gradient[1, 1]) < abs(gradient[0, 1])


def test_gpg_is_the_log_prob_times_the_advantage():
    loss, _ = gpg_loss(tensor([[-1.0, -2]]), tensor([[-9.0, -9]]), tensor([0.5]))
    close(loss, [[0.5, 1.0]])


@pytest.mark.parametrize("loss_mode", LOSS_MODES)
def test_at_ratio_one_every_objective_has_the_gradient_of_the_policy(loss_mode: str):
    """S4-10: one update per step, and they are all the same."""
    log_prob = tensor([[-0.3, -7.0], [-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    advantages, mask = tensor([1.5, -0.5], dtype=torch.float64), torch.ones(2, 2)
    loss, statistics = policy_loss(log_prob, log_prob.detach(), advantages, mask, loss_mode=loss_mode, **SETTINGS)
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    close(gradient, [[-1.5, -1.5], [0.5, 0.5]])
    assert all(not value.any() and not value.requires_grad for value in statistics.values())


def test_an_unknown_objective_is_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown loss_mode 'clip_cov'; one of vanilla, gspo"):
        policy_loss(*[torch.zeros(1, 1)] * 4, loss_mode="clip_cov", **SETTINGS)


# Gradients on a toy policy: five tokens, eight responses of 1 to 7 tokens, some way from the old policy


def toy() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(8, 7, 5, dtype=torch.float64, generator=generator)
    tokens = torch.randint(5, (8, 7), generator=generator)
    mask = torch.arange(7) < tensor([7, 1, 4, 4, 2, 6, 3, 5])[:, None]
    distance = 0.4 * torch.randn(8, 7, dtype=torch.float64, generator=generator)
    old = log_probs_of(logits, tokens) - distance
    return logits, tokens, mask, old, torch.randn(8, dtype=torch.float64, generator=generator)


def of_paper(loss_mode: str, at: Tensor) -> Callable[[Tensor], Tensor]:
    """What is differentiated, per response or token, written as the paper has it and not as we compute it.

    at: the log-probs at which the gradient is taken, for CISPO, which holds its weights constant there.
    """
    _, _, mask, old, a = toy()
    lengths = mask.sum(1)

    def vanilla(log_prob: Tensor) -> Tensor:
        ratio = (log_prob - old).exp()
        worse = torch.minimum(ratio * a[:, None], ratio.clip(0.8, 1.28) * a[:, None])
        return torch.where(a[:, None] < 0, torch.maximum(worse, 3 * a[:, None]), worse)

    def gspo(log_prob: Tensor) -> Tensor:
        s = (((log_prob - old) * mask).sum(1) / lengths).exp()
        return torch.minimum(s * a, s.clip(0.8, 1.28) * a)[:, None].expand(8, 7)

    def cispo(log_prob: Tensor) -> Tensor:
        return (at - old).exp().clip(0.8, 1.28) * a[:, None] * log_prob

    def sapo(log_prob: Tensor) -> Tensor:
        tau = torch.where(a > 0, 1.0, 1.5)[:, None]
        return 4 / tau / (1 + (-tau * ((log_prob - old).exp() - 1)).exp()) * a[:, None]

    return {"vanilla": vanilla, "gspo": gspo, "cispo": cispo, "sapo": sapo, "gpg": lambda lp: lp * a[:, None]}[
        loss_mode
    ]


# GSPO's objective is one of whole responses.
PAIRS = [(one, mode) for one in LOSS_MODES for mode in LOSS_AGG_MODES if one != "gspo" or mode == "seq-mean-token-mean"]


@pytest.mark.parametrize(("loss_mode", "mode"), PAIRS)
def test_the_gradient_is_that_of_finite_differences_of_the_papers_objective(loss_mode: str, mode: str):
    logits, tokens, mask, old, advantages = toy()
    whole = {"batch_tokens": 32, "batch_responses": 8, "loss_scale_factor": 7, "loss_agg_mode": mode}
    logits.requires_grad_()
    loss, _ = policy_loss(log_probs_of(logits, tokens), old, advantages, mask, loss_mode=loss_mode, **SETTINGS)
    (ours,) = torch.autograd.grad(aggregate(loss, mask, **whole), logits)
    objective = of_paper(loss_mode, log_probs_of(logits, tokens).detach())

    def value(at: Tensor) -> float:
        return -float(aggregate(objective(log_probs_of(at, tokens)), mask, **whole))

    assert torch.isfinite(ours).all()
    assert ours.abs().max() > 1e-3
    with torch.no_grad():
        for place in [(0, 0), (0, 6), (1, 0), (2, 3), (4, 1), (5, 2), (7, 4)]:
            for token in range(5):
                step = torch.zeros_like(logits)
                step[(*place, token)] = 1e-6
                numeric = (value(logits + step) - value(logits - step)) / 2e-6
                assert ours[(*place, token)].item() == pytest.approx(numeric, abs=1e-7)


@pytest.mark.parametrize("kind", ["k1+", "abs+", "k2+", "k3+", "k1", "abs", "k2", "k3"])
def test_the_gradient_of_the_kl_is_that_of_finite_differences_of_k2_where_a_plus_stands(kind: str):
    logits, tokens, mask, ref, _ = toy()
    logits.requires_grad_()
    kl = torch.where(mask, kl_penalty(log_probs_of(logits, tokens), ref, kind=kind), 0).sum()
    (ours,) = torch.autograd.grad(kl, logits)

    def value(at: Tensor) -> float:
        d = (ref - log_probs_of(at, tokens))[mask]
        plain = {"k1": -d, "abs": d.abs(), "k2": d.square() / 2, "k3": d.exp() - d - 1}
        return float(plain["k2" if kind.endswith("+") else kind].sum())

    with torch.no_grad():
        for token in range(5):
            step = torch.zeros_like(logits)
            step[2, 1, token] = 1e-6
            numeric = (value(logits + step) - value(logits - step)) / 2e-6
            assert ours[2, 1, token].item() == pytest.approx(numeric, abs=1e-7)
