"""What becomes of a reward before it is an advantage: limits, normalisation, penalties for length and for KL.

All of it is for the advantage only; what is logged as reward stays what compute_score returned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo.algorithm.kl import kl_penalty


def overlong_penalty(lengths: Tensor, *, max_length: int, buffer: int, factor: float) -> Tensor:
    """0 up to max_length - buffer tokens, from there straight down to -factor at max_length. lengths: [B]; [B] float.

    DAPO's soft overlong punishment (arXiv 2503.14476, equation 13). Same numbers as verl's `dapo` reward manager.
    """
    over = lengths.float() - (max_length - buffer)
    return -(over / buffer * factor).clamp(min=0.0)


def normalized(rewards: Tensor, eps: float = 1e-8) -> Tensor:
    """Rewards less their mean over the batch, divided by their deviation (unbiased). [B]; a single one becomes 0."""
    if len(rewards) < 2:
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std() + eps)


def token_rewards(rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Each reward at the last token of its response, 0 elsewhere. rewards: [B]; returns [B, R]."""
    mask = response_mask.bool()
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, positions, -1).amax(1, keepdim=True)  # -1: no token
    return torch.where(positions == last, rewards[:, None], 0.0)


def rewards_minus_kl(
    rewards: Tensor,
    old_log_prob: Tensor,
    ref_log_prob: Tensor,
    response_mask: Tensor,
    *,
    kl_coef: float,
    kind: str,
) -> tuple[Tensor, Tensor]:
    """(token rewards less kl_coef times each token's KL estimate [B, R], the mean KL as a scalar). rewards: [B].

    For algorithm.use_kl_in_reward, before the advantage. The mean is over the tokens of a response, then over
    responses, as the adaptive controller wants it. Same numbers as verl's `apply_kl_penalty`.
    """
    mask = response_mask.bool()
    kl = torch.where(mask, kl_penalty(old_log_prob, ref_log_prob, kind=kind), 0.0)
    mean = (kl.sum(-1) / (mask.sum(-1) + 1e-8)).mean()
    return token_rewards(rewards, mask) - kl_coef * kl, mean
