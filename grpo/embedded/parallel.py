"""Several processes that train as one: what each of them does of a step, and how the parts come together.

Every process holds the model and goes through the whole loop; only sampling, log-probs and gradients are shared out,
by whole groups. Responses are then told to all, and rewards by the first process, so that whatever looks at the whole
batch (groups, whitening, dynamic sampling, the divisors of the loss) is the same code on the same numbers as in one
process. Gradients are added up once per optimizer step by a plain all-reduce and not by DistributedDataParallel, whose
hooks want one forward and backward pass of equal size in every process and take means: here a process may have several
passes or none, each loss is divided by the whole mini-batch already, and the sum is exact.
One process alone: each function gives back what it was given. Starting and ending processes: processes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grpo.embedded.choosing import Sampling
from grpo.embedded.lanes import balanced
from grpo.embedded.policy import Policy
from grpo.embedded.rollout import Ended, Rollouts, sample

T = TypeVar("T")
BUCKET = 32 * 2**20  # elements that are added up in one message: 128 MB in float32, and as much memory


class World:
    """The processes of a run. rank: which one this is, from 0; size: how many there are."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def first(self) -> bool:
        """Whether this is the process that scores, shows, records and saves."""
        return self.rank == 0

    def mine(self, costs: Sequence[float]) -> list[int]:
        """Which of the items this process takes, ascending."""
        return balanced(costs, self.size)[self.rank]

    def gather(self, value: T) -> list[T]:
        """Every process's value, by rank."""
        if self.size == 1:
            return [value]
        values: list = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first process made; the others do not call it."""
        if self.size == 1:
            return make()
        told = [make() if self.first else None]
        dist.broadcast_object_list(told, src=0)
        return told[0]  # type: ignore[return-value]

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Each number added up over the processes that have it, in the order of their ranks."""
        summed: dict[str, float] = {}
        for part in self.gather(dict(numbers)):
            for name, value in part.items():
                summed[name] = summed.get(name, 0.0) + value
        return summed

    def add(self, tensor: Tensor) -> Tensor:
        """The same tensor, with those of all processes added to it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    @torch.no_grad()
    def sum_gradients(self, weights: Sequence[torch.nn.Parameter]) -> None:
        """Give each weight the sum of its gradients; None where no process has one, zero in processes without."""
        if self.size == 1:
            return
        there = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32)
        dist.all_reduce(there)
        for bucket in _buckets([weight for weight, count in zip(weights, there.tolist(), strict=True) if count]):
            grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = torch.cat([grad.flatten() for grad in grads])
            dist.all_reduce(flat)
            for weight, part in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad = part.view_as(weight)

    @torch.no_grad()
    def copy_from_first(self, weights: Sequence[torch.nn.Parameter]) -> None:
        """Give each weight the value that it has in the first process."""
        if self.size > 1:
            for weight in weights:
                dist.broadcast(weight.data, src=0)


ALONE = World()


def sample_together(
    world: World,
    policy: Policy,
    prompts: list[list[int]],
    sampling: Sampling,
    *,
    seed: int,
    max_rows: int,
    on_token: Callable[[int], None],
    on_ended: Ended | None = None,
) -> Rollouts:
    """As rollout.sample, each process its share of the prompts; all get all responses.

    on_token is told an estimate: the others are taken to be as far as this process. on_ended is told of this one's.
    """
    how: dict[str, Any] = {"seed": seed, "max_rows": max_rows, "on_ended": on_ended}
    if world.size == 1:
        return sample(policy, prompts, sampling, **how, on_token=on_token)
    total = len(prompts) * sampling.n
    mine, part = world.mine([len(prompt) + sampling.n * sampling.max_length for prompt in prompts]), None
    if mine:

        def on_mine(done: int) -> None:
            on_token(done * total // (len(mine) * sampling.n))

        part = sample(policy, prompts, sampling, **how, on_token=on_mine, chosen=mine)
        part = _moved(part, torch.device("cpu"))
    told = [(chosen, rollouts) for chosen, rollouts in world.gather((mine, part)) if rollouts is not None]
    whole = _moved(joined([rollouts for _, rollouts in told], pad_id=policy.pad_id), policy.device)
    order = torch.tensor([prompt for chosen, _ in told for prompt in chosen]).argsort()
    return replace(whole.select(whole.rows_of(order.tolist())), uid=whole.uid)


def my_rows(world: World, rollouts: Rollouts) -> Tensor:
    """The responses whose groups are this process's share, balanced by tokens."""
    return rollouts.rows_of(world.mine(rollouts.group_tokens()))


def joined(parts: Sequence[Rollouts], *, pad_id: int) -> Rollouts:
    """Rollouts of several batches of prompts as one, padded alike; uid counts the prompts on."""
    length = max(part.prompt_ids.shape[1] for part in parts)
    width = max(part.response_ids.shape[1] for part in parts)

    def prompts(name: str, filler: int) -> Tensor:
        return torch.cat([_padded(getattr(part, name), length, filler, left=True) for part in parts])

    def responses(name: str, filler: int) -> Tensor:
        return torch.cat([_padded(getattr(part, name), width, filler, left=False) for part in parts])

    before = 0
    uids = []
    for part in parts:
        uids.append(part.uid + before)
        before += len(part.prompt_ids)
    return Rollouts(
        prompt_ids=prompts("prompt_ids", pad_id),
        prompt_mask=prompts("prompt_mask", 0),
        response_ids=responses("response_ids", pad_id),
        response_mask=responses("response_mask", 0),
        log_probs=responses("log_probs", 0),
        uid=torch.cat(uids),
        truncated=torch.cat([part.truncated for part in parts]),
    )


def _moved(rollouts: Rollouts, device: torch.device) -> Rollouts:
    return replace(rollouts, **{field.name: getattr(rollouts, field.name).to(device) for field in fields(rollouts)})


def _padded(matrix: Tensor, width: int, filler: int, *, left: bool) -> Tensor:
    more = width - matrix.shape[1]
    return torch.nn.functional.pad(matrix, (more, 0) if left else (0, more), value=filler)


def _buckets(weights: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """The weights in runs of one dtype and at most BUCKET elements, or of one weight."""
    bucket: list[torch.nn.Parameter] = []
    elements = 0
    for weight in weights:
        if bucket and (weight.dtype != bucket[0].dtype or elements + weight.numel() > BUCKET):
            yield bucket
            bucket, elements = [], 0
        bucket.append(weight)
        elements += weight.numel()
    if bucket:
        yield bucket
