"""Opens what the user named: a model folder or Hub id, its tokenizer, its adapter, or a small new model (`scratch`).

What the model's config tells is checked before its weights are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo.embedded import adapter, encoder_decoder
from grpo.embedded.encoder_decoder import EncoderDecoderPolicy
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import turn_end
from grpo.embedded.scratch import make_encoder_decoder, make_model, make_tokenizer
from grpo.engine import EngineError

SCRATCH = "scratch"


def open_tokenizer(config: DictConfig, texts: Iterable[str], saved: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer of this run. texts: what a new character vocabulary must hold; saved: a checkpoint of this run."""
    model = config.actor_rollout_ref.model
    if saved is None and model.path == SCRATCH:
        return make_tokenizer(config.launcher.scratch.vocabulary, texts)
    return read_tokenizer(str(saved) if saved else model.tokenizer_path or model.path, trust=model.trust_remote_code)


def read_tokenizer(source: str, *, trust: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder or on the Hub. trust: run Python code that comes with it. Raises EngineError."""
    try:
        return AutoTokenizer.from_pretrained(str(Path(source).expanduser()), trust_remote_code=bool(trust))
    except Exception as error:  # transformers raises whatever its parsers and the network raise
        raise EngineError(_unopened("tokenizer", source, error)) from error


def open_model(config: DictConfig, tokenizer: PreTrainedTokenizerBase, source: str | None = None) -> PreTrainedModel:
    """The model at `source` (default: the one the user named), weights in float32. Raises EngineError."""
    model, scratch = config.actor_rollout_ref.model, config.launcher.scratch
    source = str(source or model.path)
    if source == SCRATCH:
        shape = {name: int(scratch[name]) for name in ("hidden_size", "num_layers", "num_heads")}
        if scratch.architecture == "t5":
            return make_encoder_decoder(tokenizer, **shape, seed=config.launcher.seed)
        longest = config.data.max_prompt_length + config.data.max_response_length
        return make_model(tokenizer, **shape, max_length=longest, seed=config.launcher.seed)
    trust = bool(model.trust_remote_code)
    found = read_config(source, trust=trust)
    lengths = (int(config.data.max_prompt_length), int(config.data.max_response_length))
    turned = config.launcher.encoder_decoder and not found.is_encoder_decoder
    (encoder_decoder.check_fits if turned else check_sizes)(found, tokenizer, lengths, source)
    if start := _start(config):
        adapter.check_fits(start, _skeleton(found, trust), source)
    if turned:
        opened = encoder_decoder.joined(source, found, tokenizer, seed=int(config.launcher.seed))
    else:
        opened = read_model(source, trust=trust, bits=config.launcher.qlora, device=config.trainer.device)
    rows = int(opened.get_input_embeddings().weight.shape[0])  # type: ignore[arg-type]
    _check_vocabulary(rows, tokenizer, source)
    return opened


def read_config(source: str, *, trust: bool = False) -> PreTrainedConfig:
    """A model's config.json, without its weights. Raises EngineError."""
    try:
        return AutoConfig.from_pretrained(str(Path(source).expanduser()), trust_remote_code=trust)
    except Exception as error:  # as above
        raise EngineError(_unopened("model", source, error)) from error


def read_model(source: str, *, trust: bool = False, bits: int | None = None, device: str = "auto") -> PreTrainedModel:
    """A causal or encoder-decoder model in float32. bits: 4 or 8 quantizes its layers for QLoRA. Raises EngineError."""
    more: dict[str, Any] = {}
    if bits:
        where = "cuda" if torch.cuda.is_available() and device != "cpu" else "cpu"
        compute = torch.bfloat16 if where == "cuda" else torch.float32
        four = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": compute}
        quantized = (
            BitsAndBytesConfig(load_in_4bit=True, **four) if bits == 4 else BitsAndBytesConfig(load_in_8bit=True)
        )
        more = {"quantization_config": quantized, "device_map": {"": where}}
    try:
        opened = _kind(read_config(source, trust=trust)).from_pretrained(
            str(Path(source).expanduser()), dtype=torch.float32, trust_remote_code=trust, **more
        )
    except EngineError:
        raise
    except Exception as error:  # as above
        raise EngineError(_unopened("model", source, error)) from error
    if getattr(opened, "_is_stateful", False):
        raise EngineError(
            f"{source}: {opened.config.model_type} models keep a running state instead of a cache, which the embedded "
            "engine cannot sample with; take a transformer, or try --engine verl"
        )
    if opened.config.is_encoder_decoder:
        encoder_decoder.freeze_unused(opened)
    return opened


def attach_adapter(config: DictConfig, model: PreTrainedModel, saved: Path | None) -> Any:
    """peft's view of the model with the adapter that is trained; None where all weights are. saved: a checkpoint."""
    wanted = config.actor_rollout_ref.model
    if not wanted.lora_rank:
        return None
    targets = OmegaConf.to_container(wanted.target_modules) if OmegaConf.is_list(wanted.target_modules) else None
    folder = Path(wanted.path).expanduser()
    lora = adapter.Lora(
        rank=int(wanted.lora_rank),
        alpha=int(wanted.lora_alpha),
        targets=targets or wanted.target_modules,  # type: ignore[arg-type]
        base=str(folder.absolute()) if folder.is_dir() else wanted.path,
        start=_start(config),
    )
    return adapter.attach(model, lora, seed=int(config.launcher.seed), saved=saved)


def make_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    dtype: torch.dtype,
    adapted: Any = None,
) -> Policy:
    """A policy whose responses end where the model's generation config or the tokenizer says. Raises EngineError.

    adapted: peft's view of the model, where LoRA is trained.
    """
    ends = [model.generation_config.eos_token_id if model.generation_config else None, tokenizer.eos_token_id]
    stop_ids = sorted({i for end in ends if end is not None for i in (end if isinstance(end, list) else [end])})
    if not stop_ids:
        raise EngineError(
            "neither the tokenizer nor the model's generation_config.json names an end-of-sequence token, so no "
            "response could ever end; set eos_token in tokenizer_config.json"
        )
    pad: int = stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id  # type: ignore[assignment]
    kind = EncoderDecoderPolicy if model.config.is_encoder_decoder else Policy
    return kind(model, tokenizer, device, dtype, stop_ids, pad, adapted)


def end_turns(policy: Policy) -> list[str]:
    """Let responses end, too, where the chat template ends a turn; a line for the user where nothing else says so.

    A base model's tokenizer often names another token as its end, which an answer in this template never reaches.
    """
    end = turn_end(policy.tokenizer)
    if end is None:
        return []
    known = end in policy.stop_ids
    policy.stop_ids = [end, *(stop for stop in policy.stop_ids if stop != end)]
    if known:
        return []
    word, eos = policy.tokenizer.convert_ids_to_tokens(end), policy.tokenizer.eos_token
    return [f"the chat template ends a turn with {word}, the tokenizer calls {eos} its end: responses end at either"]


def check_sizes(
    found: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, lengths: tuple[int, int], source: str
) -> None:
    """Raise EngineError where tokens or positions do not fit the model. lengths: of prompt and response."""
    if found.is_encoder_decoder:
        encoder_decoder.check_fits(found, tokenizer, lengths, source)
        return
    text = found.get_text_config()
    if (rows := getattr(text, "vocab_size", None)) is not None:
        _check_vocabulary(rows, tokenizer, source)
    longest, wanted = getattr(text, "max_position_embeddings", None), sum(lengths)
    if longest is not None and wanted > longest:
        raise EngineError(
            f"{source} reads at most {longest} tokens, but --max_prompt_length {lengths[0]} and "
            f"--max_response_length {lengths[1]} make {wanted}; lower one of them"
        )


def _check_vocabulary(rows: int, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    if len(tokenizer) > rows:
        raise EngineError(
            f"{source}: the tokenizer has {len(tokenizer)} tokens and the model's embedding {rows}; "
            "they do not belong together (see actor_rollout_ref.model.tokenizer_path)"
        )


def _kind(found: PreTrainedConfig) -> Any:
    return AutoModelForSeq2SeqLM if found.is_encoder_decoder else AutoModelForCausalLM


def _start(config: DictConfig) -> Path | None:
    path = config.actor_rollout_ref.model.lora_adapter_path
    return Path(path).expanduser() if path and config.actor_rollout_ref.model.lora_rank else None


def _skeleton(found: PreTrainedConfig, trust: bool) -> PreTrainedModel:
    """The model's layers and their shapes, without memory for its weights."""
    with torch.device("meta"):
        return _kind(found).from_config(found, trust_remote_code=trust)


def _unopened(what: str, source: str, error: Exception) -> str:
    if Path(source).expanduser().exists():
        reason = " ".join(str(error).split())
        return f"{source}: the {what} cannot be opened ({type(error).__name__}: {reason[:300]})"
    return (
        f"{source}: no such folder, and the {what} could not be fetched from the Hub ({type(error).__name__}); check "
        "the name and the network, try HF_ENDPOINT=https://hf-mirror.com, or give a local folder with --model"
    )
