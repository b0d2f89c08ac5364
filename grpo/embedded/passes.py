"""A batch through the model, forward and backward: cut into micro-batches to fit in memory, and shared out to lanes.

Every lane (lanes.py) takes whole groups, and micro-batches of as many tokens as leave room for those of the others.
Legend: P prompts, B responses, R response tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from grpo.embedded.lanes import Tell, balanced, side_by_side
from grpo.embedded.parallel import World, my_rows
from grpo.embedded.policy import Policy
from grpo.embedded.rollout import Rollouts

if TYPE_CHECKING:
    from grpo.embedded.update import Batch

Stats = dict[str, torch.Tensor]


def micro_batches(
    rollouts: Rollouts, *, max_tokens: int, max_rows: int | None, packed: bool = False
) -> list[torch.Tensor]:
    """Response indices of each forward/backward: at most max_rows responses, or max_tokens tokens.

    packed: tokens are counted without padding. Groups stay whole, so that a prompt is run once for all its responses;
    only a group that is too large by itself is cut.
    """
    n = rollouts.n
    prompt_lengths = rollouts.prompt_mask.sum(1).tolist()
    lengths = rollouts.response_mask.sum(1).reshape(-1, n)
    longest, summed = lengths.amax(1).tolist(), lengths.sum(1).tolist()

    def fits(prompts: list[int], rows: int) -> bool:
        if max_rows is not None:
            return rows <= max_rows
        if packed:
            responses = sum(summed[p] for p in prompts) if rows == n * len(prompts) else rows * longest[prompts[0]]
            return sum(prompt_lengths[p] for p in prompts) + responses <= max_tokens
        return (
            max(prompt_lengths[p] for p in prompts) * len(prompts) + rows * max(longest[p] for p in prompts)
            <= max_tokens
        )

    cuts: list[list[int]] = []
    whole: list[int] = []  # prompts whose groups go together
    for prompt in range(len(prompt_lengths)):
        if whole and not fits([*whole, prompt], (len(whole) + 1) * n):
            cuts.append([p * n + i for p in whole for i in range(n)])
            whole = []
        part = n
        while part > 1 and not fits([prompt], part):
            part -= 1
        if part == n:
            whole.append(prompt)
        else:
            cuts += [list(range(prompt * n + i, prompt * n + min(i + part, n))) for i in range(0, n, part)]
    if whole:
        cuts.append([p * n + i for p in whole for i in range(n)])
    return [torch.tensor(cut, device=rollouts.prompt_ids.device) for cut in cuts]


@torch.no_grad()
def log_probs(policy: Policy, rollouts: Rollouts, *, temperature: float, max_tokens: int) -> torch.Tensor:
    """log_prob of every response token under `policy`, [B, R]; 0 where there is no token."""
    out = torch.zeros(rollouts.response_ids.shape, device=policy.device)
    shares = _shares(policy, rollouts)
    cut = _cut(policy, len(shares), max_tokens, None)

    def fill(mine: torch.Tensor, _: Tell) -> None:
        whole = rollouts.select(mine)
        for rows in cut(whole):
            part = whole.select(rows)
            values, _entropy = policy.log_probs(
                part.prompt_ids, part.prompt_mask, part.response_ids, part.response_mask, temperature=temperature
            )
            out[mine[rows], : values.shape[1]] = values * part.response_mask

    side_by_side([partial(fill, mine) for mine in shares])
    return out


def log_probs_together(
    world: World, policy: Policy, rollouts: Rollouts, *, temperature: float, max_tokens: int
) -> torch.Tensor:
    """As log_probs, each process its share of the groups; all get all of them."""
    if world.size == 1:
        return log_probs(policy, rollouts, temperature=temperature, max_tokens=max_tokens)
    out = torch.zeros(rollouts.response_ids.shape, device=policy.device)
    if len(rows := my_rows(world, rollouts)):
        mine = log_probs(policy, rollouts.select(rows), temperature=temperature, max_tokens=max_tokens)
        out[rows, : mine.shape[1]] = mine
    return world.add(out)


def run_passes(
    policy: Policy,
    batch: Batch,
    loss_of: Callable[[Batch], tuple[torch.Tensor, Stats]],
    *,
    learns: bool,
    max_tokens: int,
    max_rows: int | None,
) -> list[Stats]:
    """Every micro-batch of the batch, forward and, where it learns, backward: their statistics, and their gradients.

    Each lane has gradients of its own, which are then added up in order.
    """
    shares, weights = _shares(policy, batch.rollouts), policy.trained()
    lanes = len(shares)
    cut = _cut(policy, lanes, max_tokens, max_rows)

    def run(mine: torch.Tensor, _: Tell) -> tuple[list[torch.Tensor | None], list[Stats]]:
        whole, found = batch.select(mine), []
        grads: list[torch.Tensor | None] = [None] * len(weights)
        for rows in cut(whole.rollouts):
            with torch.set_grad_enabled(learns):
                loss, stats = loss_of(whole.select(rows))
            found.append(stats)
            if learns and lanes == 1:
                loss.backward()  # right into the weights' own gradients: no second copy of them
            elif learns:
                more = torch.autograd.grad(loss, weights, allow_unused=True)
                grads = [_sum(*pair) for pair in zip(grads, more, strict=True)]
        return grads, found

    done = side_by_side([partial(run, rows) for rows in shares])
    if learns and lanes > 1:
        for weight, *grads in zip(weights, *(grads for grads, _ in done), strict=True):
            weight.grad = functools.reduce(_sum, grads, weight.grad)
    return [stats for _, found in done for stats in found]


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    return second if first is None else first if second is None else first + second


def _cut(policy: Policy, lanes: int, max_tokens: int, max_rows: int | None) -> Callable[[Rollouts], list[torch.Tensor]]:
    """The micro-batches of a lane: of its share of the tokens or responses that may be in memory at once."""
    most_rows = None if max_rows is None else max(1, max_rows // lanes)
    return partial(micro_batches, max_tokens=max(1, max_tokens // lanes), max_rows=most_rows, packed=policy.packs)


def _shares(policy: Policy, rollouts: Rollouts) -> list[torch.Tensor]:
    """The responses of each lane, in whole groups, balanced by tokens."""
    costs = rollouts.group_tokens()
    return [rollouts.rows_of(prompts) for prompts in balanced(costs, min(policy.lanes, len(costs)))]
