"""Several groups in one row without padding: each prompt once, then its responses, each token once.

The linear layers of the model see just these tokens. Its attention is swapped for one that knows the layout: a token
of a response sees its group's prompt, which is there once and gets the gradients of all, and its own response so far.
Models whose attention transformers cannot swap, or where that would not be exact, are found by one small comparison.
Legend: P prompts, B responses, n per prompt, T tokens of the row, N of them before a response token, M response tokens.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from grpo.embedded.chunked import chosen_log_probs, head_of
from grpo.embedded.shared_attention import Group, Runs, shared_prompt_attention

NAME = "grpo_packed"  # among the attention functions of transformers
_KNOWN = {"full_attention", "sliding_attention"}  # layers in which nothing but attention connects two tokens


@dataclass(frozen=True)
class Layout:
    """The row, and where what lies in it.

    ids, positions: [1, T]; groups: where attention finds them; longest: tokens of the longest prompt with a response;
    rows: [N], tokens after which a response token comes; tokens, row_of: [M], response tokens and which of `rows` comes
    before each, ascending; places: [M], of the tokens in [B, R], flat.
    """

    ids: Tensor
    positions: Tensor
    groups: tuple[Group, ...]
    longest: int
    rows: Tensor
    tokens: Tensor
    row_of: Tensor
    places: Tensor


def lay_out(prompt_ids: Tensor, prompt_mask: Tensor, response_ids: Tensor, response_mask: Tensor) -> Layout:
    """Pack prompts [P, L] (left-padded) and responses [B, R] (right-padded, a prompt's side by side).

    A response with an empty mask takes no room, nor does a prompt all of whose responses are such; one has a token at
    the least. Responses of one group are laid longest first, so that those of one length lie together.
    """
    device, width = prompt_ids.device, response_ids.shape[1]
    n = len(response_ids) // len(prompt_ids)
    prompt_lengths = prompt_mask.sum(1).tolist()
    lengths = response_mask.sum(1)
    order = (torch.arange(len(prompt_ids), device=device).repeat_interleave(n) * (width + 1) - lengths).argsort(
        stable=True
    )
    of_group = lengths[order].view(-1, n).tolist()
    ids, positions, groups, rows, row_of, places = [], [], [], [], [], []
    at = taken = 0
    for number, (prompt, mine) in enumerate(zip(prompt_lengths, of_group, strict=True)):
        mine = [length for length in mine if length]
        if not mine:
            continue
        lines = order[number * n : number * n + len(mine)]
        inside = torch.arange(width, device=device) < lengths[lines, None]  # [m, R]
        seen = inside.clone()  # all but the last token of each, after which nothing comes
        seen[:, :-1] &= inside[:, 1:]
        seen[:, -1] = False
        steps = torch.arange(width, device=device).expand(len(mine), -1)
        ids += [prompt_ids[number, prompt_ids.shape[1] - prompt :], response_ids[lines][seen]]
        positions += [torch.arange(prompt, device=device), prompt + steps[seen]]
        after = sum(mine) - len(mine)
        groups.append(Group(at, at + prompt, at + prompt + after, _runs(mine)))
        rows.append(torch.arange(at + prompt - 1, at + prompt + after, device=device))
        row_of += [torch.full((len(mine),), taken, device=device), torch.arange(after, device=device) + taken + 1]
        flat = lines[:, None] * width + steps
        inside[:, 0] = False
        places += [flat[:, 0], flat[inside]]
        at, taken = at + prompt + after, taken + 1 + after
    places = torch.cat(places)
    longest = max((prompt + mine[0] for prompt, mine in zip(prompt_lengths, of_group, strict=True) if mine[0]))
    return Layout(
        torch.cat(ids)[None],
        torch.cat(positions)[None],
        tuple(groups),
        longest,
        torch.cat(rows),
        response_ids.flatten()[places],
        torch.cat(row_of),
        places,
    )


def _runs(lengths: list[int]) -> Runs:
    """(how many responses, tokens that each has in the row) for every length, longest first."""
    kept = [length - 1 for length in lengths if length > 1]
    return tuple((kept.count(length), length) for length in sorted(set(kept), reverse=True))


def read_row(model: PreTrainedModel, layout: Layout) -> Tensor:
    """The hidden states before the output layer, [N, D], by transformers' forward pass."""
    with packed(model, layout):
        hidden = model.base_model(input_ids=layout.ids, position_ids=layout.positions, use_cache=False)[0][0]  # [T, D]
    return hidden.index_select(0, layout.rows)


def packed_log_probs(
    model: PreTrainedModel,
    layout: Layout,
    shape: torch.Size,
    *,
    temperature: float,
    entropy: str | None,
    read: Callable[[PreTrainedModel, Layout], Tensor] = read_row,
) -> tuple[Tensor, Tensor | None]:
    """log_prob and entropy of the packed response tokens at their places in `shape`, [B, R]; 0 elsewhere."""
    head = head_of(model)
    if head is None or model.base_model is model:
        raise NotExact("no output layer of its own")
    chosen, of_rows = chosen_log_probs(
        read(model, layout),
        head,
        layout.tokens,
        layout.row_of,
        temperature=temperature,
        entropy=entropy,
    )
    log_probs = _placed(chosen, layout.places, shape)
    return log_probs, None if of_rows is None else _placed(of_rows[layout.row_of], layout.places, shape)


def _placed(values: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    return values.new_zeros(shape.numel()).index_put((places,), values).view(shape)


# The swapped attention

_active: list[Layout] = []  # of the forward pass that is running; a pass inside another one would be a bug


@contextlib.contextmanager
def packed(model: PreTrainedModel, layout: Layout) -> Iterator[None]:
    """While entered, the model's attention reads `layout`, and no mask is made."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    _active.append(layout)
    try:
        yield
    finally:
        _active.pop()
        config._attn_implementation = before


def recompute_contexts(model: PreTrainedModel):  # noqa: ANN201 (two contexts, as torch's checkpoint wants them)
    """For checkpoints: a layer that ran packed is packed again when it is recomputed in the backward pass."""
    again = packed(model, _active[-1]) if _active else contextlib.nullcontext()
    return contextlib.nullcontext(), again


class NotExact(Exception):
    """This model's attention does something that the packed one does not."""


def _attend(  # noqa: ANN202 (the output and no weights, as transformers wants them)
    module, query, key, value, attention_mask, *, scaling=None, dropout=0.0, sliding_window=None, **kwargs
):
    layout = _active[-1]
    odd = [name for name in ("softcap", "s_aux", "position_bias", "head_mask") if kwargs.get(name) is not None]
    if odd or dropout or attention_mask is not None or kwargs.get("is_causal") is False:
        raise NotExact(", ".join(odd) or "its mask")
    if sliding_window is not None and layout.longest > sliding_window:
        raise NotExact("a window")
    if not query.shape[-1] == key.shape[-1] == value.shape[-1]:
        raise NotExact("the width of its values")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return shared_prompt_attention(query, key, value, layout.groups, scale).transpose(1, 2), None


AttentionInterface.register(NAME, _attend)


def window_of(model: PreTrainedModel) -> int:
    """The longest sequence that every layer sees as a whole: 0 where more than attention connects two tokens."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - _KNOWN or model.config.is_encoder_decoder:
        return 0
    window = getattr(config, "sliding_window", None)
    return window if window and kinds != {"full_attention"} else sys.maxsize


def probe_batch(vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompts, their mask, responses and theirs, of any tokens: two groups of two, ragged, seven tokens at the most."""
    lengths = torch.tensor([2, 4, 1, 3], device=device), torch.tensor([3, 2], device=device)
    ids = (torch.arange(22, device=device) * 7919 + 11) % vocabulary
    prompts, responses = ids[:6].view(2, 3), ids[6:].view(4, 4)
    prompt_mask = torch.arange(3, device=device) >= 3 - lengths[1][:, None]
    response_mask = torch.arange(4, device=device) < lengths[0][:, None]
    return prompts, prompt_mask.long(), responses, response_mask.long()
