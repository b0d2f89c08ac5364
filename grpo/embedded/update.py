"""The update: from rollouts and advantages to new weights.

A mini-batch is one optimizer step. It is cut into micro-batches only to fit in memory: losses are divided by the
tokens and responses of the whole mini-batch, so gradients do not depend on the cut (nor on padding).
Legend: P prompts, B responses, R response tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from grpo.algorithm import aggregate, kl_penalty, policy_loss
from grpo.embedded.parallel import ALONE, World, my_rows
from grpo.embedded.passes import run_passes
from grpo.embedded.policy import Policy
from grpo.embedded.rollout import Rollouts
from grpo.embedded.skipping import cut_by_need
from grpo.engine import EngineError


@dataclass(frozen=True)
class Objective:
    """Everything that decides the loss; names as in configs/grpo.yaml."""

    loss_mode: str
    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float
    tau_pos: float
    tau_neg: float
    loss_agg_mode: str
    loss_scale_factor: float | None
    pg_loss_coef: float
    entropy_coeff: float
    calculate_entropy: bool
    kl_loss_coef: float | None  # None: no KL in the loss
    kl_loss_type: str
    temperature: float


@dataclass
class Batch:
    """What one update learns from. advantages: [B] or [B, R]; mask: [B, R], 0 where nothing is trained.

    ref_log_probs: [B, R] or None; on_policy: the weights are still those that sampled, so the old log-probs are the
    present ones and the ratio is exactly 1; by_a_copy: an older copy of the policy sampled, so that is never so.
    """

    rollouts: Rollouts
    advantages: torch.Tensor
    mask: torch.Tensor
    ref_log_probs: torch.Tensor | None
    on_policy: bool = False
    by_a_copy: bool = False

    def select(self, rows: torch.Tensor) -> Batch:
        """These responses (indices, as many for each prompt)."""
        rollouts = self.rollouts.select(rows)
        width = rollouts.response_ids.shape[1]
        ref = None if self.ref_log_probs is None else self.ref_log_probs[rows, :width]
        advantages = self.advantages[rows] if self.advantages.dim() == 1 else self.advantages[rows, :width]
        return Batch(rollouts, advantages, self.mask[rows, :width], ref, self.on_policy, self.by_a_copy)


def mini_batches(batch: Batch, *, size: int, epochs: int, shuffle_seed: int | None) -> Iterator[Batch]:
    """The batch in optimizer steps of `size` prompts, `epochs` times over; the order is new each time if seeded."""
    prompts = len(batch.rollouts.prompt_ids)
    generator = torch.Generator().manual_seed(shuffle_seed or 0)
    batch.on_policy = epochs == 1 and size >= prompts and not batch.by_a_copy
    for _ in range(epochs):
        order = torch.arange(prompts) if shuffle_seed is None else torch.randperm(prompts, generator=generator)
        for chosen in order.split(size):
            yield batch.select(batch.rollouts.rows_of(chosen.sort().values.tolist()))


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    objective: Objective,
    *,
    clip_grad: float,
    max_tokens: int,
    max_rows: int | None = None,
    world: World = ALONE,
) -> dict[str, float]:
    """One optimizer step on a mini-batch; the statistics of the whole mini-batch. Raises EngineError on NaN.

    Every process of `world` is given the whole mini-batch, takes its share of the groups, and ends with equal weights.
    """
    totals = {"batch_tokens": float(batch.mask.sum()), "batch_responses": float((batch.mask.sum(1) > 0).sum())}
    width = batch.mask.shape[1]
    sums: dict[str, torch.Tensor] = {}
    optimizer.zero_grad(set_to_none=True)
    if totals["batch_tokens"]:
        learned, measured = cut_by_need(batch, objective)
        for part, learns in ((learned, True), (measured, False)):
            if part is None or (part := my_share(world, part)) is None:
                continue
            loss = partial(_loss, policy, objective=objective, totals=totals, width=width)
            for stats in run_passes(policy, part, loss, learns=learns, max_tokens=max_tokens, max_rows=max_rows):
                for name, value in stats.items():
                    sums[name] = sums.get(name, 0.0) + value
        if learned is None:  # every gradient is zero, and the optimizer goes on from its moments
            for weight in policy.trained():
                weight.grad = torch.zeros_like(weight)
        else:
            world.sum_gradients(policy.trained())
        require_gradients(policy)
    numbers = world.sum({name: float(value) for name, value in sums.items()})
    norm = _clip(policy, clip_grad, policy_loss=numbers.get("policy_loss", 0.0))
    optimizer.step()
    return numbers | {"grad_norm": norm}


def my_share(world: World, batch: Batch) -> Batch | None:
    """The groups of this process, None where there are none."""
    if world.size == 1:
        return batch
    rows = my_rows(world, batch.rollouts)
    return batch.select(rows) if len(rows) else None


def _clip(policy: Policy, most: float, *, policy_loss: float) -> float:
    """The norm of the gradient, which is cut to `most` as torch's clip_grad_norm_ does. Raises EngineError on NaN."""
    trained = policy.trained()
    total = torch.nn.utils.get_total_norm([weight.grad for weight in trained if weight.grad is not None])
    norm = float(total)
    if not math.isfinite(norm) or not math.isfinite(policy_loss):
        raise EngineError(
            f"the gradient is not finite (norm {norm}), so this update was not made; the last checkpoint is "
            "good: go on from it with a smaller --lr, or with --dtype float32"
        )
    if most < norm + 1e-6:  # otherwise each gradient would be multiplied by 1
        torch.nn.utils.clip_grads_with_norm_(trained, most, total)
    return norm


def _loss(policy, batch: Batch, objective: Objective, totals: dict, width: int) -> tuple[torch.Tensor, dict]:
    """The share of a micro-batch in the mini-batch's loss, and its share in the statistics."""
    rollouts, mask = batch.rollouts, batch.mask
    log_prob, entropy = policy.log_probs(
        rollouts.prompt_ids,
        rollouts.prompt_mask,
        rollouts.response_ids,
        rollouts.response_mask,
        temperature=objective.temperature,
        entropy="loss" if objective.entropy_coeff else "metric" if objective.calculate_entropy else None,
    )

    def over_batch(matrix: torch.Tensor) -> torch.Tensor:
        return aggregate(
            matrix,
            mask,
            loss_agg_mode=objective.loss_agg_mode,
            loss_scale_factor=objective.loss_scale_factor or width,
            **totals,
        )

    def token_mean(matrix: torch.Tensor) -> torch.Tensor:
        return aggregate(matrix.detach(), mask, loss_agg_mode="token-mean", **totals)

    old_log_prob = log_prob.detach() if batch.on_policy else rollouts.log_probs
    token_loss, clipping = policy_loss(
        log_prob,
        old_log_prob,
        batch.advantages,
        mask,
        loss_mode=objective.loss_mode,
        clip_ratio_low=objective.clip_ratio_low,
        clip_ratio_high=objective.clip_ratio_high,
        clip_ratio_c=objective.clip_ratio_c,
        tau_pos=objective.tau_pos,
        tau_neg=objective.tau_neg,
    )
    loss = over_batch(token_loss)
    stats = {"policy_loss": loss.detach()} | {name: token_mean(value) for name, value in clipping.items()}
    loss = objective.pg_loss_coef * loss
    if entropy is not None:
        stats["entropy"] = token_mean(entropy)
        if objective.entropy_coeff:
            loss = loss - objective.entropy_coeff * over_batch(entropy)
    if batch.ref_log_probs is not None and objective.kl_loss_coef is not None:
        kl = over_batch(kl_penalty(log_prob, batch.ref_log_probs, kind=objective.kl_loss_type))
        loss = loss + objective.kl_loss_coef * kl
        stats["kl_loss"] = kl.detach()
    return loss, stats


def require_gradients(policy: Policy) -> None:
    """Stop by name when a trained weight got no gradient (S1-31). Experts that no token chose may have none."""
    missing = [
        name
        for name, weight in policy.model.named_parameters()
        if weight.requires_grad and weight.grad is None and "expert" not in name
    ]
    if missing:
        raise EngineError(
            f"{len(missing)} trained weights got no gradient, first {missing[0]}: the model does not use them in its "
            "forward pass; freeze them (requires_grad=False) or report the model"
        )


def learning_rate(step: int, *, lr: float, kind: str, warmup: int, total: int, min_ratio: float) -> float:
    """The rate of optimizer step `step` (from 0): linear warm-up, then constant or cosine down to lr * min_ratio."""
    if step < warmup:
        return lr * (step + 1) / warmup
    if kind == "constant":
        return lr
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return lr * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))
