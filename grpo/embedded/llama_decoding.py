"""Decoding written out for models of Llama's build: the same weights and maths, without the modules' own overhead.

A prompt's keys and values are read once for all the responses of its group, those of the responses are written in
place (cohort.py), a line that ends costs nothing more and makes room for another, and on a CPU the weights of a step
are laid out for few rows. Whether a model is of this build is tried, not assumed (llama_like.py): any other keeps
transformers' forward pass (decoding.py).
Legend: B lines, P prompts, L prompt tokens, H query heads, K key heads, G = H / K, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import silu

from grpo.embedded.cohort import Cohort
from grpo.embedded.compiling import compiled
from grpo.embedded.few_rows import Product
from grpo.embedded.llama_step import Layer, rms, step, turned

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy


class LlamaDecoding:
    """Decoding as decoding.py says; letting lines go is cheap, and others join."""

    patience = 1.0
    admits = True

    def __init__(
        self, policy: Policy, ids: Tensor, mask: Tensor, n: int, max_new: int, *, longest: int | None = None
    ) -> None:
        """Runs the prompts once per group. ids, mask: [P, L], left-padded; max_new: tokens of a response at most.

        longest: prompt that may be admitted, in tokens; None = L.
        """
        model, config = policy.model, policy.model.config
        self._policy, self._n, self._max_new = policy, n, max_new
        self._heads = (config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads)
        self._layers = [_Layer(layer, policy, max_new) for layer in model.model.layers]
        self._norm, self._embed = model.model.norm, model.model.embed_tokens
        self._head = Product([model.lm_head], policy, max_new)
        everywhere = torch.arange((longest or ids.shape[1]) + max_new, device=policy.device)[None]
        cos, sin = model.model.rotary_emb(model.model.embed_tokens.weight[:1], everywhere)
        half = cos.shape[-1] // 2
        self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], 1)
        weights = [layer.weights for layer in self._layers]
        written = policy.dtype == torch.float32 and self._head.laid_out is not None and None not in weights
        self._weights = [one for one in weights if one is not None] if written else None
        self._step = compiled(step) if written else None  # all layers at once
        self._cohorts: list[Cohort] = []
        self._positions = mask.new_empty(0)
        self.admit(ids, mask)

    def admit(self, ids: Tensor, mask: Tensor) -> None:
        """As Decoding says."""
        for older in self._cohorts:
            older.trim()
        cohort = Cohort(self._policy, ids, mask, self._n, self._max_new)
        self.logits = torch.cat([self.logits, cohort.logits]) if self._cohorts else cohort.logits
        self._cohorts.append(cohort)
        self._positions = torch.cat([self._positions, mask.sum(1).repeat_interleave(self._n)])

    def step(self, tokens: Tensor) -> None:
        """As Decoding says."""
        x = self._embed(tokens)
        turns = self._cos[self._positions][:, None], self._sin[self._positions][:, None]  # [B, 1, D]
        if self._step is not None and len(self._cohorts) == 1:
            self.logits = self._at_once(x, *turns, self._cohorts[0])
        else:
            sizes = [cohort.count for cohort in self._cohorts]
            for number, layer in enumerate(self._layers):
                parts = [each.split(sizes) for each in layer.queries_keys_values(x, *turns, self._heads)]
                attended = [cohort.attend(number, *part) for cohort, *part in zip(self._cohorts, *parts, strict=True)]
                x = layer.rest(x, attended[0] if len(attended) == 1 else torch.cat(attended))
            self.logits = self._head(self._norm(x))
        self._positions = self._positions + 1
        for cohort in self._cohorts:
            cohort.advance()

    def _at_once(self, x: Tensor, cos: Tensor, sin: Tensor, one: Cohort) -> Tensor:
        """The same for a single cohort, compiled."""
        norm = self._norm.weight, self._norm.variance_epsilon
        assert self._step is not None
        assert self._weights is not None
        assert self._head.laid_out is not None
        return self._step(
            x, cos, sin, self._weights, self._heads, self._layers[0].scale, norm[1],
            one.keys, one.values, one.at, one.prompt_keys, one.prompt_values, one.whose, norm[0], *self._head.laid_out,
        )  # fmt: skip

    def keep(self, open_: Tensor) -> Tensor:
        """As Decoding says."""
        lines, first = [], 0
        for cohort, mine in zip(self._cohorts, open_.split([cohort.count for cohort in self._cohorts]), strict=True):
            lines.append(cohort.keep(mine) + first)
            first += len(mine)
        self._cohorts = [cohort for cohort in self._cohorts if cohort.count]
        order = torch.cat(lines)
        self._positions = self._positions[order]
        return order


class _Layer:
    """One decoder layer, for one token of each line."""

    def __init__(self, layer, policy: Policy, steps: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._after = layer.input_layernorm, layer.post_attention_layernorm
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self._query_norm, self._key_norm = (None if norm is None else norm.weight for norm in norms)
        self.scale, self._eps = attention.scaling, self._before.variance_epsilon
        self._qkv = Product([attention.q_proj, attention.k_proj, attention.v_proj], policy, steps)
        self._out = Product([attention.o_proj], policy, steps)
        self._gate_up = Product([mlp.gate_proj, mlp.up_proj], policy, steps)
        self._down = Product([mlp.down_proj], policy, steps)
        self._activation = silu if type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation") else mlp.act_fn

    def queries_keys_values(
        self, x: Tensor, cos: Tensor, sin: Tensor, heads: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As llama_step.turned says."""
        projected = self._qkv(rms(x, self._before.weight, self._eps))
        return turned(projected, cos, sin, heads, self.scale, self._query_norm, self._key_norm, self._eps)

    @property
    def weights(self) -> Layer | None:
        """For the compiled step; None where that is not for such a layer."""
        laid_out = [part.laid_out for part in (self._qkv, self._out, self._gate_up, self._down)]
        if None in laid_out or self._activation is not silu:
            return None
        (qkv, of_qkv), (out, of_out), (gate_up, of_gate_up), (down, of_down) = laid_out  # type: ignore[misc]
        return Layer(
            self._before.weight, qkv, of_qkv, self._query_norm, self._key_norm, out, of_out,
            self._after.weight, gate_up, of_gate_up, down, of_down,
        )  # fmt: skip

    def rest(self, x: Tensor, attended: Tensor) -> Tensor:
        """What the layer makes of x, once its attention is known."""
        x = x + self._out(attended)
        gate, up = self._gate_up(rms(x, self._after.weight, self._eps)).chunk(2, 1)
        return x + self._down(self._activation(gate) * up)
