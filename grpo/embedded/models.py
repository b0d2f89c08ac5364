"""Opens what the user named: a model folder or Hub id, its tokenizer, or a small new model (`scratch`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from grpo.embedded.policy import Policy
from grpo.embedded.scratch import make_model, make_tokenizer
from grpo.engine import EngineError

SCRATCH = "scratch"


def open_tokenizer(config: DictConfig, texts: Iterable[str], saved: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer of this run. texts: what a new character vocabulary must hold; saved: a checkpoint of this run."""
    model = config.actor_rollout_ref.model
    if saved is None and model.path == SCRATCH:
        return make_tokenizer(config.launcher.scratch.vocabulary, texts)
    source = str(saved) if saved else model.tokenizer_path or model.path
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=bool(model.trust_remote_code))
    except Exception as error:  # transformers raises whatever its parsers and the network raise
        raise EngineError(_unopened("tokenizer", source, error)) from error


def open_model(config: DictConfig, tokenizer: PreTrainedTokenizerBase, source: str | None = None) -> PreTrainedModel:
    """The model at `source` (default: the one the user named), weights in float32. Raises EngineError."""
    model, scratch = config.actor_rollout_ref.model, config.launcher.scratch
    source = str(source or model.path)
    if source == SCRATCH:
        return make_model(
            tokenizer,  # type: ignore[arg-type]
            hidden_size=scratch.hidden_size,
            num_layers=scratch.num_layers,
            num_heads=scratch.num_heads,
            max_length=config.data.max_prompt_length + config.data.max_response_length,
            seed=config.launcher.seed,
        )
    try:
        opened = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, trust_remote_code=bool(model.trust_remote_code)
        )
    except Exception as error:  # as above
        raise EngineError(_unopened("model", source, error)) from error
    _check_sizes(opened, tokenizer, config, source)
    return opened


def make_policy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: torch.device, dtype: torch.dtype
) -> Policy:
    """A policy whose responses end where the model's generation config or the tokenizer says. Raises EngineError."""
    ends = [model.generation_config.eos_token_id if model.generation_config else None, tokenizer.eos_token_id]
    stop_ids = sorted({i for end in ends if end is not None for i in (end if isinstance(end, list) else [end])})
    if not stop_ids:
        raise EngineError(
            "neither the tokenizer nor the model's generation_config.json names an end-of-sequence token, so no "
            "response could ever end; set eos_token in tokenizer_config.json"
        )
    pad: int = stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id  # type: ignore[assignment]
    return Policy(model, tokenizer, device, dtype, stop_ids, pad)


def _check_sizes(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: DictConfig, source: str) -> None:
    rows = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[arg-type]
    if len(tokenizer) > rows:
        raise EngineError(
            f"{source}: the tokenizer has {len(tokenizer)} tokens and the model's embedding {rows}; "
            "they do not belong together (see actor_rollout_ref.model.tokenizer_path)"
        )
    longest = getattr(model.config, "max_position_embeddings", None)
    wanted = config.data.max_prompt_length + config.data.max_response_length
    if longest is not None and wanted > longest:
        raise EngineError(
            f"{source} reads at most {longest} tokens, but --max_prompt_length {config.data.max_prompt_length} and "
            f"--max_response_length {config.data.max_response_length} make {wanted}; lower one of them"
        )


def _unopened(what: str, source: str, error: Exception) -> str:
    if Path(source).exists():
        reason = " ".join(str(error).split())
        return f"{source}: the {what} cannot be opened ({type(error).__name__}: {reason[:300]})"
    return (
        f"{source}: no such folder, and the {what} could not be fetched from the Hub ({type(error).__name__}); check "
        "the name and the network, try HF_ENDPOINT=https://hf-mirror.com, or give a local folder with --model"
    )
