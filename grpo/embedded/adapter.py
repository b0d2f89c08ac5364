"""LoRA by peft: small trained matrices beside frozen weights. Leaves out how they are trained.

The model stays the object that transformers opened, with its layers wrapped in place; the reference is that same
model while the adapter is off, so that no second copy of the weights is in memory.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from grpo.engine import EngineError

if TYPE_CHECKING:
    from peft import PeftModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TRAINED = "default"  # peft's name for it; copies of the policy are more adapters of the same model, by other names
_PREFIX = "base_model.model."
_SHOWN = 3  # mismatching modules named in a message
# What an adapter may have beside its two matrices a layer, and the value that says it has not.
_ONLY_PLAIN = {"use_dora": False, "modules_to_save": None, "bias": "none", "trainable_token_indices": None}


@dataclass(frozen=True)
class Lora:
    """What adapter to train. targets: `all-linear`, a regular expression, or names of layers; start: one to go on from;
    base: the model's folder or Hub id, written into saved adapters."""

    rank: int
    alpha: int
    targets: str | list[str]
    base: str
    start: Path | None = None


def attach(model: PreTrainedModel, lora: Lora, *, seed: int, saved: Path | None = None) -> PeftModel:
    """Freeze `model` and wrap its layers in place. saved: a checkpoint of this run, before `lora.start`.

    Raises EngineError.
    """
    peft = _peft()
    folder = saved or lora.start
    if folder is None:
        targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
        settings = peft.LoraConfig(
            task_type="SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM",
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=0.0,
            target_modules=targets,
        )
    else:
        check_fits(folder, model, lora.base)
        settings = peft.LoraConfig.from_pretrained(str(folder))
        settings.inference_mode = False
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # it sees by itself how GPT-2 keeps its weights
        warnings.filterwarnings("ignore", message=".*base_model_name_or_path")  # a name is set below
        try:
            adapter = peft.get_peft_model(model, settings)
        except ValueError as error:  # target_modules that name no layer, or one that LoRA cannot adapt
            said = " ".join(str(error).split())
            raise EngineError(f"actor_rollout_ref.model.target_modules={lora.targets}: {said}") from error
    settings.base_model_name_or_path = lora.base
    _refuse_shared(model, lora.targets)
    if folder is not None:
        load(adapter, folder)
    return adapter


def check_fits(folder: Path, model: PreTrainedModel, name: str) -> None:
    """Raise EngineError naming the modules of the adapter in `folder` that `model` has not, or of another size.

    model: may be on the meta device. name: what the user calls it.
    """
    settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    odd = [key for key, plain in _ONLY_PLAIN.items() if settings.get(key, plain) not in (plain, False, [])]
    if settings.get("peft_type") != "LORA" or odd:
        what = ", ".join(odd) or settings.get("peft_type")
        raise EngineError(f"{folder}: {what} cannot be trained on; only plain LoRA is: merge it into its model first")
    modules, wrong = dict(model.named_modules()), {}
    with _opened(folder / WEIGHTS) as tensors:
        for key in tensors.keys():  # noqa: SIM118 (a safetensors file is no mapping)
            module, _, part = key.removeprefix(_PREFIX).rpartition(".lora_")
            weight = getattr(modules.get(module), "weight", None)
            if weight is None:
                wrong[module] = "is not in the model"
                continue
            outward = type(modules[module]).__name__ == "Conv1D"  # GPT-2 keeps [in, out]
            fan_in, fan_out = weight.shape if outward else weight.shape[::-1]
            shape = tensors.get_slice(key).get_shape()
            have, want = (shape[1], fan_in) if part.startswith("A") else (shape[0], fan_out)
            if have != want and not hasattr(weight, "quant_state"):
                wrong[module] = f"has {want} {'inputs' if part.startswith('A') else 'outputs'}, the adapter {have}"
    if wrong:
        few = "; ".join(f"{module} {why}" for module, why in list(wrong.items())[:_SHOWN])
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        began = settings.get("base_model_name_or_path")
        of = f" (it was trained on {began})" if began else ""
        raise EngineError(f"{folder}: the adapter does not belong to {name}{of}: {few}{more}")


def load(adapter: PeftModel, folder: Path, name: str = TRAINED) -> None:
    """Put the matrices that save() wrote into the adapter `name`, bit for bit."""
    from peft import set_peft_model_state_dict

    state = load_file(folder / WEIGHTS)
    result = set_peft_model_state_dict(adapter, state, adapter_name=name)
    missing = [key for key in result.missing_keys if f".{name}." in key]
    if missing or result.unexpected_keys:
        raise EngineError(f"{folder}: {WEIGHTS} lacks or has too much: {[*missing, *result.unexpected_keys][0]}")


def save(adapter: PeftModel, folder: Path, dtype: torch.dtype | None = None) -> None:
    """The trained adapter as peft keeps one. dtype: None = as it was trained."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    state = get_peft_model_state_dict(adapter, adapter_name=TRAINED)
    tensors = {name: part.detach().to(dtype or part.dtype).contiguous() for name, part in state.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    adapter.peft_config[TRAINED].save_pretrained(str(folder))


@torch.no_grad()
def add_copy(adapter: PeftModel, name: str, *, neutral: bool) -> None:
    """A frozen adapter beside the trained one: equal to it, or `neutral`, as if there were none."""
    adapter.add_adapter(name, adapter.peft_config[TRAINED])
    adapter.set_adapter(TRAINED)
    for (part, mine), theirs in zip(matrices(adapter, name).items(), matrices(adapter).values(), strict=True):
        if neutral and "lora_B" in part:
            mine.zero_()
        else:
            mine.copy_(theirs)


def matrices(adapter: PeftModel, name: str = TRAINED) -> dict[str, torch.nn.Parameter]:
    """The weights of one adapter, by names that are the same for all of them."""
    mark = f".{name}."
    return {
        key.replace(mark, "."): weight for key, weight in adapter.named_parameters() if ".lora_" in key and mark in key
    }


@contextlib.contextmanager
def using(adapter: PeftModel, name: str | None) -> Iterator[None]:
    """While entered, the model has another adapter, or none."""
    if name is None:
        with adapter.disable_adapter():
            yield
        return
    adapter.set_adapter(name)
    try:
        yield
    finally:
        adapter.set_adapter(TRAINED)


def merged_state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights of the plain model that does what model and adapter do, under the plain model's names."""
    from peft.tuners.lora import LoraLayer

    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        module, _, rest = name.partition(".base_layer.")
        if rest == "weight":
            change = layers[module].get_delta_weight(TRAINED)  # type: ignore[operator]
            tensor = tensor + change.detach().to(tensor.dtype)
        if ".lora_" not in name:
            state[f"{module}.{rest}" if rest else name] = tensor
    return state


def _refuse_shared(model: PreTrainedModel, targets: str | Sequence[str]) -> None:
    """An adapter on one of two layers that share a weight could not be merged: both would change."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    shared = {id(getattr(layer, "weight", None)) for layer in ends if layer is not None}
    if len(shared) == 1 and any(hasattr(layer, "lora_A") for layer in ends):
        raise EngineError(
            f"actor_rollout_ref.model.target_modules={targets}: this model's embedding and output layer share their "
            "weights; leave both out"
        )


@contextlib.contextmanager
def _opened(file: Path) -> Iterator:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except FileNotFoundError:
        raise EngineError(f"{file.parent}: has no {WEIGHTS}; save the adapter as safetensors") from None


def _peft():  # noqa: ANN202 (a module)
    try:
        import peft
    except ModuleNotFoundError as error:
        raise EngineError(f"LoRA needs {error.name}: pip install -r requirements/embedded.txt") from None
    return peft
