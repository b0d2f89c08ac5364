"""One forward pass per token: the seam between how a token is chosen (rollout.py) and how a model is run.

Legend: P prompts, n responses each, B lines = responses that go on, L prompt tokens, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy


class Decoding(Protocol):
    """Responses being written, side by side; used within the policy's arithmetic() and without gradients.

    logits: [B, V], of the next token of each line; of new lines, the n of a prompt lie side by side.
    patience: let lines go when only this share of them still goes on; 1.0 = at once, since keep() costs little.
    admits: whether further prompts may join while others are being answered.
    """

    logits: torch.Tensor
    patience: float
    admits: bool

    def step(self, tokens: torch.Tensor) -> None:
        """Append a token to every line, [B], and compute the logits after it."""
        ...

    def keep(self, open_: torch.Tensor) -> torch.Tensor:
        """Only these lines ([B], bool) go on. Returns their indices so far, in their order from now on.

        A step comes next, or where none is left admit(): logits are not cut to them.
        """
        ...

    def admit(self, ids: torch.Tensor, mask: torch.Tensor) -> None:
        """Begin n responses to each of these prompts too, [P, L], left-padded; their lines come last."""
        ...


class CachedDecoding:
    """Any model of transformers that keeps a cache: its own forward pass at every step."""

    patience = 0.8  # the cache is copied
    admits = False  # its cache has one length for all lines

    def __init__(self, policy: Policy, ids: torch.Tensor, mask: torch.Tensor, n: int) -> None:
        """Runs the prompts once per group. ids, mask: [P, L], left-padded."""
        self._model = policy.model
        logits, self._cache = policy.read_prompts(ids, mask)
        self._cache.batch_repeat_interleave(n)
        self.logits, self._mask = logits.repeat_interleave(n, 0), mask.repeat_interleave(n, 0)

    def step(self, tokens: torch.Tensor) -> None:
        """As Decoding says."""
        positions = self._mask.sum(1, keepdim=True)
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], 1)
        self.logits = self._model(
            tokens[:, None],
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]

    def keep(self, open_: torch.Tensor) -> torch.Tensor:
        """As Decoding says."""
        lines = open_.nonzero().squeeze(1)
        self._cache.batch_select_indices(lines)
        self._mask = self._mask[lines]
        return lines

    def admit(self, ids: torch.Tensor, mask: torch.Tensor) -> None:
        """Never called: see admits."""
        raise NotImplementedError
