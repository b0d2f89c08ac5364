"""The maths of GRPO as pure functions on tensors: advantages, log-probs, the clipped loss, KL, and their aggregation.

Left out: sampling, the model, the optimizer, and every decision about settings. Nothing here reads a config, picks a
device, logs or writes. Numbers are verl 0.9.1's (tests/grpo/test_algorithm_equals_verl.py holds the two side by side).

Shapes
    B  responses in the batch (of one micro-batch where a function says so)
    G  groups in the batch, that is prompts
    R  response tokens, padded to one width
    N  tokens, flattened
    V  vocabulary
    uid            [B]     int    which group a response belongs to; any integers, in any order
    rewards        [B]     float  what compute_score returned
    advantages     [B]     float  reward relative to the group; every token of a response shares it
    log_prob, ...  [B, R]  float  of the tokens that were sampled
    response_mask  [B, R]  bool or 0/1; 1 where we train, stop token included
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

# Rows of logits are worked on in pieces of at most this many numbers: 16 MiB of float32.
_CHUNK = 2**22


def _groups(rewards: Tensor, uid: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which of the G groups each response is in [B]; size, mean and unbiased standard deviation of every group [G].

    The standard deviation of a group of one is 0.
    """
    _, index, size = uid.unique(return_inverse=True, return_counts=True)
    zeros = rewards.new_zeros(len(size))
    # Measured from the group's lowest reward, equal rewards give a deviation of exactly 0. Around the plain mean their
    # rounding error (7e-9 for three times 0.1) would meet the 1e-6 in the denominator and become an advantage of 0.007.
    lowest = zeros.scatter_reduce(0, index, rewards, "amin", include_self=False)
    above = rewards - lowest[index]
    mean_above = zeros.index_add(0, index, above) / size
    squares = zeros.index_add(0, index, (above - mean_above[index]).square())
    return index, size, lowest + mean_above, (squares / (size - 1).clamp(min=1)).sqrt()


def group_advantages(rewards: Tensor, uid: Tensor, *, norm_by_std: bool, eps: float = 1e-6) -> Tensor:
    """How far each response is above its own group's mean. rewards, uid: [B]; returns [B].

    norm_by_std: divide by the group's standard deviation (GRPO, arXiv 2402.03300, section 4.1.2); without it, DrGRPO
    (arXiv 2503.20783). Same numbers as verl's `compute_grpo_outcome_advantage`: unbiased deviation, `eps` added outside
    the root, and a group of one has mean 0 and deviation 1, so its advantage is its reward. The launcher refuses
    rollout.n = 1, because that last case is plain REINFORCE and not GRPO.
    """
    group, size, mean, std = _groups(rewards, uid)
    alone = size == 1
    centered = rewards - mean.masked_fill(alone, 0.0)[group]
    return centered / (std.masked_fill(alone, 1.0)[group] + eps) if norm_by_std else centered


def zero_std_fraction(rewards: Tensor, uid: Tensor) -> Tensor:
    """Share of groups whose rewards are all equal, so that they teach nothing. rewards, uid: [B]; a scalar in 0..1.

    A group of one is counted: alone, it has nothing to be compared with.
    """
    return (_groups(rewards, uid)[3] == 0).to(rewards.dtype).mean()


def group_std(rewards: Tensor, uid: Tensor) -> Tensor:
    """Standard deviation within a group, averaged over the groups (`reward_std`). rewards, uid: [B]; a scalar.

    Unbiased, as the advantage uses it; a group of one counts as 0.
    """
    return _groups(rewards, uid)[3].mean()


def _scaled(rows: Tensor, temperature: float) -> Tensor:
    """Logits divided by the temperature, in float32 or better."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return rows if temperature == 1.0 else rows / temperature


def _in_chunks(*of_rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cuts tensors [N, ...] alike, into as many rows at a time as the first, [N, V], may have in one chunk."""
    size = max(1, _CHUNK // of_rows[0].shape[-1])
    return zip(*(tensor.split(size) for tensor in of_rows), strict=True)


class _ChosenLogProb(torch.autograd.Function):
    """log_probs_of for logits [N, V]. For the way back it keeps the logits as they came and one number per row.

    Left to autograd, bfloat16 logits would be kept a second time, in float32.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        log_sum = torch.cat([_scaled(rows, temperature).logsumexp(-1) for (rows,) in _in_chunks(logits)])
        chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(logits, tokens, log_sum)
        ctx.temperature = temperature
        return _scaled(chosen, temperature) - log_sum

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, tokens, log_sum = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        per_row = (column.unsqueeze(-1) for column in (tokens, log_sum, grads[0] / ctx.temperature))
        for out, rows, chosen, norm, grad in _in_chunks(grad_logits, logits, *per_row):
            p = (_scaled(rows, ctx.temperature) - norm).exp_()
            out.copy_(p.mul_(-grad).scatter_add_(-1, chosen, grad))  # d log p(chosen) / d logit = [is chosen] - p
        return grad_logits, None, None


class _Entropy(torch.autograd.Function):
    """entropy_of for logits [N, V]; keeps no more than `_ChosenLogProb` does."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float) -> Tensor:
        # entr(p) = -p log p, and 0 at p = 0: a token that is ruled out (logit -inf) does not make the sum NaN
        distributions = (_scaled(rows, temperature).softmax(-1) for (rows,) in _in_chunks(logits))
        entropy = torch.cat([torch.special.entr(p).sum(-1) for p in distributions])
        ctx.save_for_backward(logits, entropy)
        ctx.temperature = temperature
        return entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, entropy = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        per_row = (column.unsqueeze(-1) for column in (entropy, grads[0] / ctx.temperature))
        for out, rows, h, grad in _in_chunks(grad_logits, logits, *per_row):
            p = _scaled(rows, ctx.temperature).softmax(-1)
            out.copy_((torch.special.entr(p) - p * h) * grad)  # d H / d logit = -p (log p + H)
        return grad_logits, None


def log_probs_of(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability of the chosen tokens. logits [..., V], tokens [...] int; returns [...], float32 or better.

    The chosen logit minus logsumexp, a bounded number of rows at a time, so that no second [..., V] is ever held; the
    gradient of the logits is the only other one. Logits that are a strided view are copied first: cut the hidden states
    to the response before the output head, not the logits after it. Same numbers as verl's `logprobs_from_logits` on
    logits / temperature.
    """
    flat = _ChosenLogProb.apply(logits.reshape(-1, logits.shape[-1]), tokens.reshape(-1), float(temperature))
    return flat.reshape(tokens.shape)


def entropy_of(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Entropy of the next-token distribution, in nats. logits [..., V]; returns [...], float32 or better.

    Chunked like `log_probs_of`. Same numbers as verl's `entropy_from_logits` on logits / temperature.
    """
    return _Entropy.apply(logits.reshape(-1, logits.shape[-1]), float(temperature)).reshape(logits.shape[:-1])


def clipped_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """max(-A ratio, -A clip(ratio)) per token, ratio = exp(log_prob - old_log_prob). advantages: [B], [B, 1] or [B, R].

    The clipped objective of PPO (arXiv 1707.06347, equation 7) with a range of its own on each side, from
    1 - clip_ratio_low to 1 + clip_ratio_high. Dual clip (arXiv 1912.09729, equation 5): where A < 0 the loss stays
    below -A clip_ratio_c, so a bad response whose ratio exploded cannot throw the policy off; clip_ratio_c > 1.
    On the first pass over a batch old_log_prob is log_prob detached: ratio 1, nothing clipped, gradient -A.

    Returns the token losses [B, R] and, detached and [B, R] too, what becomes a statistic by a mean over tokens:
        clip_fraction        1 where the clip range decided (verl's actor/pg_clipfrac)
        clip_fraction_lower  1 where the dual clip decided (actor/pg_clipfrac_lower)
        ppo_kl               old_log_prob - log_prob, an estimate of KL(old || now) (actor/ppo_kl)
    Same numbers as verl's `compute_policy_loss_vanilla` before aggregation, log-ratio held within +-20 included.
    """
    assert clip_ratio_c > 1.0, f"clip_ratio_c must be above 1, not {clip_ratio_c}"
    if advantages.dim() < log_prob.dim():
        advantages = advantages.unsqueeze(-1)
    log_ratio = (log_prob - old_log_prob).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    pessimistic = torch.maximum(plain, clipped)
    bound = -advantages * clip_ratio_c
    bad = advantages < 0
    loss = torch.where(bad, torch.minimum(pessimistic, bound), pessimistic)
    statistics = {
        "clip_fraction": (clipped > plain).to(loss.dtype),
        "clip_fraction_lower": ((pessimistic > bound) & bad).to(loss.dtype),
        "ppo_kl": -log_ratio.detach(),
    }
    return loss, statistics


def aggregate(
    loss_matrix: Tensor,
    response_mask: Tensor,
    *,
    loss_agg_mode: str,
    batch_tokens: float,
    batch_responses: float,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """One micro-batch's share of the mini-batch's loss. loss_matrix, response_mask: [B, R]; returns a scalar.

    The divisors belong to the WHOLE mini-batch (one optimizer step), so shares simply add up, and the sum depends
    neither on how the mini-batch was cut nor on padding:
        token-mean               all tokens / batch_tokens (verl's default, DAPO)
        token-sum                all tokens
        seq-mean-token-sum       all tokens / batch_responses
        seq-mean-token-mean      each response's own mean, summed / batch_responses (GRPO, arXiv 2402.03300, eq. 3)
        seq-mean-token-sum-norm  all tokens / batch_responses / loss_scale_factor (DrGRPO, arXiv 2503.20783)

    batch_tokens:      trained tokens of the mini-batch
    batch_responses:   responses of the mini-batch
    loss_scale_factor: only for seq-mean-token-sum-norm, and due there. verl takes the padded width where none is set;
                       here the caller says it: the response width of the mini-batch. The width of a micro-batch would
                       make the gradient depend on the cut.
    Same numbers as verl's `agg_loss` with batch_num_tokens, global_batch_size and loss_scale_factor given, dp_size 1.
    Raises ValueError for an unknown mode or a missing loss_scale_factor.
    """
    assert min(batch_tokens, batch_responses) > 0, f"empty mini-batch: {batch_tokens=}, {batch_responses=}"
    mask = response_mask.bool()
    tokens = torch.where(mask, loss_matrix, 0.0)  # not a product: NaN in the padding must stay there
    if loss_agg_mode == "token-mean":
        return tokens.sum() / batch_tokens
    if loss_agg_mode == "token-sum":
        return tokens.sum()
    if loss_agg_mode == "seq-mean-token-sum":
        return tokens.sum() / batch_responses
    if loss_agg_mode == "seq-mean-token-mean":
        return (tokens.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / batch_responses
    if loss_agg_mode == "seq-mean-token-sum-norm":
        if loss_scale_factor is None:
            raise ValueError("seq-mean-token-sum-norm needs loss_scale_factor: pass the mini-batch's response width")
        return tokens.sum() / batch_responses / loss_scale_factor
    raise ValueError(f"unknown loss_agg_mode {loss_agg_mode!r}; one of {', '.join(LOSS_AGG_MODES)}")


def kl_penalty(log_prob: Tensor, ref_log_prob: Tensor, *, kind: str) -> Tensor:
    """Estimate of KL(policy || reference) from each sampled token. All [B, R]. With d = ref_log_prob - log_prob:

        kl, k1          -d                 unbiased, noisy, of either sign; as a loss its gradient ignores ref
        abs             |d|
        mse, k2         d^2 / 2            the estimator whose gradient is that of the KL
        low_var_kl, k3  exp(d) - d - 1     unbiased, never negative; GRPO's (arXiv 2402.03300, eq. 4)
        any with `+`    that value with the gradient of k2 (straight through)

    J. Schulman, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html, 2020). Same numbers as verl's
    `kl_penalty`: in k3, d is held within +-20 and the result within +-10. Raises ValueError for an unknown kind.
    """
    d = ref_log_prob - log_prob
    if kind.endswith("+"):
        k2 = 0.5 * d.square()
        return k2 - k2.detach() + kl_penalty(log_prob, ref_log_prob, kind=kind[:-1]).detach()
    if kind in ("kl", "k1"):
        return -d
    if kind == "abs":
        return d.abs()
    if kind in ("mse", "k2"):
        return 0.5 * d.square()
    if kind in ("low_var_kl", "k3"):
        d = d.clamp(-20.0, 20.0)
        return (d.exp() - d - 1).clamp(-10.0, 10.0)
    raise ValueError(
        f"unknown KL estimate {kind!r}; one of kl, k1, abs, mse, k2, low_var_kl, k3, or one of these with +"
    )


def rewards_minus_kl(
    rewards: Tensor,
    old_log_prob: Tensor,
    ref_log_prob: Tensor,
    response_mask: Tensor,
    *,
    kl_coef: float,
    kind: str,
) -> Tensor:
    """Rewards less kl_coef times the KL estimate summed over the response's tokens. rewards: [B]; returns [B].

    For algorithm.use_kl_in_reward, before `group_advantages`: verl's `apply_kl_penalty` followed by the sum over tokens
    that its GRPO advantage begins with. The result is for the advantage only; what is logged as reward stays `rewards`.
    """
    kl = kl_penalty(old_log_prob, ref_log_prob, kind=kind)
    return rewards - kl_coef * torch.where(response_mask.bool(), kl, 0.0).sum(-1)
