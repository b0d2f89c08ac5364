"""Log-probabilities of the sampled tokens and entropy of their distributions, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Rows of logits are worked on in pieces of at most this many numbers: 16 MiB of float32.
_CHUNK = 2**22


def _scaled(rows: Tensor, temperature: float) -> Tensor:
    """Logits divided by the temperature, in float32 or better."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return rows if temperature == 1.0 else rows / temperature


def _in_chunks(*of_rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cuts tensors [N, ...] alike, into as many rows at a time as the first, [N, V], may have in one chunk."""
    size = max(1, _CHUNK // of_rows[0].shape[-1])
    return zip(*(tensor.split(size) for tensor in of_rows), strict=True)


class _ChosenLogProb(torch.autograd.Function):
    """log_probs_of for logits [N, V]. For the way back it keeps the logits as they came and one number per row.

    Left to autograd, bfloat16 logits would be kept a second time, in float32.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        log_sum = torch.cat([_scaled(rows, temperature).logsumexp(-1) for (rows,) in _in_chunks(logits)])
        chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(logits, tokens, log_sum)
        ctx.temperature = temperature
        return _scaled(chosen, temperature) - log_sum

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, tokens, log_sum = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        per_row = (column.unsqueeze(-1) for column in (tokens, log_sum, grads[0] / ctx.temperature))
        for out, rows, chosen, norm, grad in _in_chunks(grad_logits, logits, *per_row):
            p = (_scaled(rows, ctx.temperature) - norm).exp_()
            out.copy_(p.mul_(-grad).scatter_add_(-1, chosen, grad))  # d log p(chosen) / d logit = [is chosen] - p
        return grad_logits, None, None


class _Entropy(torch.autograd.Function):
    """entropy_of for logits [N, V]; keeps no more than `_ChosenLogProb` does."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float) -> Tensor:
        # entr(p) = -p log p, and 0 at p = 0: a token that is ruled out (logit -inf) does not make the sum NaN
        distributions = (_scaled(rows, temperature).softmax(-1) for (rows,) in _in_chunks(logits))
        entropy = torch.cat([torch.special.entr(p).sum(-1) for p in distributions])
        ctx.save_for_backward(logits, entropy)
        ctx.temperature = temperature
        return entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, entropy = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        per_row = (column.unsqueeze(-1) for column in (entropy, grads[0] / ctx.temperature))
        for out, rows, h, grad in _in_chunks(grad_logits, logits, *per_row):
            p = _scaled(rows, ctx.temperature).softmax(-1)
            out.copy_((torch.special.entr(p) - p * h) * grad)  # d H / d logit = -p (log p + H)
        return grad_logits, None


def log_probs_of(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability of the chosen tokens. logits [..., V], tokens [...] int; returns [...], float32 or better.

    The chosen logit minus logsumexp, a bounded number of rows at a time, so that no second [..., V] is ever held; the
    gradient of the logits is the only other one. Logits that are a strided view are copied first: cut the hidden states
    to the response before the output head, not the logits after it. Same numbers as verl's `logprobs_from_logits` on
    logits / temperature.
    """
    flat = _ChosenLogProb.apply(logits.reshape(-1, logits.shape[-1]), tokens.reshape(-1), float(temperature))
    return flat.reshape(tokens.shape)


def entropy_of(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Entropy of the next-token distribution, in nats. logits [..., V]; returns [...], float32 or better.

    Chunked like `log_probs_of`. Same numbers as verl's `entropy_from_logits` on logits / temperature.
    """
    return _Entropy.apply(logits.reshape(-1, logits.shape[-1]), float(temperature)).reshape(logits.shape[:-1])
