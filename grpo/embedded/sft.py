"""Supervised steps: imitate demonstrations, with a loss on their responses alone.

The warm-up before GRPO, and the maths of ./train.sh sft, whose run is tuning.py.

Several demonstrations may share a row (packing): positions start again with each one, from which the model sees that
none may look at another. Not with an encoder and a decoder, which read prompt and response apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from grpo.embedded.encoder_decoder import EncoderDecoderPolicy
from grpo.embedded.parallel import ALONE, World
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Encoder, hash_seed
from grpo.embedded.update import learning_rate, require_gradients

_UNTRAINED = -100  # the label of a token that is no response


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the response to imitate, as token ids; the response ends with the stop token."""

    prompt: list[int]
    response: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


def demonstrations(
    pairs: Iterable[tuple[dict, str]], encoder: Encoder, policy: Policy, *, longest: int | None = None
) -> tuple[list[Demonstration], int, int]:
    """(what to imitate, how many prompts were too long and left out, how many responses).

    pairs: rows as the encoder takes them, and their responses; longest: tokens of a response, the stop token included.
    """
    found, long_prompts, long_responses = [], 0, 0
    for row, text in pairs:
        prompt = encoder(row)
        response = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.stop_ids[0]]
        if prompt is None:
            long_prompts += 1
        elif longest is not None and len(response) > longest:
            long_responses += 1
        else:
            found.append(Demonstration(prompt.ids, response))
    return found, long_prompts, long_responses


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
    world: World = ALONE,
) -> None:
    """Minimise the mean negative log-prob of the response tokens; cosine schedule with a short warm-up.

    on_step(step, loss) is called after each optimizer step; what it raises ends the warm-up. world: the processes that
    share each batch.
    """
    optimizer = torch.optim.AdamW(policy.trained(), lr=lr, weight_decay=weight_decay, fused=True)
    generator = torch.Generator().manual_seed(hash_seed(seed, "sft"))
    order: list[int] = []
    for step in range(steps):
        while len(order) < batch_size:
            order += torch.randperm(len(demonstrations), generator=generator).tolist()
        chosen, order = [demonstrations[index] for index in order[:batch_size]], order[batch_size:]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, lr=lr, kind="cosine", warmup=steps // 20, total=steps, min_ratio=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss = _share_of_loss(policy, chosen, world)
        world.sum_gradients(policy.trained())
        if step == 0:
            require_gradients(policy)
        torch.nn.utils.clip_grad_norm_(policy.trained(), clip_grad)
        optimizer.step()
        on_step(step, loss)


def rows_of(batch: Sequence[Demonstration], *, width: int, packing: bool) -> list[list[Demonstration]]:
    """The batch in rows of at most `width` tokens, or of one demonstration, the longest first."""
    rows: list[list[Demonstration]] = []
    room: list[int] = []
    for item in sorted(batch, key=len, reverse=True):
        fits = next((row for row, left in enumerate(room) if packing and len(item) <= left), None)
        if fits is None:
            rows.append([item])
            room.append(width - len(item))
        else:
            rows[fits].append(item)
            room[fits] -= len(item)
    return rows


def micro_batches(rows: Sequence[list[Demonstration]], *, max_tokens: int) -> list[list[list[Demonstration]]]:
    """The rows in parts that hold at most `max_tokens` with padding, or one row; rows come longest first."""
    parts: list[list[list[Demonstration]]] = []
    for row in rows:
        longest = sum(map(len, parts[-1][0])) if parts else 0
        if parts and max(longest, sum(map(len, row))) * (len(parts[-1]) + 1) <= max_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def summed_loss(policy: Policy, rows: Sequence[Sequence[Demonstration]]) -> torch.Tensor:
    """Minus the log-probs of all response tokens of these rows, added up."""
    if isinstance(policy, EncoderDecoderPolicy):
        return _summed_apart(policy, [item for row in rows for item in row])
    width = max(sum(map(len, row)) for row in rows)
    ids = torch.full((len(rows), width), policy.pad_id)
    labels = torch.full((len(rows), width), _UNTRAINED)
    positions = torch.zeros(len(rows), width, dtype=torch.long)  # of padding: each token by itself
    for number, row in enumerate(rows):
        at = 0
        for item in row:
            end = at + len(item)
            ids[number, at:end] = torch.tensor(item.prompt + item.response)
            labels[number, at + len(item.prompt) : end] = torch.tensor(item.response)
            positions[number, at:end] = torch.arange(len(item))
            at = end
    ids, labels, positions = (part.to(policy.device) for part in (ids, labels, positions))
    with policy.arithmetic(), policy.recomputing():
        logits = policy.model(ids, position_ids=positions, use_cache=False).logits
    flat = logits[:, :-1].flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(flat, labels[:, 1:].flatten(), reduction="sum")


def _summed_apart(policy: EncoderDecoderPolicy, items: Sequence[Demonstration]) -> torch.Tensor:
    """The same where the encoder reads the prompts, [B, L], and the decoder the responses, [B, R]."""
    (prompts, prompt_mask), (responses, mask) = (
        (
            pad_sequence([torch.tensor(part) for part in parts], batch_first=True, padding_value=policy.pad_id),
            pad_sequence([torch.ones(len(part), dtype=torch.long) for part in parts], batch_first=True),
        )
        for parts in ([item.prompt for item in items], [item.response for item in items])
    )
    there = [part.to(policy.device) for part in (prompts, prompt_mask, responses, mask)]
    log_probs, _ = policy.log_probs(*there, temperature=1.0)
    return -(log_probs * there[-1]).sum()


@torch.no_grad()
def keeps_apart(policy: Policy, one: Demonstration, other: Demonstration) -> bool:
    """Whether this architecture gives demonstrations in one row the losses that they have alone."""
    if isinstance(policy, EncoderDecoderPolicy):
        return False
    together = summed_loss(policy, [[one, other]])
    alone = summed_loss(policy, [[one]]) + summed_loss(policy, [[other]])
    tolerance = 1e-3 if policy.dtype == torch.float32 else 3e-2
    return bool((together - alone).abs() <= tolerance * alone.abs().clamp(min=1.0))


def _share_of_loss(policy: Policy, batch: Sequence[Demonstration], world: World) -> float:
    """The mean over the batch's response tokens; leaves the gradient of this process's share of it."""
    mine, value = batch[world.rank :: world.size], 0.0
    if mine:
        tokens, of_all = (sum(len(item.response) for item in items) for items in (mine, batch))
        loss = _loss(policy, mine) * (tokens / of_all)
        loss.backward()
        value = float(loss.detach())
    return world.sum({"loss": value})["loss"]


def _loss(policy: Policy, batch: Sequence[Demonstration]) -> torch.Tensor:
    """Mean over all response tokens of the batch. Rows are [prompt, response, padding]."""
    if isinstance(policy, EncoderDecoderPolicy):
        return _summed_apart(policy, batch) / sum(len(item.response) for item in batch)
    width = max(len(item.prompt) + len(item.response) for item in batch)
    ids = torch.full((len(batch), width), policy.pad_id)
    labels = torch.full((len(batch), width), _UNTRAINED)
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
