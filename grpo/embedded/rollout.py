"""Sampling: n responses to each prompt, with a KV cache.

A prompt is run once for its whole group, a finished response leaves the batch and makes room for the next prompts,
and every random number is drawn before the first token from (seed, step): what a response becomes depends neither on
which prompts were answered side by side nor on who finished when, and a resumed run samples exactly what an
undisturbed one would have.
Legend: P prompts, n responses each, B = P * n, L prompt tokens, R response tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from grpo.embedded.choosing import Sampling, choose
from grpo.embedded.compiling import compiled
from grpo.embedded.decoding import Decoding
from grpo.embedded.lanes import balanced, side_by_side
from grpo.embedded.policy import Policy

Ended = Callable[[Mapping[int, list[int]]], None]  # is told of responses that have ended: their row, their tokens


@dataclass
class Rollouts:
    """Responses of one step and what was recorded while sampling.

    prompt_ids, prompt_mask: [P, L], left-padded; response_ids, response_mask: [B, R], right-padded, the stop token
    included in the mask; log_probs: [B, R], at the sampling temperature, before top-k and top-p; uid: [B], which
    prompt; truncated: [B], cut at max_length.
    """

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    response_ids: torch.Tensor
    response_mask: torch.Tensor
    log_probs: torch.Tensor
    uid: torch.Tensor
    truncated: torch.Tensor

    @property
    def n(self) -> int:
        return len(self.response_ids) // len(self.prompt_ids)

    def group_tokens(self) -> list[int]:
        """Tokens of each group, its prompt once: [P]."""
        return (self.prompt_mask.sum(1) + self.response_mask.sum(1).view(-1, self.n).sum(1)).tolist()

    def rows_of(self, prompts: Sequence[int]) -> torch.Tensor:
        """The responses to these prompts (indices)."""
        first = torch.tensor(prompts, dtype=torch.long)[:, None] * self.n
        return (first + torch.arange(self.n)).flatten().to(self.uid.device)

    def select(self, rows: torch.Tensor) -> Rollouts:
        """These responses (indices, as many for each prompt), without columns that only others needed."""
        prompts = (rows // self.n).unique_consecutive()
        assert len(rows) % len(prompts) == 0, "a cut must leave as many responses to each prompt"
        width = max(1, int(self.response_mask[rows].sum(1).max()))
        length = max(1, int(self.prompt_mask[prompts].sum(1).max()))
        return Rollouts(
            prompt_ids=self.prompt_ids[prompts, -length:],
            prompt_mask=self.prompt_mask[prompts, -length:],
            response_ids=self.response_ids[rows, :width],
            response_mask=self.response_mask[rows, :width],
            log_probs=self.log_probs[rows, :width],
            uid=self.uid[rows],
            truncated=self.truncated[rows],
        )


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: list[list[int]],
    sampling: Sampling,
    *,
    seed: int,
    max_rows: int = 256,
    on_token: Callable[[int], None] = lambda finished: None,
    on_ended: Ended | None = None,
    chosen: Sequence[int] | None = None,
) -> Rollouts:
    """Responses to `prompts` (token ids). seed: of this step; max_rows: responses side by side.

    chosen: answer only these of the prompts, as they would be answered among all.

    on_token(finished) is called after every decoding step with the number of responses done so far; what it raises
    ends the sampling. on_ended(tokens), in the thread that sampled them, with those that ended in the step, by their
    row among the responses to all prompts.
    """
    n, width = sampling.n, sampling.max_length
    generator = torch.Generator().manual_seed(seed)
    uniforms, places = torch.rand(len(prompts), n, width, generator=generator), torch.arange(len(prompts) * n)
    if chosen is not None:
        prompts, uniforms = [prompts[index] for index in chosen], uniforms[list(chosen)]
        places = places.view(-1, n)[list(chosen)].flatten()
    total = len(prompts) * n
    ids, mask = _left_pad(prompts, policy)
    table = _Table(
        places=places.to(policy.device),
        uniforms=uniforms.flatten(0, 1).to(policy.device),
        response_ids=torch.full((total, width), policy.pad_id, device=policy.device),
        log_probs=torch.zeros(total, width, device=policy.device),
        lengths=torch.full((total,), width, device=policy.device),
        stopped=torch.zeros(total, dtype=torch.bool, device=policy.device),
    )
    lanes = min(policy.lanes, len(prompts))
    shares = balanced([len(prompt) + n * width for prompt in prompts], lanes)
    rows = max(1, max_rows // lanes)
    decode = partial(_decode, policy, ids, mask, sampling, table, on_ended)
    side_by_side([partial(decode, share, rows) for share in shares], on_token)

    width = max(1, int(table.lengths.max()))
    response_mask = torch.arange(width, device=policy.device) < table.lengths[:, None]  # [B, R]
    return Rollouts(
        prompt_ids=ids,
        prompt_mask=mask,
        response_ids=table.response_ids[:, :width].masked_fill(~response_mask, policy.pad_id),
        response_mask=response_mask.long(),
        log_probs=table.log_probs[:, :width].masked_fill(~response_mask, 0.0),
        uid=torch.arange(len(prompts), device=policy.device).repeat_interleave(n),
        truncated=~table.stopped,
    )


@dataclass
class _Table:
    """What is known of every response, [B, R] or [B]; beyond a response's length there is rubbish.

    places: the row of each among the responses to all prompts, also those of other processes.
    """

    places: torch.Tensor
    uniforms: torch.Tensor
    response_ids: torch.Tensor
    log_probs: torch.Tensor
    lengths: torch.Tensor
    stopped: torch.Tensor

    def said(self, rows: torch.Tensor) -> dict[int, list[int]]:
        """The tokens of these responses, which have ended, by their places."""
        widest = int(self.lengths[rows].max())
        ids = self.response_ids[rows, :widest].tolist()
        found = zip(self.places[rows].tolist(), ids, self.lengths[rows].tolist(), strict=True)
        return {place: tokens[:length] for place, tokens, length in found}


@dataclass
class _Lines:
    """Responses being written, a line of the decoding each, [B]: which row of the table, how many tokens it has, and
    whether it goes on. seen: what each has read and said, [B, tokens], where somebody asks."""

    rows: torch.Tensor
    ages: torch.Tensor
    open: torch.Tensor
    seen: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def begin(self, rows: torch.Tensor, seen: torch.Tensor | None) -> None:
        """Further lines, behind the others."""
        self.rows, self.ages = torch.cat([self.rows, rows]), torch.cat([self.ages, torch.zeros_like(rows)])
        self.open = torch.cat([self.open, torch.ones_like(rows, dtype=torch.bool)])
        if seen is not None:
            self.seen = seen if self.seen is None or not len(self.seen) else _stacked(self.seen, seen)

    def keep(self, order: torch.Tensor) -> None:
        """Only these lines (indices), in this order."""
        self.rows, self.ages, self.open = self.rows[order], self.ages[order], self.open[order]
        self.seen = None if self.seen is None else self.seen[order]


def _decode(policy, ids, mask, sampling, table: _Table, on_ended, mine: Sequence[int], max_rows: int, on_token) -> None:
    """Fill the table's rows of these prompts.

    At most max_rows responses are side by side; where half of those are done, others begin.
    """
    n, stops = sampling.n, torch.tensor(policy.stop_ids, device=policy.device)
    waiting = torch.tensor(mine, device=policy.device)
    waiting = waiting[mask[waiting].sum(1).argsort(stable=True)]  # of like length side by side: less padding
    at_once, done = max(1, max_rows // n), 0
    decoding: Decoding | None = None
    note = compiled(noted) if policy.device.type == "cpu" else noted
    lines = _Lines(rows=waiting[:0], ages=waiting[:0], open=waiting[:0].bool())
    with policy.arithmetic():
        while len(lines) or len(waiting):
            free = at_once - math.ceil(len(lines) / n)
            joins = decoding is not None and decoding.admits
            if len(waiting) and (not len(lines) or (joins and 2 * free >= at_once)):
                chunk, waiting = waiting[:free], waiting[free:]
                prompts = _cut(ids[chunk], mask[chunk])
                if decoding is not None and joins:
                    decoding.admit(*prompts)
                else:
                    decoding = policy.open_decoding(*prompts, n, sampling.max_length, longest=ids.shape[1])
                rows = (chunk[:, None] * n + torch.arange(n, device=policy.device)).flatten()
                lines.begin(rows, None if sampling.repetition_penalty == 1.0 else _read(policy, *prompts, n))
            assert decoding is not None, "without lines there are prompts waiting, and they began"
            uniform = table.uniforms[lines.rows, lines.ages]
            tokens, chosen = choose(decoding.logits.float(), uniform, lines.seen, stops, sampling, lines.ages)
            before = lines.open
            lines.ages, lines.open = note(
                tokens, chosen, lines.rows, lines.ages, before, stops, sampling.max_length,
                table.response_ids, table.log_probs, table.lengths, table.stopped,
            )  # fmt: skip
            ended, alive = torch.stack([before.sum() - lines.open.sum(), lines.open.sum()]).tolist()
            done += ended
            on_token(done)
            if ended and on_ended is not None:
                on_ended(table.said(lines.rows[before & ~lines.open]))
            if lines.seen is not None:
                lines.seen = torch.cat([lines.seen, tokens[:, None]], 1)
            if not alive and not decoding.admits:
                lines.keep(waiting[:0])
            elif alive < len(lines) and alive <= decoding.patience * len(lines):
                order = decoding.keep(lines.open)
                lines.keep(order)
                tokens = tokens[order]
            if alive:
                decoding.step(tokens)


def noted(
    tokens: torch.Tensor,
    log_probs: torch.Tensor,
    rows: torch.Tensor,
    ages: torch.Tensor,
    open_: torch.Tensor,
    stops: torch.Tensor,
    max_length: int,
    all_tokens: torch.Tensor,
    all_log_probs: torch.Tensor,
    all_lengths: torch.Tensor,
    all_stopped: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the lines' new tokens into the rows of a table, and how long those are that stop. For TorchScript.

    tokens, log_probs, rows, ages, open_: [b], as _Lines has them; all_...: those of _Table. Returns the lines' ages
    now, and which go on.
    """
    all_tokens[rows, ages] = tokens
    all_log_probs[rows, ages] = log_probs
    ages = ages + 1
    stopped = (tokens[:, None] == stops).any(1) & open_
    ended = rows[stopped]
    all_stopped[ended] = torch.ones_like(ended, dtype=torch.bool)
    all_lengths[ended] = ages[stopped]
    return ages, open_ & ~stopped & (ages < max_length)


def _cut(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Without columns that only longer prompts need."""
    length = int(mask.sum(1).max())
    return ids[:, -length:], mask[:, -length:]


def _read(policy, ids: torch.Tensor, mask: torch.Tensor, n: int) -> torch.Tensor:
    """What a decoder reads before its first token, [P * n, L]: the prompt, or nothing where an encoder reads that.

    Padding is not read: the prompt's last token stands there once more.
    """
    if policy.model.config.is_encoder_decoder:
        ids, mask = ids[:, :0], mask[:, :0]
    return torch.where(mask.bool(), ids, ids[:, -1:]).repeat_interleave(n, 0)


def _stacked(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """One above the other, the narrower one widened by what it has already: [b, t], [c, u] -> [b + c, max(t, u)]."""
    width = max(first.shape[1], second.shape[1])
    wide = [torch.cat([each[:, :1].expand(-1, width - each.shape[1]), each], 1) for each in (first, second)]
    return torch.cat(wide)


def _left_pad(prompts: list[list[int]], policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), length), policy.pad_id)
    mask = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt)
        mask[row, length - len(prompt) :] = 1
    return ids.to(policy.device), mask.to(policy.device)
