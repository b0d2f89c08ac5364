"""Training on one screen: prompts -> rollouts -> rewards -> advantages -> update, with what makes it stop and go on.

What a step needs is assembled in session.py; the maths is in grpo/algorithm.py.
"""

from __future__ import annotations

import time
from statistics import fmean as mean
from typing import Any

import torch

from grpo.algorithm import group_advantages, group_std, rewards_minus_kl, zero_std_fraction
from grpo.embedded.evaluate import responses_text, rows
from grpo.embedded.interrupts import Interrupts, StopRequested
from grpo.embedded.opening import open_session
from grpo.embedded.prompts import hash_seed
from grpo.embedded.rollout import Rollouts
from grpo.embedded.session import Session
from grpo.embedded.settings import settings_of
from grpo.embedded.update import Batch, mini_batches, update
from grpo.engine import Interrupted, Result, Run
from reward_funcs import Scores


def train(run: Run) -> Result:
    """Train as `run` says. Raises EngineError, RewardError, DataError, or Interrupted with a checkpoint written."""
    settings = settings_of(run.config)
    with Interrupts() as interrupts:
        try:
            with open_session(run, settings, interrupts) as session:
                return _train(session)
        except StopRequested:
            raise Interrupted("stopped before the first step, so there is nothing to save") from None


def _train(session: Session) -> Result:
    try:
        for step, prompts in session.steps():
            began = time.perf_counter()
            rollouts = session.sample(step, prompts)  # B = prompts * n
            texts = responses_text(session.policy, rollouts)
            scores = session.score(prompts, texts)
            batch, values = learn_from(session, rollouts, scores)
            session.interrupts.check()  # the last moment at which the weights are still those of the step before
            values |= update_policy(session, step, batch)
            values |= speed(rollouts, time.perf_counter() - began)
            session.finish_step(step, values, rows(prompts, texts, scores, rollouts, "train"))
            session.interrupts.check()
        return session.finish()
    except StopRequested:
        raise Interrupted(session.save_and_say()) from None


def learn_from(session: Session, rollouts: Rollouts, scores: Scores) -> tuple[Batch, dict[str, Any]]:
    """Rewards to advantages, and what the step says about its rewards.

    A response whose reward failed is masked: it trains nothing and counts in no mean. A group with fewer than two
    rewards has nothing to compare and is masked too.
    """
    settings, device = session.settings, session.policy.device
    scored = torch.tensor([value is not None for value in scores.scores], device=device)  # [B]
    rewards = torch.tensor([value or 0.0 for value in scores.scores], device=device)  # [B]
    per_group = torch.zeros(len(rollouts.prompt_ids), device=device).index_add_(0, rollouts.uid, scored.float())
    valid = scored & (per_group[rollouts.uid] > 1)  # [B]
    mask = rollouts.response_mask * valid[:, None]  # [B, R]

    reference = session.reference_log_probs(rollouts)  # [B, R] or None
    shaped = rewards
    if settings.kl_in_reward and reference is not None:
        shaped = rewards_minus_kl(rewards, rollouts.log_probs, reference, mask, **settings.kl_in_reward)
    advantages = torch.zeros_like(rewards)
    if valid.any():
        advantages[valid] = group_advantages(shaped[valid], rollouts.uid[valid], norm_by_std=settings.norm_adv_by_std)

    values = {
        "reward_mean": rewards[scored].mean(),
        "reward_std": group_std(rewards[valid], rollouts.uid[valid]),
        "zero_std_fraction": zero_std_fraction(rewards[valid], rollouts.uid[valid]),
        "reward_errors": float(scores.errors),
        "response_clip_fraction": rollouts.truncated.float().mean(),
    }
    for name in sorted({name for parts in scores.parts for name in parts}):
        part = [parts[name] for parts in scores.parts if name in parts]
        values[f"reward/{name}"] = sum(part) / len(part)
    batch = Batch(rollouts, advantages, mask, reference if settings.objective.kl_loss_coef is not None else None)
    return batch, {name: float(value) for name, value in values.items()}


def update_policy(session: Session, step: int, batch: Batch) -> dict[str, float]:
    """All optimizer steps on one batch; their mean statistics."""
    settings = session.settings
    seed = hash_seed(settings.seed, "mini_batches", step) if settings.shuffle_mini_batches else None
    stats = []
    for part in mini_batches(batch, size=settings.mini_batch_prompts, epochs=settings.ppo_epochs, shuffle_seed=seed):
        lr = session.next_learning_rate()
        stat = update(
            session.policy,
            session.optimizer,
            part,
            settings.objective,
            clip_grad=float(settings.optim["clip_grad"]),
            max_tokens=session.max_micro_tokens,
            max_rows=settings.max_micro_rows,
        )
        stats.append(stat | {"lr": lr})
    names = {name: None for stat in stats for name in stat}
    return {name: mean([stat[name] for stat in stats if name in stat]) for name in names}


def speed(rollouts: Rollouts, seconds: float) -> dict[str, float]:
    """Response length, seconds of the step, and its tokens per second: prompts and responses, counted as verl does."""
    lengths = rollouts.response_mask.sum(1).float()
    prompts = rollouts.n * rollouts.prompt_mask.sum()
    return {
        "response_length": float(lengths.mean()),
        "seconds_per_step": seconds,
        "tokens_per_second": float(lengths.sum() + prompts) / seconds,
    }
