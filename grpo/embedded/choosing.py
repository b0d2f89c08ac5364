"""How the next token of each line is chosen from its logits: temperature, top-k, top-p, penalties, random numbers.

Legend: B lines, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpo.algorithm import log_probs_of
from grpo.embedded.compiling import compiled


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


def choose(logits, uniform, seen, stops, sampling: Sampling, ages) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each line and its log-prob. logits: [B, V]; uniform: [B], in [0, 1); ages: [B], tokens so far.

    seen: [B, any], token ids that the repetition penalty is about, or None.
    """
    greedy, early = sampling.temperature == 0, ages < sampling.min_length
    held = sampling.min_length > 0 and bool(early.any())  # asked only then: on a GPU the answer is waited for
    everything = sampling.top_p >= 1.0 and not 0 < sampling.top_k < logits.shape[1]
    if everything and seen is None and not held and not greedy:
        draw = compiled(draw_from_all) if logits.device.type == "cpu" else draw_from_all
        return draw(logits, uniform, sampling.temperature)
    plain = logits
    if seen is not None:
        said = logits.gather(1, seen)
        said = torch.where(said > 0, said / sampling.repetition_penalty, said * sampling.repetition_penalty)
        logits = logits.scatter(1, seen, said)
    if held:
        logits = torch.where(early[:, None], logits.index_fill(1, stops, float("-inf")), logits)
    if greedy:
        tokens = logits.argmax(1)
    else:
        tokens = _draw(_filter(logits / sampling.temperature, sampling.top_p, sampling.top_k), uniform)
    temperature = 1.0 if greedy else sampling.temperature
    return tokens, log_probs_of(plain[:, None], tokens[:, None], temperature=temperature)[:, 0]


def draw_from_all(logits: torch.Tensor, uniform: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`choose` where nothing is ruled out: one softmax serves the token and its log-prob."""
    if temperature != 1.0:
        logits = logits / temperature
    shares = logits.softmax(1)
    tokens = invert(shares, uniform)
    return tokens, shares.gather(1, tokens[:, None]).squeeze(1).log()


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
    """A token of each line by its own random number and nothing else. logits: [B, V]; uniform: [B]."""
    return invert(logits.softmax(1), uniform)


def invert(shares: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Invert the distribution function at `uniform`."""
    mass = shares.cumsum(1)  # [B, V], ends near 1
    total = mass[:, -1]
    # Below the end, however it is rounded, so that a token without mass is never drawn.
    wanted = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(mass, wanted[:, None], right=True).squeeze(1)
