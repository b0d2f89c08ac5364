"""Policy losses: what a token costs, given its log-probs and its advantage. One function for each objective.

Left out: the mean over tokens and responses (aggregation.py), KL and entropy, which are added to it.
Each returns the token losses [B, R] and, detached and [B, R] too, what becomes a statistic by a mean over tokens:
    clip_fraction        1 where a clip range decided (verl's actor/pg_clipfrac)
    clip_fraction_lower  1 where the dual clip decided (actor/pg_clipfrac_lower)
    ppo_kl               old_log_prob - log_prob, an estimate of KL(old || now) (actor/ppo_kl)
On the first pass over a batch old_log_prob is log_prob detached: every ratio is 1, and every gradient is -A.
"""

from __future__ import annotations

import torch
from torch import Tensor

Losses = tuple[Tensor, dict[str, Tensor]]


def clipped_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
) -> Losses:
    """max(-A ratio, -A clip(ratio)) per token, ratio = exp(log_prob - old_log_prob). advantages: [B], [B, 1] or [B, R].

    The clipped objective of PPO (arXiv 1707.06347, equation 7) with a range of its own on each side, from
    1 - clip_ratio_low to 1 + clip_ratio_high. Dual clip (arXiv 1912.09729, equation 5): where A < 0 the loss stays
    below -A clip_ratio_c, so a bad response whose ratio exploded cannot throw the policy off; clip_ratio_c > 1.
    Same numbers as verl's `compute_policy_loss_vanilla` before aggregation, log-ratio held within +-20 included.
    """
    assert clip_ratio_c > 1.0, f"clip_ratio_c must be above 1, not {clip_ratio_c}"
    advantages = _for_tokens(advantages, log_prob)
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


def gspo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> Losses:
    """The clipped loss with one ratio for the whole response: the geometric mean of its tokens' ratios.

    GSPO (arXiv 2507.18071, equations 5 and 7, in its token form): value and clip are those of the
    response, and its gradient is spread over its tokens. The paper's aggregation is seq-mean-token-mean, and its clip
    range hundreds of times narrower than for tokens (3e-4 and 4e-4). Same numbers as verl's `compute_policy_loss_gspo`
    before aggregation, log-ratio held below 10 included.
    """
    mask = response_mask.bool()
    advantages = _for_tokens(advantages, log_prob)
    log_ratio = log_prob - old_log_prob
    of_response = torch.where(mask, log_ratio, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)  # [B]
    ratio = (log_prob - log_prob.detach() + of_response.detach()[:, None]).clamp(max=10.0).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    statistics = {"clip_fraction": (clipped > plain).to(plain.dtype), "ppo_kl": -log_ratio.detach()}
    return torch.maximum(plain, clipped), statistics


def cispo_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, *, clip_ratio_low: float, clip_ratio_high: float
) -> Losses:
    """-A log_prob, weighted by the clipped ratio held constant: the clip bounds a token's weight and never mutes it.

    CISPO (arXiv 2506.13585). Its value is no distance to anything; its gradient is what counts. Same
    numbers as verl's `compute_policy_loss_cispo` before aggregation, log-ratio held within +-20 included.
    """
    log_ratio = (log_prob - old_log_prob).detach().clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    weight = ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    statistics = {"clip_fraction": (ratio != weight).to(weight.dtype), "ppo_kl": -log_ratio}
    return -weight * _for_tokens(advantages, log_prob) * log_prob, statistics


def sapo_loss(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, *, tau_pos: float, tau_neg: float) -> Losses:
    """A soft gate in place of the clip: -A (4 / tau) sigmoid(tau (ratio - 1)), whose slope is 1 at ratio 1.

    SAPO (arXiv 2511.20347): the further the ratio is from 1, the less a token pulls; tau_neg > tau_pos lets go of
    tokens of bad responses sooner. Aggregation is seq-mean-token-mean. Same numbers as verl's
    `compute_policy_loss_sapo` before it, log-ratio held within +-20 included.
    """
    advantages = _for_tokens(advantages, log_prob)
    log_ratio = (log_prob - old_log_prob).clamp(-20.0, 20.0)
    tau = torch.where(advantages > 0, tau_pos, tau_neg).to(log_prob.dtype)
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * (4.0 / tau)
    return -gate * advantages, {"ppo_kl": -log_ratio.detach()}


def gpg_loss(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor) -> Losses:
    """-A log_prob: the policy gradient itself, without a ratio. GPG (arXiv 2504.02546), verl's `gpg`."""
    return -log_prob * _for_tokens(advantages, log_prob), {"ppo_kl": (old_log_prob - log_prob).detach()}


LOSS_MODES = ("vanilla", "gspo", "cispo", "sapo", "gpg")


def policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    loss_mode: str,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
    tau_pos: float,
    tau_neg: float,
) -> Losses:
    """The loss that one of LOSS_MODES names, under verl's names for its settings. Raises ValueError for another."""
    clip = {"clip_ratio_low": clip_ratio_low, "clip_ratio_high": clip_ratio_high}
    if loss_mode == "vanilla":
        return clipped_policy_loss(log_prob, old_log_prob, advantages, **clip, clip_ratio_c=clip_ratio_c)
    if loss_mode == "gspo":
        return gspo_loss(log_prob, old_log_prob, advantages, response_mask, **clip)
    if loss_mode == "cispo":
        return cispo_loss(log_prob, old_log_prob, advantages, **clip)
    if loss_mode == "sapo":
        return sapo_loss(log_prob, old_log_prob, advantages, tau_pos=tau_pos, tau_neg=tau_neg)
    if loss_mode == "gpg":
        return gpg_loss(log_prob, old_log_prob, advantages)
    raise ValueError(f"unknown loss_mode {loss_mode!r}; one of {', '.join(LOSS_MODES)}")


def _for_tokens(advantages: Tensor, log_prob: Tensor) -> Tensor:
    """Advantages [B], [B, 1] or [B, R] as they are multiplied with [B, R]."""
    return advantages if advantages.dim() == log_prob.dim() else advantages.unsqueeze(-1)
