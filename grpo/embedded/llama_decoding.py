"""Decoding written out for models of Llama's build: the same weights and maths, without the modules' own overhead.

A prompt's keys and values are read once for all the responses of its group, those of the responses are written in
place, a line that ends costs nothing more, and on a CPU the weights of a step are laid out for few rows. Whether a
model is of this build is tried, not assumed (llama_like.py): any other keeps transformers' forward pass (decoding.py).
Legend: B lines, P prompts, L prompt tokens, T response tokens so far, H query heads, K key heads, G = H / K, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import silu

from grpo.embedded.few_rows import Product
from grpo.embedded.prompt_keys import PromptKeys, blocks_of

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy


class LlamaDecoding:
    """Decoding as decoding.py says; lines may be kept in any order, and keeping some of them is cheap."""

    patience = 1.0

    def __init__(self, policy: Policy, ids: Tensor, mask: Tensor, n: int, max_new: int) -> None:
        """Runs the prompts once per group. ids, mask: [P, L], left-padded; max_new: tokens of a response at most."""
        model, config = policy.model, policy.model.config
        self._prompts, logits = [], []
        for block in blocks_of(mask.sum(1).tolist()):
            width = int(mask[block].sum(1).max())
            after, cache = policy.read_prompts(ids[block, -width:], mask[block, -width:])
            first = block.start * n
            self._prompts.append(PromptKeys(cache, mask[block, -width:], first, n))
            logits.append(after)
        self.logits = torch.cat(logits).repeat_interleave(n, 0)
        self._widest = max(block.width for block in self._prompts)
        self._positions = mask.sum(1).repeat_interleave(n)
        self._heads = (config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads)
        self._step, self._max_new = 0, max_new
        self._layers = [_Layer(layer, policy, max_new) for layer in model.model.layers]
        self._norm, self._embed = model.model.norm, model.model.embed_tokens
        self._head = Product([model.lm_head], policy, max_new)
        everywhere = torch.arange(int(mask.sum(1).max()) + max_new, device=policy.device)[None]
        cos, sin = model.model.rotary_emb(model.model.embed_tokens.weight[:1], everywhere)
        half = cos.shape[-1] // 2
        self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], 1)
        self._room(min(max_new, 32))

    def step(self, tokens: Tensor) -> None:
        """As Decoding says."""
        if self._step == self._keys.shape[-2]:
            self._room(min(self._max_new, 2 * self._step))
        x = self._embed(tokens)
        cos, sin = self._cos[self._positions][:, None], self._sin[self._positions][:, None]  # [B, 1, D]
        for number, layer in enumerate(self._layers):
            queries, keys, values = layer.queries_keys_values(x, cos, sin, self._heads)
            self._keys[number, :, :, self._step] = keys
            self._values[number, :, :, self._step] = values
            x = layer.rest(x, self._attend(number, queries))
        self.logits = self._head(self._norm(x))
        self._step += 1
        self._positions = self._positions + 1

    def keep(self, lines: Tensor) -> None:
        """As Decoding says. A line that stays where it is is not copied."""
        count, now = len(lines), self._step
        moved = (lines != torch.arange(count, device=lines.device)).nonzero().squeeze(1)
        for room in (self._keys, self._values):
            if len(moved):
                room[:, moved, :, :now] = room[:, lines[moved], :, :now]
        self._keys, self._values = self._keys[:, :count], self._values[:, :count]
        self._positions = self._positions[lines]
        for block in self._prompts:
            block.keep(lines)
        self._prompts = [block for block in self._prompts if block.count]
        self._widest = max(block.width for block in self._prompts)

    def _attend(self, number: int, queries: Tensor) -> Tensor:
        """queries: [B, K, G, D], scaled. Returns [B, H * D]."""
        wide, now = self._widest, self._step + 1
        keys, values = self._keys[number, :, :, :now], self._values[number, :, :, :now]
        scores = queries.new_empty(*queries.shape[:3], wide + now, dtype=torch.float32)
        if any(block.width < wide for block in self._prompts):
            scores[..., :wide] = float("-inf")
        for block in self._prompts:
            block.score(number, queries, scores)
        scores[..., wide:] = queries @ keys.transpose(-1, -2)
        shares = scores.softmax(-1)
        out = shares[..., wide:] @ values
        for block in self._prompts:
            block.add(number, shares, out)
        return out.flatten(1)

    def _room(self, tokens: int) -> None:
        """Room for so many tokens of every line."""
        kept = self._keys if self._step else None
        first = self._prompts[0]
        shape = (len(self._layers), len(self._positions), self._heads[0], tokens, first.keys[0].shape[-1])
        keys, values = first.keys[0].new_empty(shape), first.keys[0].new_empty(shape)
        if kept is not None:
            keys[:, :, :, : self._step] = self._keys
            values[:, :, :, : self._step] = self._values
        self._keys, self._values = keys, values


class _Layer:
    """One decoder layer, for one token of each line."""

    def __init__(self, layer, policy: Policy, steps: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._after = layer.input_layernorm, layer.post_attention_layernorm
        self._query_norm, self._key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self._scale = attention.scaling
        self._qkv = Product([attention.q_proj, attention.k_proj, attention.v_proj], policy, steps)
        self._out = Product([attention.o_proj], policy, steps)
        self._gate_up = Product([mlp.gate_proj, mlp.up_proj], policy, steps)
        self._down = Product([mlp.down_proj], policy, steps)
        self._activation = silu if type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation") else mlp.act_fn

    def queries_keys_values(
        self, x: Tensor, cos: Tensor, sin: Tensor, heads: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """queries [B, K, G, D], scaled and turned; keys [B, K, D], turned; values [B, K, D]."""
        count, (keys, per_key) = len(x), heads
        all_ = self._qkv(_rms(self._before, x)).view(count, keys * (per_key + 2), -1)
        turned, values = all_[:, : keys * (per_key + 1)], all_[:, keys * (per_key + 1) :]
        if self._query_norm is not None and self._key_norm is not None:
            parts = (self._query_norm(turned[:, : keys * per_key]), self._key_norm(turned[:, keys * per_key :]))
            turned = torch.cat(parts, 1)
        half = turned.shape[-1] // 2
        turned = torch.addcmul(turned * cos, turned.roll(half, -1), sin)
        queries = (turned[:, : keys * per_key] * self._scale).view(count, keys, per_key, -1)
        return queries.to(values.dtype), turned[:, keys * per_key :], values

    def rest(self, x: Tensor, attended: Tensor) -> Tensor:
        """What the layer makes of x, once its attention is known."""
        x = x + self._out(attended)
        gate, up = self._gate_up(_rms(self._after, x)).chunk(2, 1)
        return x + self._down(self._activation(gate) * up)


def _rms(norm, x: Tensor) -> Tensor:
    return torch.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
