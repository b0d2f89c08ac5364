"""Checks an exported folder: opened as a user opens it, it must say what the trained weights say.

The trained side is put together in memory and never touches the exported files; with LoRA it is base plus adapter, by
peft. All arithmetic is float32 on the CPU, so that only the weights can differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
import transformers
from accelerate import init_empty_weights
from packaging.version import Version
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from grpo.verl_backend.inside.lora import Lora, peft_config
from grpo.verl_backend.inside.model_folder import tied
from grpo.verl_backend.inside.shards import MergeError, Weight

if TYPE_CHECKING:  # transformers 4 spells it otherwise
    from transformers import PreTrainedConfig

TOLERANCE = 1e-3  # of the largest logit: float32 rounding stays far below, a wrong or missing tensor far above
_TOKENS = 24
_ROOM = 1.6  # times the float32 weights: the second model is opened in its own dtype before it is widened
DTYPE = "dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype"  # an argument's name


@dataclass(frozen=True)
class Agreement:
    """In logits. difference: exported against trained; rounding: what a narrower dtype changes; largest: there is."""

    difference: float
    rounding: float
    largest: float


def empty_model(config: PreTrainedConfig, trust: bool) -> PreTrainedModel:
    """The model that `config` describes, its weights without memory. trust: run code that came with it."""
    with init_empty_weights():
        return auto_class(config).from_config(
            config, trust_remote_code=trust, attn_implementation="eager", **{DTYPE: torch.float32}
        )


def auto_class(config: PreTrainedConfig) -> Any:
    """What opens such a model for generation."""
    name = (config.architectures or [""])[0]
    return AutoModelForImageTextToText if name.endswith("ForConditionalGeneration") else AutoModelForCausalLM


def memory_missing(weights: dict[str, Weight]) -> str | None:
    """Why the check cannot be made on this machine; None when it can."""
    needed = _ROOM * 4 * sum(weight.shape.numel() for weight in weights.values())
    free = psutil.virtual_memory().available
    return None if needed < free else f"it needs {needed / 1e9:.0f} GB of memory and {free / 1e9:.0f} GB is free"


@torch.no_grad()
def compare(
    folder: Path,
    base: dict[str, Weight],
    lora: Lora | None,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    *,
    adapter: bool,
    trust: bool,
) -> Agreement:
    """Raises MergeError where `folder` does not open cleanly, or differs by more than rounding explains.

    base: the trained model, or what its adapter stands on; dtype: of the exported weights; adapter: it is all there is.
    """
    trained: Any = _filled(empty_model(config, trust), base)
    if lora:
        trained = _with_adapter(trained, lora)
    exact = _logits(trained)
    if not exact.isfinite().all():
        raise MergeError("the trained weights give logits that are not numbers: training diverged; try an earlier step")
    expected = exact
    if dtype != torch.float32:
        narrow = trained.merge_and_unload() if lora and not adapter else trained
        expected = _logits(_rounded(narrow, dtype, only="lora_" if adapter else ""))
        del narrow
    if adapter:
        got = _logits(_opened_adapter(folder, trained.unload()))
    else:
        del trained  # there may be no room for two
        got = _logits(_opened(folder, dtype, trust))
    agreement = Agreement(_gap(got, expected), _gap(expected, exact), float(expected.abs().max()))
    if not agreement.difference <= TOLERANCE * max(1.0, agreement.largest):  # `not <=`: NaN fails too
        raise MergeError(
            f"the exported model is not the trained one: its logits differ by up to {agreement.difference:.3g} "
            f"(the largest logit is {agreement.largest:.3g}); nothing was kept"
        )
    return agreement


def _filled(model: PreTrainedModel, weights: dict[str, Weight]) -> PreTrainedModel:
    tensors = {name: weight.load() for name, weight in weights.items()}
    wide = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    copies = tied(model)
    missing, unexpected = model.load_state_dict(wide, strict=False, assign=True)
    assert not unexpected
    assert set(missing) <= copies.keys()
    model.tie_weights()
    return model.eval()


def _with_adapter(model: PreTrainedModel, lora: Lora) -> Any:
    from peft import get_peft_model

    adapted = get_peft_model(model, peft_config(lora, model, None))
    parts = {name.replace(".weight", ".default.weight"): part.load().float() for name, part in lora.parts().items()}
    unexpected = adapted.load_state_dict(parts, strict=False).unexpected_keys
    if unexpected:
        raise MergeError(f"the adapter does not fit config.json, which has no layer for {min(unexpected)}")
    return adapted.eval()


def _rounded(model: Any, dtype: torch.dtype, only: str) -> Any:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and only in name:
            tensor.copy_(tensor.to(dtype))
    return model


def _opened(folder: Path, dtype: torch.dtype, trust: bool) -> PreTrainedModel:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    model, told = auto_class(config).from_pretrained(
        folder,
        attn_implementation="eager",
        trust_remote_code=trust,
        output_loading_info=True,
        **{DTYPE: "auto"},
    )
    wrong = [f"{kind}: {min(map(str, told[kind]))}" for kind in ("missing_keys", "unexpected_keys") if told.get(kind)]
    wrong += [f"mismatched_keys: {told['mismatched_keys']}"] if told.get("mismatched_keys") else []
    if model.dtype != dtype:
        wrong.append(f"it opens as {model.dtype}, its weights are {dtype}")
    if wrong:
        raise MergeError(f"the exported folder does not open as it should ({'; '.join(wrong)}); nothing was kept")
    return model.float().eval()


def _opened_adapter(folder: Path, base: PreTrainedModel) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(base, str(folder)).eval()


def _logits(model: Callable[..., Any]) -> torch.Tensor:
    config = model.config.get_text_config()  # type: ignore[attr-defined]
    tokens = (torch.arange(_TOKENS) * 37 + 11) % min(config.vocab_size, 20_000)
    return model(input_ids=tokens[None], use_cache=False).logits


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
