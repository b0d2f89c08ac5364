"""The clipped loss of grpo/algorithm/ and its aggregation: by hand, by finite differences, in every cut of a batch.

What goes into it has its own file, test_algorithm.py; agreement with verl is in test_algorithm_equals_verl.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from grpo.algorithm import (
    LOSS_AGG_MODES,
    aggregate,
    clipped_policy_loss,
    entropy_of,
    group_advantages,
    kl_penalty,
    log_probs_of,
)

LN2 = math.log(2)


def close(got: Tensor | None, expected: list | float, *, atol: float = 1e-6) -> None:
    assert got is not None
    assert_close(got, torch.as_tensor(expected, dtype=got.dtype), atol=atol, rtol=0)


# The clipped loss: S2-29, S4-10


def token_losses(ratios: list[float], advantages: list[float], **settings: float):
    """Loss, its gradient by log_prob and the statistics, one response of one token each."""
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0} | settings
    old = torch.full((len(ratios), 1), -1.0, dtype=torch.float64)
    log_prob = (old + tensor(ratios, dtype=torch.float64).log()[:, None]).requires_grad_()
    loss, statistics = clipped_policy_loss(log_prob, old, tensor(advantages, dtype=torch.float64), **settings)
    (grad,) = torch.autograd.grad(loss.sum(), log_prob)
    return loss.detach()[:, 0], grad[:, 0], {name: value[:, 0] for name, value in statistics.items()}


def test_the_clip_takes_the_worse_of_both_and_stops_the_gradient_where_it_decides():
    # S2-29, clip range 0.8 to 1.2. good (A = 2): 1.5 counts as 1.2, 0.5 as itself, 1.1 as itself.
    # bad (A = -1): 0.5 counts as 0.8, 1.5 as itself
    loss, grad, statistics = token_losses([1.5, 0.5, 1.1, 0.5, 1.5], [2, 2, 2, -1, -1])
    close(loss, [-2.4, -1.0, -2.2, 0.8, 1.5])
    close(grad, [0, -1.0, -2.2, 0, 1.5])
    close(statistics["clip_fraction"], [1, 0, 0, 1, 0])
    close(statistics["clip_fraction_lower"], [0, 0, 0, 0, 0])
    close(statistics["ppo_kl"], [-math.log(1.5), LN2, -math.log(1.1), LN2, -math.log(1.5)])


def test_the_two_sides_of_the_clip_have_their_own_width():
    # up to 1 + 0.28 for good, down to 1 - 0.1 for bad
    loss, _, statistics = token_losses([1.5, 1.25, 0.5, 0.95], [1, 1, -1, -1], clip_ratio_low=0.1, clip_ratio_high=0.28)
    close(loss, [-1.28, -1.25, 0.9, 0.95])
    close(statistics["clip_fraction"], [1, 0, 1, 0])


def test_the_dual_clip_bounds_the_loss_of_a_bad_response_only():
    # A = -2 and ratio 5: 10 without, 2 x 3 with c = 3. A = 2: the plain clip at 1.2 already holds it. At ratio 2.9 no.
    loss, grad, statistics = token_losses([5.0, 5.0, 2.9], [-2, 2, -2])
    close(loss, [6.0, -2.4, 5.8])
    close(grad, [0, 0, 5.8])
    close(statistics["clip_fraction_lower"], [1, 0, 0])
    with pytest.raises(AssertionError, match="clip_ratio_c"):
        token_losses([1.0], [1], clip_ratio_c=1.0)


def test_on_the_first_pass_the_ratio_is_one_nothing_is_clipped_and_the_gradient_is_the_advantage():
    # S4-09, S4-10: old_log_prob is log_prob detached
    log_prob = tensor([[-0.3, -7.0], [-1.0, -2.0]], requires_grad=True)
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    loss, statistics = clipped_policy_loss(log_prob, log_prob.detach(), tensor([1.5, -0.5]), **settings)
    loss.sum().backward()
    close(loss.detach(), [[-1.5, -1.5], [0.5, 0.5]])
    close(log_prob.grad, [[-1.5, -1.5], [0.5, 0.5]])
    assert all(not value.any() and not value.requires_grad for value in statistics.values())


def test_all_tokens_of_a_response_share_its_advantage():
    """S4-07; the advantage may also come spread over the tokens."""
    torch.manual_seed(0)
    log_prob, old, advantages = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    shared, _ = clipped_policy_loss(log_prob, old, advantages, **settings)
    for same in (advantages[:, None], advantages[:, None].repeat(1, 4)):
        assert torch.equal(clipped_policy_loss(log_prob, old, same, **settings)[0], shared)
    one_by_one = [clipped_policy_loss(log_prob[:, [i]], old[:, [i]], advantages, **settings)[0] for i in range(4)]
    assert torch.equal(torch.cat(one_by_one, dim=1), shared)


def test_the_log_ratio_is_held_within_twenty():
    # A = 1 at a log-ratio of -30: -exp(-20), not -exp(-30); at +800, exp would be infinite and the loss NaN
    old = tensor([[-1.0], [-801.0]], dtype=torch.float64)
    log_prob = tensor([[-31.0], [-1.0]], dtype=torch.float64)
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    loss, statistics = clipped_policy_loss(log_prob, old, tensor([1.0, -1.0], dtype=torch.float64), **settings)
    close(loss, [[-2.061153622438558e-09], [3.0]], atol=1e-18)
    close(statistics["ppo_kl"], [[20.0], [-20.0]])


# The five aggregations: S2-30, S2-36, S4-09

#         sums 6, 4, 11; lengths 3, 1, 2; NaN lies in the padding, where nothing may look
NAN = math.nan
LOSSES = tensor([[1.0, 2, 3, NAN], [4, NAN, NAN, NAN], [5, 6, NAN, NAN]])
MASK = tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
BY_HAND = {
    "token-mean": 21 / 6,
    "token-sum": 21.0,
    "seq-mean-token-sum": 21 / 3,
    "seq-mean-token-mean": (2 + 4 + 5.5) / 3,
    "seq-mean-token-sum-norm": 21 / 3 / 4,
}
WHOLE = {"batch_tokens": 6, "batch_responses": 3, "loss_scale_factor": 4}


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
@pytest.mark.parametrize("mask_type", [torch.bool, torch.int64, torch.float32])
def test_each_aggregation_of_three_ragged_responses(mode: str, mask_type: torch.dtype):
    close(aggregate(LOSSES, MASK.to(mask_type), loss_agg_mode=mode, **WHOLE), BY_HAND[mode])


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
@pytest.mark.parametrize("junk", [50.0, math.inf, NAN])
def test_what_lies_in_the_padding_reaches_neither_loss_nor_gradient(mode: str, junk: float):
    losses = LOSSES.masked_fill(~MASK.bool(), junk).requires_grad_()
    loss = aggregate(losses, MASK, loss_agg_mode=mode, **WHOLE)
    loss.backward()
    close(loss.detach(), BY_HAND[mode])
    assert losses.grad is not None
    assert torch.equal(losses.grad > 0, MASK.bool())


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_a_response_without_trained_tokens_adds_nothing(mode: str):
    losses = torch.cat([LOSSES, torch.full((1, 4), NAN)])
    mask = torch.cat([MASK, torch.zeros(1, 4, dtype=MASK.dtype)])
    close(aggregate(losses, mask, loss_agg_mode=mode, **WHOLE), BY_HAND[mode])


def test_a_long_bad_answer_is_not_cheaper_per_token_in_drgrpo():
    """S2-36: with each response's own mean, a token of a long answer weighs less; in DrGRPO all weigh the same."""
    weights = {}
    for mode in ("seq-mean-token-mean", "seq-mean-token-sum-norm"):
        losses = torch.ones(2, 4, requires_grad=True)
        mask = tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
        whole = {"batch_tokens": 5, "batch_responses": 2, "loss_scale_factor": 4}
        aggregate(losses, mask, loss_agg_mode=mode, **whole).backward()
        assert losses.grad is not None
        weights[mode] = losses.grad[:, 0].tolist()
    assert weights == {"seq-mean-token-mean": [1 / 8, 1 / 2], "seq-mean-token-sum-norm": [1 / 8, 1 / 8]}


def test_an_aggregation_that_cannot_be_done_says_what_is_missing():
    with pytest.raises(ValueError, match=r"one of token-mean, token-sum, .*seq-mean-token-sum-norm"):
        aggregate(LOSSES, MASK, loss_agg_mode="seq-mean", **WHOLE)
    with pytest.raises(ValueError, match=r"needs loss_scale_factor: .* mini-batch's response width"):
        aggregate(LOSSES, MASK, loss_agg_mode="seq-mean-token-sum-norm", batch_tokens=6, batch_responses=3)
    with pytest.raises(AssertionError, match="empty mini-batch"):
        aggregate(LOSSES, MASK, loss_agg_mode="token-mean", batch_tokens=0, batch_responses=3)


# The whole loss


def mini_batch(seed: int = 0) -> dict[str, Tensor]:
    """Eight responses of 1 to 7 tokens over a vocabulary of 5, in two groups, some way from old and ref."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    lengths = tensor([7, 1, 4, 4, 2, 6, 3, 5])
    mask = torch.arange(7) < lengths[:, None]
    logits, tokens = normal(8, 7, 5), torch.randint(5, (8, 7), generator=generator)
    log_prob = log_probs_of(logits, tokens)
    advantages = group_advantages(normal(8), tensor([0, 0, 0, 0, 1, 1, 1, 1]), norm_by_std=True)
    old, ref = log_prob + 0.3 * normal(8, 7), log_prob + 0.3 * normal(8, 7)
    return {"logits": logits, "tokens": tokens, "mask": mask, "advantages": advantages, "old": old, "ref": ref}


def share(batch: dict[str, Tensor], mode: str, *, tokens: int, responses: int, width: int) -> Tensor:
    """What one micro-batch adds to the loss: clipped loss, KL and entropy bonus, as the update has them."""
    whole = {"batch_tokens": tokens, "batch_responses": responses, "loss_scale_factor": width, "loss_agg_mode": mode}
    log_prob = log_probs_of(batch["logits"], batch["tokens"], temperature=0.9)
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
    loss, _ = clipped_policy_loss(log_prob, batch["old"], batch["advantages"], **settings)
    kl = kl_penalty(log_prob, batch["ref"], kind="low_var_kl")
    bonus = entropy_of(batch["logits"], temperature=0.9)
    return aggregate(loss + 0.1 * kl - 0.01 * bonus, batch["mask"], **whole)


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_the_gradient_of_the_loss_is_that_of_finite_differences(mode: str):
    """S2-29, from the logits through log-probs, clip, KL and entropy to the number that is minimised."""
    batch = mini_batch()
    batch["logits"].requires_grad_()
    totals = {"tokens": 32, "responses": 8, "width": 7}
    assert gradcheck(lambda logits: share(batch | {"logits": logits}, mode, **totals), batch["logits"], fast_mode=True)


def pad(batch: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """The same responses in `width` columns; the added ones hold what nobody should look at."""
    more = width - batch["mask"].shape[1]
    if more < 0:
        return {name: value if value.dim() == 1 else value[:, :width] for name, value in batch.items()}
    junk = {torch.bool: 0, torch.int64: 3, torch.float64: 50.0}
    return {
        name: value
        if value.dim() == 1
        else torch.cat([value, value.new_full((len(value), more, *value.shape[2:]), junk[value.dtype])], dim=1)
        for name, value in batch.items()
    }


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
@pytest.mark.parametrize("cut", [[8], [1] * 8, [3, 5], [2, 1, 4, 1]])
def test_loss_and_gradient_depend_neither_on_the_cut_nor_on_padding(mode: str, cut: list[int]):
    batch = mini_batch()
    totals = {"tokens": 32, "responses": 8, "width": 7}

    def gradient(pieces: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        losses, grads = [], []
        for piece in pieces:
            logits = piece["logits"].detach().requires_grad_()
            loss = share(piece | {"logits": logits}, mode, **totals)
            (grad,) = torch.autograd.grad(loss, logits)
            losses.append(loss.detach())
            grads.append(
                pad({"mask": piece["mask"], "grad": grad}, 9)["grad"].masked_fill(~pad(piece, 9)["mask"][..., None], 0)
            )
        return torch.stack(losses).sum(), torch.cat(grads)

    columns = {name: value.split(cut) for name, value in batch.items()}
    pieces = [{name: parts[i] for name, parts in columns.items()} for i in range(len(cut))]
    whole = gradient([batch])
    # each micro-batch as it lies, cut to its own longest response, and padded by different amounts
    assert_close(gradient(pieces), whole, atol=1e-13, rtol=0)
    assert_close(gradient([pad(p, int(p["mask"].sum(1).max())) for p in pieces]), whole, atol=1e-13, rtol=0)
    assert_close(gradient([pad(p, 7 + i % 3) for i, p in enumerate(pieces)]), whole, atol=1e-13, rtol=0)
