"""A KV cache with room to grow: a decoding step writes its column in place, where transformers copies all others."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


def growing_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for sampling. Layers that keep only a window of the past stay transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class GrowingLayer(DynamicLayer):
    """keys and values [B, heads, tokens, width] are the filled part of a larger buffer. Not for gradients."""

    _key_room: torch.Tensor | None = None
    _value_room: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new tokens' keys and values; all of them so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self._key_room = _append(self.keys, self._key_room, key_states)
        self.values, self._value_room = _append(self.values, self._value_room, value_states)
        return self.keys, self.values


def _append(
    seen: torch.Tensor | None, room: torch.Tensor | None, new: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what was seen and the new, the buffer they lie in). Repeating or dropping rows leaves the buffer behind."""
    length = seen.shape[-2] if seen is not None and seen.numel() else 0
    end = length + new.shape[-2]
    if seen is None or room is None or seen.data_ptr() != room.data_ptr() or end > room.shape[-2]:
        room = new.new_empty(*new.shape[:2], end + max(64, end // 2), new.shape[-1])
        if seen is not None and length:
            room[:, :, :length] = seen
    room[:, :, length:end] = new
    return room[:, :, :end], room
