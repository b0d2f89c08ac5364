"""Older copies of the policy: the reference, the one that samples for a while.

Of a model that is trained with LoRA a copy is one more adapter in the same model, or none at all, so that the weights
under it are in memory once. When a copy is renewed is session.py's question.
"""

from __future__ import annotations

import copy
import dataclasses

import torch

from grpo.embedded.adapter import add_copy
from grpo.embedded.policy import Policy

OLD, REFERENCE = "old_policy", "reference"  # their names in a checkpoint, and as adapters


def frozen(policy: Policy, name: str, model: torch.nn.Module | None = None) -> Policy:
    """A copy of the policy that runs as it does and is never trained. model: its weights, where they are not its own.

    With LoRA it is a copy of the adapter.
    """
    if policy.adapter is not None:
        add_copy(policy.adapter, name, neutral=False)
        return dataclasses.replace(policy, part=name)
    model = copy.deepcopy(policy.model) if model is None else model
    model.requires_grad_(False)
    return dataclasses.replace(policy, model=model)


def before_adapter(policy: Policy, *, moves: bool) -> Policy:
    """The model as it is while the adapter is off. moves: as an adapter of its own that changes nothing as yet."""
    assert policy.adapter is not None
    if moves:
        add_copy(policy.adapter, REFERENCE, neutral=True)
    return dataclasses.replace(policy, part=REFERENCE if moves else None)


@torch.no_grad()
def move(mine: Policy, policy: Policy, *, share: float) -> None:
    """Take the weights of `mine` that share of the way to those of `policy`; 1 makes them equal."""
    for weight, target in zip(mine.own().values(), policy.own().values(), strict=True):
        if share == 1.0:
            weight.copy_(target)
        else:
            weight.lerp_(target, share)
