"""From a step's scores to what its update learns: rewards shaped, compared, and spread over the tokens.

Left out: the maths (grpo/algorithm/), the update itself (update.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from grpo.algorithm import (
    adapted_kl_coef,
    advantages_of,
    group_std,
    normalized,
    overlong_penalty,
    rewards_minus_kl,
    token_rewards,
    zero_std_fraction,
)
from grpo.embedded.gather import Sampled, shaped
from grpo.embedded.session import Session
from grpo.embedded.update import Batch
from grpo.engine import EngineError


def measured(sampled: Sampled) -> dict[str, float]:
    """What the step says about its rewards, as they were returned, over all that was sampled.

    A response whose reward failed counts in no mean but `reward/errors`; neither does a group with fewer than two
    rewards in those about groups.
    """
    scores, rollouts = sampled.scores, sampled.rollouts
    rewards, scored, valid = _comparable(scores.scores, rollouts.uid)
    values = {
        "reward_mean": rewards[scored].mean(),
        "reward_std": group_std(rewards[valid], rollouts.uid[valid]),
        "zero_std_fraction": zero_std_fraction(rewards[valid], rollouts.uid[valid]),
        "reward/errors": float(scores.errors),
        "response_clip_fraction": rollouts.truncated.float().mean(),
    }
    for name in sorted({name for parts in scores.parts for name in parts}):
        part = [parts[name] for parts in scores.parts if name in parts]
        values[f"reward/{name}"] = sum(part) / len(part)
    return {name: float(value) for name, value in values.items()}


def learn_from(session: Session, sampled: Sampled) -> tuple[Batch, dict[str, float]]:
    """What the update learns from, and what shaping its rewards has to say.

    A response whose reward failed is masked: it trains nothing. A group with fewer than two rewards has nothing to
    compare and is masked too.
    """
    settings, rollouts, scores, parts = session.settings, sampled.rollouts, sampled.scores.scores, sampled.scores.parts
    values, reference = dict[str, float](), sampled.reference  # [B, R] or None
    if sampled.trained is not None:
        rollouts = rollouts.select(sampled.trained)
        reference = session.reference_log_probs(rollouts)
        scores, parts = [scores[i] for i in sampled.trained], [parts[i] for i in sampled.trained]
        values["generated_batches"] = float(sampled.batches)
    lengths = rollouts.response_mask.sum(1)
    rewards, _, valid = _comparable(shaped(scores, lengths, settings.shaping), rollouts.uid)
    mask = rollouts.response_mask * valid[:, None]  # [B, R]
    advantages = torch.zeros_like(rollouts.log_probs)  # [B, R]
    if valid.any():
        if settings.shaping.overlong is not None:
            values["overlong_penalty"] = float(overlong_penalty(lengths[valid], **settings.shaping.overlong).mean())
        by_token, of_kl = _token_rewards(session, rewards[valid], rollouts.log_probs[valid], reference, mask, valid)
        values |= of_kl
        of_parts = _parts(parts, settings.parts).to(mask.device)[valid] if settings.by_parts else None
        advantages[valid] = advantages_of(
            by_token, mask[valid], rollouts.uid[valid], parts=of_parts, **settings.advantage
        )
    if settings.shaping.mask_truncated:
        mask = mask * ~rollouts.truncated[:, None]
    in_loss = reference if settings.objective.kl_loss_coef is not None else None
    return Batch(rollouts, advantages, mask, in_loss, by_a_copy=session.old is not None), values


def _token_rewards(
    session: Session,
    rewards: torch.Tensor,
    log_probs: torch.Tensor,
    reference: torch.Tensor | None,
    mask: torch.Tensor,
    valid: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Token rewards of the valid responses, less their KL where that is due, and what the metrics say of it."""
    how = session.settings.kl_in_reward
    if session.settings.shaping.normalize:
        rewards = normalized(rewards)
    if how is None:
        return token_rewards(rewards, mask[valid]), {}
    assert reference is not None
    coef = session.kl_coef
    by_token, mean = rewards_minus_kl(rewards, log_probs, reference[valid], mask[valid], kl_coef=coef, kind=how.kind)
    kl = float(mean)
    if how.adaptive:
        session.next_kl_coef = adapted_kl_coef(
            coef, kl, target_kl=how.target_kl, horizon=how.horizon, responses=len(valid)
        )
    return by_token, {"actor/reward_kl_penalty": kl, "actor/reward_kl_penalty_coeff": coef}


def _comparable(scores: Sequence[float | None], uid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rewards, which have one, which have one and another of their group to be compared with), each [B]."""
    scored = torch.tensor([score is not None for score in scores], device=uid.device)
    rewards = torch.tensor([score or 0.0 for score in scores], device=uid.device)
    _, group = uid.unique(return_inverse=True)
    per_group = torch.zeros(len(uid), device=uid.device).index_add_(0, group, scored.float())
    return rewards, scored, scored & (per_group[group] > 1)


def _parts(parts: Sequence[Mapping[str, float]], names: tuple[str, ...] | None) -> torch.Tensor:
    """The parts of every reward, [B, K], NaN where a response does not have one. Raises EngineError."""
    there = sorted({name for mine in parts for name in mine})
    names = names or tuple(there)
    missing = [name for name in names if name not in there]
    if missing or not names:
        what = f"no part {missing[0]}; it has {', '.join(there) or 'none'}" if names else "no parts"
        raise EngineError(
            f"gdpo compares the parts of a reward one by one, and this reward returned {what}: name those it has with "
            "algorithm.gdpo_reward_keys, or give several rewards"
        )
    return torch.tensor([[mine.get(name, math.nan) for name in names] for mine in parts])
