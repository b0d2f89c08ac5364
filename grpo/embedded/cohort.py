"""What attention needs of lines that began together: the prompts, one copy a group, and the keys of their own tokens.

Lines of one cohort are of one age, so that a step writes one column and no line attends to another's room.
Legend: b lines, p prompts, n responses each, L prompt tokens, K key heads, G queries of each, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo.embedded.prompt_keys import PromptKeys, blocks_of

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy

FIRST_ROOM = 32  # tokens of every line, doubled when they are full


class Cohort:
    """count lines, side by side. logits: [b, V], after the prompts."""

    def __init__(self, policy: Policy, ids: Tensor, mask: Tensor, n: int, max_new: int) -> None:
        """Runs the prompts once per group. ids, mask: [P, L], left-padded; max_new: tokens of a response at most."""
        self._prompts: list[PromptKeys] = []
        logits = []
        for block in blocks_of(mask.sum(1).tolist()):
            width = int(mask[block].sum(1).max())
            after, cache = policy.read_prompts(ids[block, -width:], mask[block, -width:])
            self._prompts.append(PromptKeys(cache, mask[block, -width:], block.start * n, n))
            logits.append(after)
        self.logits = torch.cat(logits).repeat_interleave(n, 0)
        self.count, self._step, self._max_new = len(mask) * n, 0, max_new
        self._widest = max(block.width for block in self._prompts)
        self._room(min(max_new, FIRST_ROOM))

    def attend(self, number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """In layer `number`, with this step's token. queries: [b, K, G, D], scaled; keys, values: [b, K, D].

        Returns [b, K * G * D].
        """
        self._keys[number, :, :, self._step] = keys
        self._values[number, :, :, self._step] = values
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

    def advance(self) -> None:
        """The step is done in every layer; make room for the next one."""
        self._step += 1
        if self._step == self._keys.shape[-2] and self._step < self._max_new:
            self._room(min(self._max_new, 2 * self._step))

    def keep(self, open_: Tensor) -> Tensor:
        """Only these lines ([b], bool) go on. Returns their indices so far, in their order from now on.

        A line that stays where it is is not copied.
        """
        count, now = int(open_.sum()), self._step
        lines = filled(open_, count)
        if count < self.count:
            moved = (lines != torch.arange(count, device=lines.device)).nonzero().squeeze(1)
            for room in (self._keys, self._values):
                if len(moved):
                    room[:, moved, :, :now] = room[:, lines[moved], :, :now]
            self._keys, self._values = self._keys[:, :count], self._values[:, :count]
            for block in self._prompts:
                block.keep(lines)
            self._prompts = [block for block in self._prompts if block.count]
            self._widest = max((block.width for block in self._prompts), default=0)
            self.count = count
        return lines

    def trim(self) -> None:
        """Give back the memory of lines that ended."""
        if self._keys.nbytes < self._keys.untyped_storage().nbytes():
            self._room(self._keys.shape[-2])

    def _room(self, tokens: int) -> None:
        """Room for so many tokens of every line."""
        layers = self._prompts[0].keys
        _, heads, _, width = layers[0].shape
        keys, values = (layers[0].new_empty(len(layers), self.count, heads, tokens, width) for _ in range(2))
        if self._step:
            keys[:, :, :, : self._step] = self._keys[:, :, :, : self._step]
            values[:, :, :, : self._step] = self._values[:, :, :, : self._step]
        self._keys, self._values = keys, values


def filled(open_: Tensor, alive: int) -> Tensor:
    """The open lines in an order in which few of them move: the last ones take the places of those that stopped."""
    keep = torch.arange(alive, device=open_.device)
    keep[~open_[:alive]] = open_[alive:].nonzero().squeeze(1) + alive
    return keep
