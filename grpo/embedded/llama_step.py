"""One decoding step of Llama's build, written in what TorchScript compiles of Python.

Compiled (compiling.py), `step` is one call. Where it cannot be had (adapters, other gates, weights that are not laid
out for few rows), llama_decoding.py puts a step together from the same functions.
Legend: B lines, P prompts, n responses each, K key heads, G queries of each, D width, L prompt tokens, T own tokens.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn.functional import silu

# `Optional[Tensor]` and not `Tensor | None`, no `from __future__`, no *unpacking: TorchScript reads these files.
# ruff: noqa: UP045


class Layer(NamedTuple):
    """Weights of a layer: norms [in], and products as few_rows.py lays them out, with their biases."""

    before: Tensor
    qkv: Tensor
    qkv_bias: Optional[Tensor]
    query_norm: Optional[Tensor]
    key_norm: Optional[Tensor]
    out: Tensor
    out_bias: Optional[Tensor]
    after: Tensor
    gate_up: Tensor
    gate_up_bias: Optional[Tensor]
    down: Tensor
    down_bias: Optional[Tensor]


class Whose(NamedTuple):
    """Which lines answer p prompts of about the same length, `each` of them at most to each.

    lines: their indices, None = `count` of them from `first` on. places: of the lines among p * each, None = one after
    the other. padding: where a prompt has none of its L tokens, [p, L], None = nowhere.
    """

    prompts: int
    each: int
    width: int
    first: int
    count: int
    lines: Optional[Tensor]
    places: Optional[Tensor]
    padding: Optional[Tensor]


def spread(of_lines: Tensor, whose: Whose) -> Tensor:
    """[B, K, G, X] as [p, K, each * G, X]: the lines of a prompt are more rows of one product."""
    lines, places = whose.lines, whose.places
    if lines is None:
        mine = of_lines[whose.first : whose.first + whose.count]
    else:
        mine = of_lines.index_select(0, lines)
    _, heads, per_key, last = mine.shape
    if places is not None:
        room = torch.zeros([whose.prompts * whose.each, heads, per_key, last], dtype=mine.dtype, device=mine.device)
        mine = room.index_copy_(0, places, mine)
    return mine.view(whose.prompts, whose.each, heads, per_key, last).transpose(1, 2).flatten(2, 3)


def gathered(found: Tensor, per_key: int, whose: Whose) -> Tensor:
    """Back from [p, K, each * G, X] to the lines of these prompts, [b, K, G, X]."""
    prompts, heads, _, last = found.shape
    mine = found.view(prompts, heads, whose.each, per_key, last).transpose(1, 2).flatten(0, 1)
    places = whose.places
    if places is not None:
        mine = mine.index_select(0, places)
    return mine


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    at: int,
    prompt_keys: list[Tensor],
    prompt_values: list[Tensor],
    whose: list[Whose],
) -> Tensor:
    """What each line's newest token attends to: its prompt and its own tokens, this one included.

    queries: [B, K, G, D], scaled; keys, values: [B, K, D]; own_keys, own_values: [B, K, room, D], of which `at` tokens
    are there and this one is written; prompt_keys, prompt_values: [p, K, L, D] of each of `whose`. Returns
    [B, K * G * D].
    """
    own_keys[:, :, at] = keys
    own_values[:, :, at] = values
    own_keys, own_values = own_keys[:, :, : at + 1], own_values[:, :, : at + 1]
    count, heads, per_key, _ = queries.shape
    wide = max([one.width for one in whose])
    scores = torch.empty([count, heads, per_key, wide + at + 1], dtype=torch.float32, device=queries.device)
    if min([one.width for one in whose]) < wide:
        scores[:, :, :, :wide].fill_(float("-inf"))
    for one, of_prompts in zip(whose, prompt_keys):  # noqa: B905 - TorchScript knows no strict
        found = spread(queries, one) @ of_prompts.transpose(-1, -2)  # [p, K, each * G, L]
        padding, lines = one.padding, one.lines
        if padding is not None:
            found = found.masked_fill(padding[:, None, None], float("-inf"))
        found, mine = gathered(found, per_key, one).to(scores.dtype), scores[:, :, :, : one.width]
        if lines is None:
            mine[one.first : one.first + one.count].copy_(found)
        else:
            mine.index_copy_(0, lines, found)
    scores[:, :, :, wide:] = queries @ own_keys.transpose(-1, -2)
    shares = scores.softmax(-1)
    out = shares[:, :, :, wide:] @ own_values
    for one, of_prompts in zip(whose, prompt_values):  # noqa: B905
        found = gathered(spread(shares[:, :, :, : one.width], one) @ of_prompts, per_key, one)
        lines = one.lines
        if lines is None:
            out[one.first : one.first + one.count].add_(found)
        else:
            out.index_add_(0, lines, found)
    return out.flatten(1)


def turned(
    projected: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: tuple[int, int],
    scale: float,
    query_norm: Optional[Tensor],
    key_norm: Optional[Tensor],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """queries [B, K, G, D], scaled and turned; keys [B, K, D], turned; values [B, K, D].

    projected: all of them side by side, [B, ...]; heads: K, G; cos, sin: [B, 1, D].
    """
    count, keys, per_key = projected.shape[0], heads[0], heads[1]
    all_ = projected.view(count, keys * (per_key + 2), -1)
    both, values = all_[:, : keys * (per_key + 1)], all_[:, keys * (per_key + 1) :]
    if query_norm is not None and key_norm is not None:
        queries, others = both[:, : keys * per_key], both[:, keys * per_key :]
        both = torch.cat([rms(queries, query_norm, eps), rms(others, key_norm, eps)], 1)
    half = both.shape[-1] // 2
    both = torch.addcmul(both * cos, both.roll([half], [-1]), sin)
    queries = (both[:, : keys * per_key] * scale).view(count, keys, per_key, -1)
    return queries.to(values.dtype), both[:, keys * per_key :], values


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension."""
    return torch.rms_norm(x, [x.shape[-1]], weight, eps)


def product(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """x [B, in] by weights that few_rows.py laid out, [B, out]."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def step(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    layers: list[Layer],
    heads: tuple[int, int],
    scale: float,
    eps: float,
    own_keys: Tensor,
    own_values: Tensor,
    at: int,
    prompt_keys: list[list[Tensor]],
    prompt_values: list[list[Tensor]],
    whose: list[Whose],
    norm: Tensor,
    head: Tensor,
    head_bias: Optional[Tensor],
) -> Tensor:
    """The logits [B, V] after tokens whose embeddings are x, [B, in].

    own_keys, own_values: [layers, B, K, room, D]; prompt_keys, prompt_values: of each layer; the rest as `attend` and
    `turned` say.
    """
    for number, layer in enumerate(layers):
        projected = product(rms(x, layer.before, eps), layer.qkv, layer.qkv_bias)
        queries, keys, values = turned(projected, cos, sin, heads, scale, layer.query_norm, layer.key_norm, eps)
        attended = attend(
            queries, keys, values, own_keys[number], own_values[number], at, prompt_keys[number], prompt_values[number],
            whose,
        )  # fmt: skip
        x = x + product(attended, layer.out, layer.out_bias)
        gate, up = product(rms(x, layer.after, eps), layer.gate_up, layer.gate_up_bias).chunk(2, 1)
        x = x + product(silu(gate) * up, layer.down, layer.down_bias)
    return product(rms(x, norm, eps), head, head_bias)
