"""A packed row through a model of Llama's build: transformers' maths in fewer passes over memory.

On a CPU in float32 a quarter of the update of a small model is what stands between its products: norms, turned queries
and keys, gates, sums. Here each is one function with its gradient written out, in place where nobody needs what was
there. Leaves out which models these are (llama_like.py) and the attention (shared_attention.py).
Legend: T tokens of the row, N of them before a response token, D wide, H heads of W.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from grpo.embedded.shared_attention import shared_prompt_attention

if TYPE_CHECKING:
    from grpo.embedded.packing import Layout


def read_row(model: Any, layout: Layout) -> Tensor:
    """What packing.read_row gives, [N, D]: of the last layer only what comes behind these rows' attention."""
    body, last = model.model, len(model.model.layers) - 1
    x = body.embed_tokens(layout.ids[0])
    cos, sin = body.rotary_emb(x, layout.positions)  # [1, T, W], the two halves of W alike
    half = cos.shape[-1] // 2
    cos, sin = cos[0, :, None, :half], sin[0, :, None, :half]  # [T, 1, W / 2]
    for number, layer in enumerate(body.layers):
        attention, mlp = layer.self_attn, layer.mlp
        read = _normed(layer.input_layernorm, x)
        queries, keys, values = (
            project(read).unflatten(-1, (-1, attention.head_dim))
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )  # [T, H, W]
        if hasattr(attention, "q_norm"):
            queries, keys = _normed(attention.q_norm, queries), _normed(attention.k_norm, keys)
        queries, keys = _Turned.apply(queries, cos, sin), _Turned.apply(keys, cos, sin)
        parts = (part.transpose(0, 1)[None] for part in (queries, keys, values))  # [1, H, T, W]
        attended = shared_prompt_attention(*parts, layout.groups, attention.scaling)[0].transpose(0, 1).flatten(1)
        if number == last:
            x, attended = x.index_select(0, layout.rows), attended.index_select(0, layout.rows)
        x = _added(x, attention.o_proj, attended)
        read = _normed(layer.post_attention_layernorm, x)
        x = _added(x, mlp.down_proj, _Gated.apply(mlp.gate_proj(read), mlp.up_proj(read)))
    return _normed(body.norm, x)


def _added(x: Tensor, layer: nn.Module, inner: Tensor) -> Tensor:
    """x + layer(inner)."""
    if type(layer) is not nn.Linear or layer.bias is not None:  # with an adapter, say
        return x + layer(inner)
    return torch.addmm(x, inner, layer.weight.t())


def _normed(norm: Any, x: Tensor) -> Tensor:
    return _Normed.apply(x, norm.weight, norm.variance_epsilon)


class _Normed(torch.autograd.Function):
    """Root mean square norm over the last dimension (arXiv 1910.07467)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        size = x.shape[-1]
        scale = torch.linalg.vecdot(x, x).div_(size).add_(epsilon).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        both = grads[0] * x
        flat = both.view(-1, x.shape[-1])
        of_weight = (scale.view(1, -1) @ flat).view(-1) if ctx.needs_input_grad[1] else None
        across = (flat @ weight).view_as(scale).mul_(scale.pow(3)).div_(-x.shape[-1])
        out = torch.mul(grads[0], weight, out=both).mul_(scale).addcmul_(x, across)
        return out, of_weight, None


class _Turned(torch.autograd.Function):
    """Rotary positions (arXiv 2104.09864), in place. x: [T, H, W]; cos, sin: [T, 1, W / 2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(x)
        first, second = x.chunk(2, -1)
        crossed = first * sin
        first.mul_(cos).addcmul_(second, sin, value=-1)
        second.mul_(cos).add_(crossed)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        first, second = grads[0].chunk(2, -1)
        out = grads[0].new_empty(grads[0].shape)
        torch.mul(first, cos, out=out[..., : cos.shape[-1]]).addcmul_(second, sin)
        torch.mul(second, cos, out=out[..., cos.shape[-1] :]).addcmul_(first, sin, value=-1)
        return out, None, None


class _Gated(torch.autograd.Function):
    """silu(gate) * up (arXiv 2002.05202); what silu gave is computed again on the way back instead of being kept."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate = grads[0] * up
        torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
        return of_gate, silu(gate).mul_(grads[0])
