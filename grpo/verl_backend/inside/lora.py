"""What LoRA adds to a checkpoint of verl: which layers it adapts, W + scale * B A, and an adapter folder for peft.

Leaves out reading the tensors (shards.py) and the folder of a whole model (model_folder.py).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from grpo.verl_backend.inside.shards import MergeError, Weight

PREFIX = "base_model.model."  # peft's, before every name of the model it wraps
_PART = re.compile(re.escape(PREFIX) + r"(?P<layer>.+)\.lora_(?P<which>[AB])\.default\.weight")
_META, _ADAPTER = "lora_train_meta.json", "adapter_config.json"


@dataclass(frozen=True)
class Lora:
    """layers: adapted layer -> (A [r, in], B [out, r]); settings: what peft's adapter_config.json calls them."""

    layers: dict[str, tuple[Weight, Weight]]
    settings: dict[str, Any]

    def scale(self, layer: str) -> float:
        """What B A is multiplied by: alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA."""
        rank = self.layers[layer][0].shape[0]
        return self.settings["lora_alpha"] / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)

    def parts(self) -> dict[str, Weight]:
        """The two tensors of each layer, by their names in an adapter file."""
        return {
            f"{PREFIX}{layer}.lora_{which}.weight": part
            for layer, parts in self.layers.items()
            for which, part in zip("AB", parts, strict=True)
        }


def find_lora(actor: Path, weights: dict[str, Weight], initial: Path | None) -> Lora | None:
    """The adapter among the trained weights; None where there is none. initial: the adapter that training began from.

    Raises MergeError for kinds of adapter whose effect is not W + scale * B A.
    """
    found: dict[str, dict[str, Weight]] = {}
    for name, weight in weights.items():
        if match := _PART.fullmatch(name):
            found.setdefault(match["layer"], {})[match["which"]] = weight
        elif ".lora_" in name or ".modules_to_save." in name:
            raise MergeError(f"{name} belongs to a kind of adapter that is not merged here (only LoRA on plain layers)")
    if not found:
        return None
    layers = {layer: (parts["A"], parts["B"]) for layer, parts in found.items() if parts.keys() == {"A", "B"}}
    if len(layers) < len(found):
        raise MergeError(f"{min(found.keys() - layers.keys())} has only one of lora_A and lora_B")
    return Lora(layers, _settings(actor, layers, initial))


def base_weights(weights: dict[str, Weight]) -> dict[str, Weight]:
    """The frozen model under its own names; empty where the trainer saved the adapter alone."""
    return {
        name.removeprefix(PREFIX).replace(".base_layer.", "."): weight
        for name, weight in weights.items()
        if not _PART.fullmatch(name)
    }


def merged(base: dict[str, Weight], lora: Lora, model: nn.Module) -> dict[str, Weight]:
    """The weights of one model that does what base and adapter do. model: tells how each layer stores its weight."""
    for pattern in ("rank_pattern", "alpha_pattern"):
        if lora.settings.get(pattern):
            raise MergeError(f"the adapter has a {pattern}, whose layers differ in scale: use --lora adapter")
    whole = dict(base)
    for layer, (first, second) in lora.layers.items():
        name = f"{layer}.weight"
        if name not in base or len(base[name].shape) != 2:
            raise MergeError(
                f"the adapter changes {layer}, which is not a plain layer of the model: use --lora adapter"
            )
        transposed = type(model.get_submodule(layer)).__name__ == "Conv1D"  # GPT-2 keeps [in, out]
        whole[name] = _with_update(base[name], first, second, lora.scale(layer), transposed)
    return whole


def _with_update(weight: Weight, first: Weight, second: Weight, scale: float, transposed: bool) -> Weight:
    def load() -> torch.Tensor:
        update = (second.load().float() @ first.load().float()) * scale
        return (weight.load().float() + (update.T if transposed else update)).to(weight.dtype)

    return Weight(weight.shape, weight.dtype, load)


def write_adapter(folder: Path, lora: Lora, model: nn.Module, base: str, dtype: torch.dtype | None) -> None:
    """A folder that PeftModel.from_pretrained opens. base: the model it belongs to; dtype: None = as trained."""
    peft_config(lora, model, base).save_pretrained(str(folder))
    tensors = {name: part.load().to(dtype or part.dtype).contiguous() for name, part in lora.parts().items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def peft_config(lora: Lora, model: nn.Module, base: str | None) -> Any:
    """peft's description of the adapter, naming exactly the layers that it has."""
    from peft import LoraConfig

    ends = {layer.rpartition(".")[2] for layer in lora.layers}
    same_end = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in ends}
    targets = ends if same_end == set(lora.layers) else set(lora.layers)
    return LoraConfig(
        **lora.settings, target_modules=sorted(targets), base_model_name_or_path=base, inference_mode=True
    )


def _settings(actor: Path, layers: dict[str, tuple[Weight, Weight]], initial: Path | None) -> dict[str, Any]:
    """From what verl wrote beside the shards (to 0.7: an adapter folder); alpha cannot be told from the tensors."""
    began = _json(initial / _ADAPTER) if initial else {}
    if began.get("use_dora") or began.get("lora_bias"):
        raise MergeError(f"{initial}: DoRA and trained biases are not exported, only plain LoRA")
    told = began | _json(actor / "lora_adapter" / _ADAPTER) | _json(actor / _META)
    alpha = told.get("lora_alpha")
    if not alpha:
        raise MergeError(f"{actor / _META} does not tell lora_alpha, so the adapter's scale is unknown")
    ranks = {first.shape[0] for first, _ in layers.values()}
    if len(ranks) > 1 and not told.get("rank_pattern"):
        raise MergeError(f"the adapter's layers have different ranks ({sorted(ranks)}), and no rank_pattern is known")
    keep = ("use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
    kept = {key: told[key] for key in keep if told.get(key)}
    rank = told["r"] if told.get("rank_pattern") else max(ranks)
    return {"r": rank, "lora_alpha": alpha, "task_type": told.get("task_type") or "CAUSAL_LM", **kept}


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
