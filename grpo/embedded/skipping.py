"""Which responses of a mini-batch need no backward pass, or no pass at all, because they cannot move a weight.

A response without advantage, as in a group whose rewards are all equal, has a policy loss of exactly zero: where
neither KL nor an entropy bonus is in the loss, so is its gradient. Divisors of the loss count it all the same.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from grpo.embedded.update import Batch, Objective


def cut_by_need(batch: Batch, objective: Objective) -> tuple[Batch | None, Batch | None]:
    """(what is learned from, what is only measured), None where that is nothing.

    What is learned from keeps its groups; in it, a response that needs no pass has an empty mask.
    """
    n = batch.rollouts.n
    counted = batch.mask.bool()
    trained = counted.any(1)  # [B]
    advantages = batch.advantages if batch.advantages.dim() > 1 else batch.advantages[:, None]
    learned = (counted & (advantages != 0)).any(1)
    measured = torch.zeros_like(trained)
    if objective.entropy_coeff or (batch.ref_log_probs is not None and objective.kl_loss_coef is not None):
        learned = trained
    elif objective.calculate_entropy or not batch.on_policy:  # statistics are of all responses
        group_learns = learned.view(-1, n).any(1).repeat_interleave(n)
        learned, measured = trained & group_learns, trained & ~group_learns
    return _only(batch, learned), _only(batch, measured)


def _only(batch: Batch, rows: torch.Tensor) -> Batch | None:
    """The groups with any of these responses ([B], bool), the others' masks emptied."""
    if not rows.any():
        return None
    n = batch.rollouts.n
    whole = rows.view(-1, n).any(1).repeat_interleave(n).nonzero().squeeze(1)
    part, rows = batch.select(whole), rows[whole]
    if rows.all():
        return part
    response_mask = part.rollouts.response_mask * rows[:, None]
    return dataclasses.replace(
        part, rollouts=dataclasses.replace(part.rollouts, response_mask=response_mask), mask=part.mask * rows[:, None]
    )
