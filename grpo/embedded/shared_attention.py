"""Attention of a packed row: every response sees its group's prompt, whose keys and values are there once, and itself.

On a CPU the two parts of a response's attention are computed apart, each without a mask and without padding, and
joined by their softmax sums; on the way back each part is given the joined output and sum, from which its share of the
probabilities follows exactly (as ring attention does, arXiv 2310.01889). Elsewhere responses are padded to the longest
of their group, and torch picks the kernel.
Legend: T tokens of the row, A heads of queries, K heads of keys and values, W wide, m responses of r tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

Runs = tuple[tuple[int, int], ...]


class Group(NamedTuple):
    """Where a group lies in the row: its prompt [start, split), its responses [split, end), longest first.

    runs: (how many, tokens of each) for every length of its responses, in their order.
    """

    start: int
    split: int
    end: int
    runs: Runs


def shared_prompt_attention(
    query: Tensor, key: Tensor, value: Tensor, groups: tuple[Group, ...], scale: float
) -> Tensor:
    """Causal attention within each group's prompt and each of its responses behind it. query: [1, A, T, W]; key, value:
    [1, K, T, W], K a divisor of A; returns [1, A, T, W]. Under autocast in its precision."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if device == "cpu":
        return _Joined.apply(query, key, value, groups, scale)
    return torch.cat([part for group in groups for part in _padded(query, key, value, group, scale)], 2)


# Without padding, on a CPU

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, groups: tuple[Group, ...], scale: float) -> Tensor:
        _, heads, tokens, width = query.shape
        out = query.new_empty(1, tokens, heads, width).transpose(1, 2)
        sums = torch.empty(1, tokens, heads, dtype=torch.float32, device=query.device).transpose(1, 2)  # [1, A, T]
        for group in groups:
            prompt, responses = slice(group.start, group.split), slice(group.split, group.end)
            k, v = key[:, :, prompt], value[:, :, prompt]
            out[:, :, prompt], sums[:, :, prompt] = _forward(query[:, :, prompt], k, v, is_causal=True, scale=scale)
            if group.end == group.split:
                continue
            theirs, of_theirs = _forward(query[:, :, responses], k, v, scale=scale)
            own, of_own = torch.empty_like(theirs), torch.empty_like(of_theirs)
            for where, shape in _each_run(group):
                q, k, v = (_apart(part[:, :, where], shape) for part in (query, key, value))
                o, s = _forward(q, k, v, is_causal=True, scale=scale)
                inside = slice(where.start - group.split, where.stop - group.split)
                own[:, :, inside], of_own[:, :, inside] = _together(o), _together(s[..., None])[..., 0]
            both = torch.logaddexp(of_theirs, of_own)
            sums[:, :, responses] = both
            share = (of_own - both).exp_().unsqueeze(-1).to(own.dtype)
            out[:, :, responses] = torch.lerp(theirs, own, share)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.groups, ctx.scale = groups, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, sums = ctx.saved_tensors
        grad = grads[0] if grads[0].stride(-1) == 1 else grads[0].contiguous()
        results = [torch.empty_like(part.transpose(1, 2)).transpose(1, 2) for part in (query, key, value)]

        def back(to: slice, of: slice, causal: bool, shape: tuple[int, int] | None = None) -> tuple[Tensor, ...]:
            parts = [
                part[:, :, where]
                for part, where in zip((grad, query, key, value, out), (to, to, of, of, to), strict=True)
            ]
            lse = sums[:, :, to]
            if shape is not None:
                parts, lse = [_apart(part, shape) for part in parts], _apart(lse[..., None], shape)[..., 0]
            return _backward(*parts, lse, 0.0, causal, scale=ctx.scale)

        for group in ctx.groups:
            prompt, responses = slice(group.start, group.split), slice(group.split, group.end)
            of_prompt = back(prompt, prompt, True)
            for result, part in zip(results, of_prompt, strict=True):
                result[:, :, prompt] = part
            if group.end == group.split:
                continue
            q, k, v = back(responses, prompt, False)
            results[1][:, :, prompt] += k
            results[2][:, :, prompt] += v
            for where, shape in _each_run(group):
                for result, part in zip(results, back(where, where, True, shape), strict=True):
                    result[:, :, where] = _together(part)
            results[0][:, :, responses] += q
        return results[0], results[1], results[2], None, None


def _each_run(group: Group):  # noqa: ANN202 (slices and shapes)
    """(where in the row, (m, r)) of the responses of each length."""
    at = group.split
    for many, long in group.runs:
        yield slice(at, at + many * long), (many, long)
        at += many * long


def _apart(part: Tensor, shape: tuple[int, int]) -> Tensor:
    """[1, A, m * r, W] -> [m, A, r, W], a view of the same memory."""
    return part.squeeze(0).unflatten(1, shape).transpose(0, 1)


def _together(part: Tensor) -> Tensor:
    """[m, A, r, W] -> [1, A, m * r, W]."""
    return part.transpose(0, 1).flatten(1, 2)[None]


# With padding, by public calls alone


def _padded(query: Tensor, key: Tensor, value: Tensor, group: Group, scale: float) -> list[Tensor]:
    """The outputs of a group's prompt and of its responses, [1, A, tokens, W] each."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    prompt = slice(group.start, group.split)
    k, v = key[:, :, prompt], value[:, :, prompt]
    outs = [scaled_dot_product_attention(query[:, :, prompt], k, v, is_causal=True, scale=scale)]
    if group.end == group.split:
        return outs
    lengths = [long for many, long in group.runs for _ in range(many)]
    q, own_k, own_v = (
        torch.stack(
            [
                pad(one, (0, 0, 0, lengths[0] - one.shape[1]))
                for one in part[0, :, group.split : group.end].split(lengths, 1)
            ]
        )
        for part in (query, key, value)
    )  # [m, A, r, W]
    keys = torch.cat([k.expand(len(lengths), -1, -1, -1), own_k], 2)
    values = torch.cat([v.expand(len(lengths), -1, -1, -1), own_v], 2)
    seen = torch.ones(lengths[0], keys.shape[2], dtype=torch.bool, device=q.device).tril(group.split - group.start)
    out = scaled_dot_product_attention(q, keys, values, attn_mask=seen, scale=scale)
    return [*outs, torch.cat([one[:, :long] for one, long in zip(out, lengths, strict=True)], 1)[None]]
