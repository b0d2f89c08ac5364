"""Writes a folder that transformers, vLLM and others open as a model, holding one part of it in memory at a time.

Leaves out where the weights come from. Tokenizer, chat template and custom code are copied as the trainer saved them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedModel

from grpo.verl_backend.inside.shards import MergeError, Weight

LARGEST_FILE = 5 * 10**9  # bytes of weights in one file
_NOT_COPIED = ("*.safetensors*", "*.bin", "*.index.json", "config.json", "generation_config.json")
_CHOICES_OF_A_RUN = ("attn_implementation", "_attn_implementation")  # verl's override_config ends up in config.json


def copy_tokenizer(source: Path, folder: Path) -> None:
    """All that the trainer saved beside the weights and the model's configuration."""
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))


def write_config(source: Path, folder: Path, model: PreTrainedModel, dtype: torch.dtype) -> None:
    """config.json, naming the dtype that the weights have, and generation_config.json."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    name = str(dtype).removeprefix("torch.")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in ("dtype", "torch_dtype"):  # transformers 5 and 4
            if key in part:
                part[key] = name
    if "torch_dtype" not in config:
        config["dtype"] = name
    for key in _CHOICES_OF_A_RUN:
        config.pop(key, None)
    config["tie_word_embeddings"] = bool(model.config.tie_word_embeddings)
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if (source / "generation_config.json").is_file():
        shutil.copy(source / "generation_config.json", folder)
    elif model.can_generate():
        GenerationConfig.from_model_config(model.config).save_pretrained(folder)


def write_weights(
    folder: Path,
    weights: dict[str, Weight],
    model: PreTrainedModel,
    dtype: torch.dtype | None,
    say: Callable[[str], None],
) -> None:
    """model.safetensors, or several of 5 GB and their index. dtype: of what is not an integer; None = as trained."""
    groups = _groups(model, weights, dtype)
    files = _files([shapes for _, shapes in groups])
    needed = sum(_bytes(meta) for _, shapes in groups for meta in shapes.values())
    free = shutil.disk_usage(folder).free
    if free < 1.02 * needed:
        raise MergeError(f"{folder.parent} has {free / 1e9:.2f} GB free and the model needs {needed / 1e9:.2f} GB")
    where: dict[str, str] = {}
    for number, indexes in enumerate(files, start=1):
        file = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        tensors = {
            name: tensor
            for index in indexes
            for name, tensor in _as_stored(model, _loaded(weights, groups[index][0], dtype)).items()
        }
        say(f"writing {file}, {sum(map(_bytes, tensors.values())) / 1e9:.2f} GB")
        save_file(
            {name: _compact(tensor) for name, tensor in tensors.items()}, folder / file, metadata={"format": "pt"}
        )
        where |= dict.fromkeys(tensors, file)
    if len(files) > 1:
        index = {"metadata": {"total_size": needed}, "weight_map": dict(sorted(where.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def without_copies(weights: dict[str, Weight], model: PreTrainedModel) -> tuple[dict[str, Weight], list[str]]:
    """`weights` with one of each tied pair, and the pairs that are no longer equal (then the config must untie)."""
    kept, apart = dict(weights), []
    for copy, original in tied(model).items():
        if copy in kept and original not in kept:
            kept[original] = kept.pop(copy)
        elif copy in kept and torch.equal(kept[copy].load(), kept[original].load()):
            del kept[copy]
        elif copy in kept:
            apart.append(copy)
    return kept, apart


def tied(model: PreTrainedModel) -> dict[str, str]:
    """Name of a weight -> name of the one it shares its memory with (lm_head -> embed_tokens)."""
    model.tie_weights()
    first: dict[int, str] = {}
    names = model.named_parameters(remove_duplicate=False)
    return {name: first[id(weight)] for name, weight in names if first.setdefault(id(weight), name) != name}


def _groups(
    model: PreTrainedModel, weights: dict[str, Weight], dtype: torch.dtype | None
) -> list[tuple[list[str], dict[str, torch.Tensor]]]:
    """Names to load together, and what is stored for them as tensors without data.

    transformers 5 holds some models in another form than it stores (experts in one tensor); where one tensor alone
    cannot be turned back, all are loaded together.
    """
    meta = {
        name: torch.empty(weight.shape, dtype=_stored_dtype(weight, dtype), device="meta")
        for name, weight in weights.items()
    }
    alone = [([name], _as_stored(model, {name: tensor})) for name, tensor in meta.items()]
    together = _as_stored(model, meta)
    if {name: each.shape for _, stored in alone for name, each in stored.items()} == {
        name: each.shape for name, each in together.items()
    }:
        return alone
    return [(list(meta), together)]


def _as_stored(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # transformers 4 stores what it holds
        return tensors
    return revert_weight_conversion(model, tensors)


def _files(stored: list[dict[str, Any]]) -> list[list[int]]:
    """Which groups go into which file: in order, a new file before one would grow too large."""
    files: list[list[int]] = [[]]
    size = 0
    for index, group in enumerate(stored):
        more = sum(map(_bytes, group.values()))
        if files[-1] and size + more > LARGEST_FILE:
            files.append([])
            size = 0
        files[-1].append(index)
        size += more
    return files


def _loaded(weights: dict[str, Weight], names: list[str], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    return {name: weights[name].load().to(_stored_dtype(weights[name], dtype)) for name in names}


def _stored_dtype(weight: Weight, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and weight.dtype.is_floating_point else weight.dtype


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous and alone in its memory, as safetensors wants it; FSDP pads, and a part may be a view."""
    tensor = tensor.contiguous()
    return tensor if tensor.untyped_storage().nbytes() == _bytes(tensor) else tensor.clone()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def main_dtype(weights: dict[str, Weight]) -> torch.dtype:
    """The dtype that most of the numbers have; integers are buffers and do not count."""
    counts: dict[torch.dtype, int] = {}
    for weight in weights.values():
        if weight.dtype.is_floating_point:
            counts[weight.dtype] = counts.get(weight.dtype, 0) + weight.shape.numel()
    return max(counts, key=lambda dtype: counts[dtype])
