"""What attention needs of the prompts while their groups are answered: one copy for all the responses of a group.

Legend: p prompts of about the same length, n responses each, B lines, L prompt tokens, K key heads, G queries of each.
"""

from __future__ import annotations

import torch
from transformers import DynamicCache

from grpo.embedded.llama_step import Whose


def blocks_of(lengths: list[int]) -> list[slice]:
    """Cut prompts into runs that are read side by side, each padded to its longest.

    A run ends where padding would cost more than a quarter of what its prompts themselves do.
    """
    blocks, first = [], 0
    for end in range(1, len(lengths) + 1):
        run = lengths[first : end + 1]
        if end == len(lengths) or max(run) * len(run) > 1.25 * sum(run):
            blocks.append(slice(first, end))
            first = end
    return blocks


class PromptKeys:
    """Keys and values of p prompts, [p, K, L, D] for each layer, and which lines ask for them."""

    def __init__(self, cache: DynamicCache, mask: torch.Tensor, first: int, n: int) -> None:
        """mask: [p, L], left-padded; the lines are n for each prompt, from `first` on."""
        self.keys: list[torch.Tensor] = [layer.keys for layer in cache.layers]  # type: ignore[union-attr]
        self.values: list[torch.Tensor] = [layer.values for layer in cache.layers]  # type: ignore[union-attr]
        self.width, self.count = mask.shape[1], len(mask) * n
        self._prompts, self._each = len(mask), n
        self._padding = None if bool(mask.all()) else mask == 0  # [p, L]
        self._lines: torch.Tensor | slice = slice(first, first + self.count)
        self._places: torch.Tensor | None = None  # of the lines among p * each; None: one after the other
        self._prompt = torch.arange(len(mask), device=mask.device).repeat_interleave(n)  # of each line

    @property
    def whose(self) -> Whose:
        """Which lines ask for them."""
        slice_ = isinstance(self._lines, slice)
        return Whose(
            prompts=self._prompts,
            each=self._each,
            width=self.width,
            first=self._lines.start if slice_ else 0,  # type: ignore[union-attr]
            count=self.count,
            lines=None if slice_ else self._lines,  # type: ignore[arg-type]
            places=self._places,
            padding=self._padding,
        )

    def keep(self, lines: torch.Tensor) -> None:
        """Only these lines (indices into those so far) go on, in this order."""
        old = self._lines
        if isinstance(old, slice):
            old = torch.arange(old.start, old.stop, device=lines.device)
        where, which = (lines[:, None] == old).nonzero(as_tuple=True)
        self._lines, self._prompt = where, self._prompt[which]
        self.count = len(where)
        if not self.count:
            return
        asked, prompt = self._prompt.unique(return_inverse=True)
        if 2 * len(asked) <= self._prompts:  # let the others go once that repays copying
            self.keys = [keys[asked] for keys in self.keys]
            self.values = [values[asked] for values in self.values]
            self._padding = None if self._padding is None else self._padding[asked]
            self._prompts, self._prompt = len(asked), prompt
        order = self._prompt.argsort(stable=True)
        counts = torch.bincount(self._prompt, minlength=self._prompts)
        starts = counts.cumsum(0) - counts
        within = torch.empty_like(order)
        within[order] = torch.arange(len(order), device=order.device) - starts[self._prompt[order]]
        self._each = int(counts.max())
        self._places = self._prompt * self._each + within
