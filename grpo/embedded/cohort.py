"""What attention needs of lines that began together: the prompts, one copy a group, and the keys of their own tokens.

Lines of one cohort are of one age, so that a step writes one column and no line attends to another's room.
Legend: b lines, p prompts, n responses each, L prompt tokens, K key heads, G queries of each, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo.embedded.llama_step import attend
from grpo.embedded.prompt_keys import PromptKeys, blocks_of

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy

FIRST_ROOM = 32  # tokens of every line, doubled when they are full


class Cohort:
    """count lines, side by side. logits: [b, V], after the prompts.

    What llama_step.py is given: keys, values: of the lines' own tokens, [layers, b, K, room, D]; at: how many tokens
    they have; prompt_keys, prompt_values: of each layer those of `whose`.
    """

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
        self.count, self.at, self._max_new = len(mask) * n, 0, max_new
        self._look()
        self._room(min(max_new, FIRST_ROOM))

    def attend(self, number: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """In layer `number`, with this step's token. queries: [b, K, G, D], scaled; keys, values: [b, K, D].

        Returns [b, K * G * D].
        """
        return attend(
            queries, keys, values, self.keys[number], self.values[number], self.at,
            self.prompt_keys[number], self.prompt_values[number], self.whose,
        )  # fmt: skip

    def advance(self) -> None:
        """The step is done in every layer; make room for the next one."""
        self.at += 1
        if self.at == self.keys.shape[-2] and self.at < self._max_new:
            self._room(min(self._max_new, 2 * self.at))

    def keep(self, open_: Tensor) -> Tensor:
        """Only these lines ([b], bool) go on. Returns their indices so far, in their order from now on.

        A line that stays where it is is not copied.
        """
        count, now = int(open_.sum()), self.at
        lines = filled(open_, count)
        if count < self.count:
            moved = (lines != torch.arange(count, device=lines.device)).nonzero().squeeze(1)
            for room in (self.keys, self.values):
                if len(moved):
                    room[:, moved, :, :now] = room[:, lines[moved], :, :now]
            self.keys, self.values = self.keys[:, :count], self.values[:, :count]
            for block in self._prompts:
                block.keep(lines)
            self._prompts = [block for block in self._prompts if block.count]
            self.count = count
            self._look()
        return lines

    def _look(self) -> None:
        """Say anew which prompts there are, and whose."""
        layers = range(len(self._prompts[0].keys)) if self._prompts else ()
        self.prompt_keys = [[block.keys[number] for block in self._prompts] for number in layers]
        self.prompt_values = [[block.values[number] for block in self._prompts] for number in layers]
        self.whose = [block.whose for block in self._prompts]

    def trim(self) -> None:
        """Give back the memory of lines that ended."""
        if self.keys.nbytes < self.keys.untyped_storage().nbytes():
            self._room(self.keys.shape[-2])

    def _room(self, tokens: int) -> None:
        """Room for so many tokens of every line."""
        layers = self._prompts[0].keys
        _, heads, _, width = layers[0].shape
        keys, values = (layers[0].new_empty(len(layers), self.count, heads, tokens, width) for _ in range(2))
        if self.at:
            keys[:, :, :, : self.at] = self.keys[:, :, :, : self.at]
            values[:, :, :, : self.at] = self.values[:, :, :, : self.at]
        self.keys, self.values = keys, values


def filled(open_: Tensor, alive: int) -> Tensor:
    """The open lines in an order in which few of them move: the last ones take the places of those that stopped."""
    keep = torch.arange(alive, device=open_.device)
    keep[~open_[:alive]] = open_[alive:].nonzero().squeeze(1) + alive
    return keep
