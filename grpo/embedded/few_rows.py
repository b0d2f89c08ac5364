"""Products of a few rows with the weights of one or more linear layers that read the same input.

A decoding step is such products and little else. On an x86 CPU torch's linear rearranges the weights of every product
anew, which for 8 rows takes several times as long as the product; here they are rearranged once for all the steps, in
a copy that lives as long as the sampling does, when there are no gradients.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear

from grpo.embedded.llama_step import product

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy

# Rearranging takes as long as some dozen steps of a 0.5B model with 8 rows lose without it.
WORTH = 16


class Product:
    """Call it with [B, in]: the outputs of all its layers side by side, [B, out of all]."""

    def __init__(self, layers: Sequence[Any], policy: Policy, steps: int) -> None:
        """steps: how often it will be called, about."""
        self._layers = layers
        self.laid_out: tuple[torch.Tensor, torch.Tensor | None] | None = None  # weights for few rows, and their bias
        self._run = self._choose(policy, steps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x)

    def _choose(self, policy: Policy, steps: int) -> Callable[[torch.Tensor], torch.Tensor]:
        if any(type(layer) is not nn.Linear for layer in self._layers):
            return self._modules  # an adapter's: what it does is its own affair
        dtype, pack = policy.dtype, steps >= WORTH and can_pack(policy.device, policy.dtype)
        if len(self._layers) > 1 and not pack:
            return self._modules  # one after the other, in their own memory
        weight = _joined([layer.weight for layer in self._layers]).to(dtype)
        bias = None if self._layers[0].bias is None else _joined([layer.bias for layer in self._layers]).to(dtype)
        if not pack:
            return lambda x: linear(x, weight, bias)
        laid_out = self.laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None), bias
        return lambda x: product(x.to(dtype), *laid_out)  # without self: a cycle would keep the copy until a collection

    def _modules(self, x: torch.Tensor) -> torch.Tensor:
        return _joined([layer(x) for layer in self._layers], 1)


@functools.cache
def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch rearranges weights for oneDNN here, which is no announced part of it and hence tried."""
    if device.type != "cpu" or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if dtype != torch.float32 and not (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return False
    weight, x = torch.linspace(-1, 1, 48 * 80).sin().view(48, 80).to(dtype), torch.linspace(-1, 1, 240).view(3, 80)
    close = 1e-5 if dtype == torch.float32 else 5e-2
    ours = product(x.to(dtype), torch.ops.mkldnn._reorder_linear_weight(weight, None), None)
    return bool((ours - linear(x, weight.float())).abs().max() < close * x.abs().sum(1).max())


def _joined(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)
