"""Log-probs and entropies from hidden states, without holding the logits [tokens, vocabulary] and their gradient.

A row of hidden states may have several tokens that follow it (a prompt's last row has the first token of each of its
responses), so that the output layer runs once a row. Left out: the model that makes the hidden states.
Legend: N rows, D wide, M tokens of known rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from grpo.algorithm import entropy_of, log_probs_of

_CHUNK = 2**26  # logits of one chunk: 256 MiB of float32. Smaller ones pay more for adding up the layer's gradient.
_KEPT = 2**28  # with a gradient, the probabilities are kept up to 1 GiB and computed a second time beyond


@dataclass(frozen=True)
class Head:
    """The output layer, and what the model does to its logits: divided by `divisor`, then held within +-softcap."""

    layer: torch.nn.Module
    divisor: float = 1.0
    softcap: float | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """The model's logits: hidden [N, D] -> [N, V]."""
        logits = self.layer(hidden)
        logits = logits if self.divisor == 1.0 else logits / self.divisor
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def head_of(model: torch.nn.Module) -> Head | None:
    """The model's output layer with its corrections as its config names them; None where it has none."""
    layer, config = model.get_output_embeddings(), model.config.get_text_config()  # type: ignore[operator, union-attr]
    if layer is None:
        return None
    divisor = float(getattr(config, "logits_scaling", None) or 1.0) / float(getattr(config, "logit_scale", None) or 1.0)
    return Head(layer, divisor, getattr(config, "final_logit_softcapping", None))


def chosen_log_probs(
    hidden: Tensor,
    head: Head,
    tokens: Tensor,
    rows: Tensor,
    *,
    temperature: float,
    entropy: str | None = None,
    chunk: int = _CHUNK,
    kept: int = _KEPT,
) -> tuple[Tensor, Tensor | None]:
    """log_prob of each token [M] and entropy of each row [N], float32, as `log_probs_of` and `entropy_of` give them.

    hidden: [N, D]; tokens: [M], ids; rows: [M], which row comes before each, ascending; entropy: None, "metric"
    (without gradient) or "loss"; chunk, kept: the most numbers of a piece of logits, and of probabilities that are kept
    for the way back instead of being computed again.
    """
    layer = head.layer
    if type(layer) is not torch.nn.Linear:  # one under LoRA, or quantized
        return _by_pieces(hidden, head, tokens, rows, temperature, entropy, chunk)
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else layer.weight.dtype
    how = _How(temperature * head.divisor, head.softcap, temperature, entropy, chunk, kept, torch.is_grad_enabled())
    with torch.autocast(device, enabled=False):
        bias = None if layer.bias is None else layer.bias.to(dtype)
        log_probs, entropies = _Chosen.apply(hidden.to(dtype), layer.weight, bias, tokens, rows, dtype, how)
    return log_probs, None if entropy is None else entropies


@dataclass(frozen=True)
class _How:
    divisor: float
    softcap: float | None  # of logits before the temperature
    temperature: float
    entropy: str | None
    chunk: int
    kept: int
    grad: bool

    def scaled(self, logits: Tensor) -> Tensor:
        """What the layer gave as float32 logits of the distribution; may be the same memory."""
        logits = logits.float()
        if self.softcap is None:
            return logits if self.divisor == 1.0 else logits.div_(self.divisor)
        inner = self.divisor / self.temperature * self.softcap
        return logits.div_(inner).tanh_().mul_(self.softcap / self.temperature)

    def unscaled(self, grad: Tensor, scaled: Tensor | None) -> Tensor:
        """The gradient of scaled() in place: from that of the distribution's logits to that of the layer's."""
        if self.softcap is None:
            return grad if self.divisor == 1.0 else grad.div_(self.divisor)
        assert scaled is not None
        slope = (scaled * (self.temperature / self.softcap)).square_().neg_().add_(1.0)
        return grad.mul_(slope).div_(self.divisor)


class _Chosen(torch.autograd.Function):
    """chosen_log_probs for a plain linear layer. The way back is one of three, each exact:

    frozen  the layer is not trained: what the gradient of `hidden` needs, the mean output vector of every row, is
            computed on the way there, and nothing of the size of the vocabulary is kept
    kept    the probabilities are kept, once, and become the gradient of the logits in place
    again   the logits are computed a second time, a chunk at a time
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens, rows, dtype, how: _How) -> Any:
        own = weight.to(dtype)
        needed = how.grad and any(ctx.needs_input_grad[:3])
        trained = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        easy = how.softcap is None and how.entropy != "loss"
        frozen = needed and not trained and easy
        keep = needed and not frozen and how.softcap is None and len(hidden) * len(weight) <= how.kept
        log_probs, entropies = hidden.new_empty(len(tokens), dtype=torch.float32), hidden.new_empty(0).float()
        means, kept, parts = [], [], []
        for some, mine in _pieces(len(hidden), len(weight), rows, how.chunk):
            z = how.scaled(linear(hidden[some], own, bias))
            top = z.amax(-1, keepdim=True)
            chosen = z[rows[mine] - some.start, tokens[mine]]
            p = (z - top).exp_() if how.entropy else z.sub_(top).exp_()
            total = p.sum(-1, keepdim=True)
            log_sum = (total.log() + top).squeeze(-1)
            log_probs[mine] = chosen - log_sum[rows[mine] - some.start]
            if needed or how.entropy:
                p.div_(total)
            if how.entropy:
                parts.append(log_sum - torch.linalg.vecdot(p, z))
            if frozen:
                means.append(p.to(dtype) @ own)
            if keep:
                kept.append(p)
        if how.entropy:
            entropies = torch.cat(parts)
        ctx.how, ctx.dtype, ctx.kept, ctx.bias = how, dtype, kept if keep else None, bias
        ctx.save_for_backward(hidden, weight, tokens, rows, entropies, torch.cat(means) if means else None)
        if how.entropy != "loss":
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, tokens, rows, entropies, means = ctx.saved_tensors
        how, dtype, grad = ctx.how, ctx.dtype, grads[0]
        per_row = grad.new_zeros(len(hidden)).index_add_(0, rows, grad)  # [N]
        if means is not None:
            out = means.float().mul_(-per_row[:, None]).index_add_(0, rows, weight[tokens].float() * grad[:, None])
            return (out.div_(how.divisor).to(dtype), *(None,) * 6)
        own = weight.to(dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = grad_bias = None
        kept, ctx.kept = ctx.kept, None
        for number, (some, mine) in enumerate(_pieces(len(hidden), len(weight), rows, how.chunk)):
            z, p = None, kept[number] if kept else None
            if p is None:
                z = how.scaled(linear(hidden[some], own, ctx.bias))
                p = z.softmax(-1)
            of_entropy = _entropy_gradient(p, entropies[some], grads[1][some]) if how.entropy == "loss" else None
            d = p.mul_(-per_row[some, None])
            d.index_put_((rows[mine] - some.start, tokens[mine]), grad[mine], accumulate=True)
            d = how.unscaled(d if of_entropy is None else d.add_(of_entropy), z).to(dtype)
            grad_hidden[some] = d @ own
            if ctx.needs_input_grad[1]:
                grad_weight = _plus(grad_weight, d, hidden[some])
            if ctx.needs_input_grad[2]:
                grad_bias = d.sum(0) if grad_bias is None else grad_bias + d.sum(0)
            if kept:
                kept[number] = None
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _plus(total: Tensor | None, d: Tensor, hidden: Tensor) -> Tensor:
    """total + d' hidden, [V, D], in float32: bfloat16 products of single chunks are rounded before they are added."""
    if total is None:
        return (d.T @ hidden).float()
    if d.dtype == torch.float32:
        return total.addmm_(d.T, hidden)
    return total.add_(d.T @ hidden)


def _entropy_gradient(p: Tensor, entropies: Tensor, grad: Tensor) -> Tensor:
    """d H / d logit = -p (log p + H), times what comes from above."""
    return (torch.special.entr(p) - p * entropies[:, None]).mul_(grad[:, None])


def _pieces(total: int, vocabulary: int, rows: Tensor, chunk: int) -> Iterator[tuple[slice, slice]]:
    """(rows, the tokens that follow them) of every chunk. rows: [M], ascending."""
    size = max(1, chunk // vocabulary)
    starts = range(0, total, size)
    ends = torch.searchsorted(rows, torch.tensor([*starts, total], device=rows.device)).tolist()
    for number, start in enumerate(starts):
        yield slice(start, min(start + size, total)), slice(ends[number], ends[number + 1])


def _by_pieces(hidden, head: Head, tokens, rows, temperature: float, entropy: str | None, chunk: int) -> Any:
    """The same for any layer: every piece is run again on the way back."""

    def piece(hidden: Tensor, tokens: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden)
        chosen = log_probs_of(logits[rows], tokens, temperature=temperature)
        if entropy is None:
            return chosen, chosen.new_empty(0)
        return chosen, entropy_of(logits if entropy == "loss" else logits.detach(), temperature=temperature)

    vocabulary = head.layer.out_features
    parts = []
    for some, mine in _pieces(len(hidden), int(vocabulary), rows, chunk):  # type: ignore[arg-type]
        words = hidden[some], tokens[mine], rows[mine] - some.start
        parts.append(checkpoint(piece, *words, use_reentrant=False) if torch.is_grad_enabled() else piece(*words))
    log_probs, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
    return log_probs, None if entropy is None else entropies
