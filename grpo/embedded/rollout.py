"""Sampling: n responses to each prompt, with a KV cache.

A prompt is run once for its whole group, a finished response leaves the batch, and every random number is drawn
before the first token from (seed, step): what a response becomes depends neither on how prompts were cut into
chunks nor on who finished when, and a resumed run samples exactly what an undisturbed one would have.
Legend: P prompts, n responses each, B = P * n, L prompt tokens, R response tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpo.algorithm import log_probs_of
from grpo.embedded.policy import Policy


@dataclass(frozen=True)
class Sampling:
    """How to choose a token. temperature 0 = greedy; top_k -1 = all; min_length, max_length in tokens."""

    n: int
    max_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    min_length: int = 0


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
) -> Rollouts:
    """Responses to `prompts` (token ids). seed: of this step; max_rows: responses side by side.

    on_token(finished) is called after every decoding step with the number of responses done so far; what it raises
    ends the sampling.
    """
    n, width = sampling.n, sampling.max_length
    total = len(prompts) * n
    ids, mask = _left_pad(prompts, policy)
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(total, width, generator=generator).to(policy.device)  # [B, R]
    response_ids = torch.full((total, width), policy.pad_id, device=policy.device)
    lengths = torch.full((total,), width, device=policy.device)
    log_probs = torch.zeros(total, width, device=policy.device)
    stopped = torch.zeros(total, dtype=torch.bool, device=policy.device)

    step = max(1, max_rows // n)
    for first in range(0, len(prompts), step):
        chunk = slice(first, first + step)
        rows = slice(first * n, (first + step) * n)
        length = int(mask[chunk].sum(1).max())
        _decode(
            policy, ids[chunk, -length:], mask[chunk, -length:], sampling, uniforms[rows],
            response_ids[rows], log_probs[rows], lengths[rows], stopped[rows],
            lambda done, before=first * n: on_token(before + done),
        )  # fmt: skip

    width = max(1, int(lengths.max()))
    response_mask = torch.arange(width, device=policy.device) < lengths[:, None]  # [B, R]
    return Rollouts(
        prompt_ids=ids,
        prompt_mask=mask,
        response_ids=response_ids[:, :width].clone(),
        response_mask=response_mask.long(),
        log_probs=log_probs[:, :width].clone(),
        uid=torch.arange(len(prompts), device=policy.device).repeat_interleave(n),
        truncated=~stopped,
    )


def _decode(policy, ids, mask, sampling, uniforms, response_ids, log_probs, lengths, stopped, on_token) -> None:
    """Fill response_ids, log_probs, lengths and stopped (rows of one chunk) in place."""
    n, device = sampling.n, policy.device
    stops = torch.tensor(policy.stop_ids, device=device)
    with policy.arithmetic():
        logits, cache = policy.read_prompts(ids, mask)
        cache.batch_repeat_interleave(n)
        logits, mask = logits.repeat_interleave(n, 0), mask.repeat_interleave(n, 0)
        lines = torch.arange(len(mask), device=device)  # cache line -> response
        seen = ids.repeat_interleave(n, 0) if sampling.repetition_penalty != 1.0 else None
        for t in range(sampling.max_length):
            tokens, chosen = _choose(logits.float(), uniforms[lines, t], seen, stops, sampling, t)
            open_ = ~stopped[lines]
            response_ids[lines[open_], t] = tokens[open_]
            log_probs[lines[open_], t] = chosen[open_]
            ended = open_ & torch.isin(tokens, stops)
            stopped[lines[ended]] = True
            lengths[lines[ended]] = t + 1
            on_token(int(stopped.sum()))
            going = ~stopped[lines]
            alive = int(going.sum())
            if not alive or t + 1 == sampling.max_length:
                return
            if alive <= 0.8 * len(lines):  # let finished lines go once that repays copying the cache
                keep = going.nonzero().squeeze(1)
                cache.batch_select_indices(keep)
                lines, mask, tokens = lines[keep], mask[keep], tokens[keep]
                seen = None if seen is None else seen[keep]
            seen = None if seen is None else torch.cat([seen, tokens[:, None]], 1)
            positions = mask.sum(1, keepdim=True)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            logits = policy.model(
                tokens[:, None], attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            ).logits[:, -1]


def _choose(logits, uniform, seen, stops, sampling: Sampling, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each line and its log-prob. logits: [B, V]; uniform: [B], in [0, 1)."""
    greedy = sampling.temperature == 0
    plain = logits
    if seen is not None:
        said = logits.gather(1, seen)
        said = torch.where(said > 0, said / sampling.repetition_penalty, said * sampling.repetition_penalty)
        logits = logits.scatter(1, seen, said)
    if t < sampling.min_length:
        logits = logits.index_fill(1, stops, float("-inf"))
    if greedy:
        tokens = logits.argmax(1)
    else:
        tokens = _draw(_filter(logits / sampling.temperature, sampling.top_p, sampling.top_k), uniform)
    temperature = 1.0 if greedy else sampling.temperature
    return tokens, log_probs_of(plain[:, None], tokens[:, None], temperature=temperature)[:, 0]


def _filter(logits: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Rule out tokens beyond the top_k most likely, then beyond the smallest set that holds top_p."""
    if 0 < top_k < logits.shape[1]:
        smallest = logits.topk(top_k, 1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    if top_p < 1.0:
        ordered, order = logits.sort(1, descending=True)
        before = ordered.softmax(1).cumsum(1) - ordered.softmax(1)  # probability of all that is likelier
        logits = logits.scatter(1, order, ordered.masked_fill(before >= top_p, float("-inf")))
    return logits


def _draw(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Invert the distribution function at `uniform`: the token depends on its own random number and nothing else."""
    mass = logits.softmax(1).cumsum(1)  # [B, V], ends near 1
    index = torch.searchsorted(mass, (uniform * mass[:, -1])[:, None], right=True).squeeze(1)
    last_possible = (mass < mass[:, -1:]).sum(1)  # where rounding pushed the number to the very end
    return torch.minimum(index, last_possible)


def _left_pad(prompts: list[list[int]], policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), length), policy.pad_id)
    mask = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt)
        mask[row, length - len(prompt) :] = 1
    return ids.to(policy.device), mask.to(policy.device)
