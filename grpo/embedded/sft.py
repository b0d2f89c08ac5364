"""The supervised warm-up: imitate demonstrations for a few steps, so that GRPO has right answers to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from grpo.embedded.policy import Policy
from grpo.embedded.prompts import hash_seed
from grpo.embedded.update import learning_rate, require_gradients


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the response to imitate, as token ids; the response ends with the stop token."""

    prompt: list[int]
    response: list[int]


def warm_up(
    policy: Policy,
    demonstrations: Sequence[Demonstration],
    *,
    steps: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    clip_grad: float,
    seed: int,
    on_step: Callable[[int, float], None],
) -> None:
    """Minimise the mean negative log-prob of the response tokens; cosine schedule with a short warm-up.

    on_step(step, loss) is called after each optimizer step; what it raises ends the warm-up.
    """
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=lr, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(hash_seed(seed, "sft"))
    order: list[int] = []
    for step in range(steps):
        while len(order) < batch_size:
            order += torch.randperm(len(demonstrations), generator=generator).tolist()
        chosen, order = [demonstrations[index] for index in order[:batch_size]], order[batch_size:]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, lr=lr, kind="cosine", warmup=steps // 20, total=steps, min_ratio=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(policy, chosen)
        loss.backward()
        if step == 0:
            require_gradients(policy)
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), clip_grad)
        optimizer.step()
        on_step(step, float(loss.detach()))


def _loss(policy: Policy, batch: Sequence[Demonstration]) -> torch.Tensor:
    """Mean over all response tokens of the batch. Rows are [prompt, response, padding]."""
    width = max(len(item.prompt) + len(item.response) for item in batch)
    ids = torch.full((len(batch), width), policy.pad_id)
    labels = torch.full((len(batch), width), -100)
    mask = torch.zeros(len(batch), width, dtype=torch.long)
    for row, item in enumerate(batch):
        start, end = len(item.prompt), len(item.prompt) + len(item.response)
        ids[row, :end] = torch.tensor(item.prompt + item.response)
        labels[row, start:end] = ids[row, start:end]
        mask[row, :end] = 1
    ids, labels, mask = ids.to(policy.device), labels.to(policy.device), mask.to(policy.device)
    with policy.arithmetic():
        logits = policy.model(ids, attention_mask=mask, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
