"""A model's shape and its weights, counted from config.json. Neither opens weights nor knows what is done with them.

Each family's count agrees with the model that transformers builds (tests: to 0.1 %). Legend: h hidden width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import ConfigError, Settings
from grpo.known_models import known_models

# Families that are built alike: (biases on queries, keys and values; norms of a layer; norms of a head's width).
_ALIKE = {
    "llama": (False, 2, False),
    "mistral": (False, 2, False),
    "mixtral": (False, 2, False),
    "qwen2": (True, 2, False),
    "qwen2_moe": (True, 2, False),
    "qwen3": (False, 2, True),
    "qwen3_moe": (False, 2, True),
    "gemma": (False, 2, False),
    "gemma2": (False, 4, False),
    "gemma3_text": (False, 4, True),
    "phi3": (False, 2, False),
}
_TIED = ("gemma", "gemma2", "gemma3_text", "gpt2", "t5", "bart")  # unless config.json says otherwise
FAMILIES = (*_ALIKE, "gpt2", "t5", "mt5", "bart", "mbart")


@dataclass(frozen=True)
class Shape:
    """Widths and weights of a model; numbers of elements, not bytes.

    inner: width inside an MLP, of all experts that one token uses; kv_width: of the keys of one token in one layer
    embedding: token embeddings and positions; head: the output layer's own weights, 0 where it is tied
    in_layers: weights of all layers; used_in_layers: those of them that one token is multiplied with (experts)
    largest: the largest single weight matrix; encoder_layers: of a model with encoder and decoder
    cross_width: like kv_width, of the keys over the encoder's tokens
    """

    family: str
    layers: int
    hidden: int
    inner: int
    query_width: int
    kv_width: int
    vocabulary: int
    embedding: int
    head: int
    in_layers: int
    used_in_layers: int
    largest: int
    encoder_layers: int = 0
    cross_width: int = 0

    @property
    def weights(self) -> int:
        """All of them; shared ones count once."""
        return self.embedding + self.head + self.in_layers

    @property
    def used(self) -> int:
        """Weights that each token is multiplied with: the layers' (of its experts) and the output layer's."""
        return self.used_in_layers + self.vocabulary * self.hidden


def read_shape(model: str, *, scratch: Mapping[str, Any] | None = None) -> Shape:
    """The shape of a model folder, of a well-known Hub id, or of a new small model. Raises ConfigError.

    scratch: the settings launcher.scratch.*, for `--model scratch`.
    """
    return shape_of(*_found(model, scratch))


def config_of(model: str, settings: Settings) -> dict[str, Any]:
    """The contents of the config.json that the shape is read from. Raises ConfigError."""
    return _found(model, scratch_of(settings))[0]


def scratch_of(settings: Settings) -> dict[str, Any]:
    """What a new small model is made of."""
    return {name: settings[f"launcher.scratch.{name}"] for name in ("hidden_size", "num_layers", "num_heads")}


def _found(model: str, scratch: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """(config.json, where it is from)."""
    if model == "scratch" and scratch is not None:
        return _scratch(scratch), "scratch"
    file = Path(model).expanduser() / "config.json"
    if file.is_file():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{file} is no JSON object; it should be a model's config.json")
        return found, str(file)
    if model in (known := known_models()):
        return known[model], model
    raise ConfigError(
        f"--model {model}: its size is not known without its config.json; give a folder that holds that file, or one "
        f"of the {len(known)} models whose sizes are known here, such as {', '.join(list(known)[:3])}"
    )


def shape_of(config: Mapping[str, Any], source: str) -> Shape:
    """The shape that a config.json describes. source: where it is from, for messages. Raises ConfigError."""
    family = str(config.get("model_type"))
    try:
        if family in _ALIKE:
            return _like_llama(config, family)
        if family == "gpt2":
            return _gpt2(config)
        if family in ("t5", "mt5"):
            return _t5(config, family)
        if family in ("bart", "mbart"):
            return _bart(config, family)
    except KeyError as missing:
        raise ConfigError(f"{source}: a {family} model's config.json needs {missing.args[0]}") from missing
    except TypeError as error:
        raise ConfigError(f"{source}: a size in it is no number ({error})") from error
    raise ConfigError(
        f"{source}: model_type {family} is none of those whose weights can be counted from config.json: "
        f"{', '.join(FAMILIES)}"
    )


def _like_llama(config: Mapping[str, Any], family: str) -> Shape:
    bias, norms, head_norms = _ALIKE[family]
    h, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    width = config.get("head_dim") or h // heads
    queries, keys = heads * width, (config.get("num_key_value_heads") or heads) * width
    bias = bool(config.get("qkv_bias", True)) if family == "qwen2_moe" else bias or bool(config.get("attention_bias"))
    attention = h * (queries + 2 * keys) + queries * h + (queries + 2 * keys if bias else 0)
    attention += h if bias and family in ("llama", "qwen3", "qwen3_moe") else 0  # those have one on the output, too
    attention += norms * h + (2 * width if head_norms else 0)
    dense = 3 * h * config["intermediate_size"] + (2 * config["intermediate_size"] + h if config.get("mlp_bias") else 0)
    routed, used, inner = _experts(config, family, h)
    sparse = sum(_is_sparse(config, family, layer) for layer in range(layers))
    embedding = config["vocab_size"] * h
    tied = config.get("tie_word_embeddings", family in _TIED)
    experts_matrix = 2 * h * config.get("moe_intermediate_size", config["intermediate_size"])
    return Shape(
        family=family,
        layers=layers,
        hidden=h,
        inner=inner if 2 * sparse > layers else config["intermediate_size"],
        query_width=queries,
        kv_width=keys,
        vocabulary=config["vocab_size"],
        embedding=embedding,
        head=0 if tied else embedding,
        in_layers=layers * attention + (layers - sparse) * dense + sparse * routed + h,
        used_in_layers=layers * attention + (layers - sparse) * dense + sparse * used + h,
        # transformers keeps the experts of a layer in one tensor
        largest=max(embedding, experts_matrix * _count(config) if sparse else 0),
    )


def _count(config: Mapping[str, Any]) -> int:
    return config.get("num_experts") or config.get("num_local_experts") or 0


def _experts(config: Mapping[str, Any], family: str, h: int) -> tuple[int, int, int]:
    """(weights of a sparse layer's experts, those that one token uses, the width of these); zeros where none are."""
    if family not in ("mixtral", "qwen2_moe", "qwen3_moe"):
        return 0, 0, 0
    one = config["intermediate_size"] if family == "mixtral" else config["moe_intermediate_size"]
    count, chosen = _count(config), config["num_experts_per_tok"]
    shared = config["shared_expert_intermediate_size"] if family == "qwen2_moe" else 0
    always = h * count + 3 * h * shared + (h if shared else 0)  # the router, the shared expert and its gate
    return 3 * h * one * count + always, 3 * h * one * chosen + always, one * chosen + shared


def _is_sparse(config: Mapping[str, Any], family: str, layer: int) -> bool:
    if family == "mixtral":
        return True
    if family not in ("qwen2_moe", "qwen3_moe") or not _count(config):
        return False
    dense = layer in (config.get("mlp_only_layers") or [])
    return not dense and (layer + 1) % (config.get("decoder_sparse_step") or 1) == 0


def _gpt2(config: Mapping[str, Any]) -> Shape:
    h, layers = config["n_embd"], config["n_layer"]
    inner = config.get("n_inner") or 4 * h
    layer = 4 * h * h + 4 * h + 2 * h * inner + inner + h + 4 * h
    embedding = config["vocab_size"] * h
    tied = config.get("tie_word_embeddings", True)
    return Shape(
        family="gpt2",
        layers=layers,
        hidden=h,
        inner=inner,
        query_width=h,
        kv_width=h,
        vocabulary=config["vocab_size"],
        embedding=embedding + config["n_positions"] * h,
        head=0 if tied else embedding,
        in_layers=layers * layer + 2 * h,
        used_in_layers=layers * layer + 2 * h,
        largest=embedding,
    )


def _t5(config: Mapping[str, Any], family: str) -> Shape:
    h, heads, inner = config["d_model"], config["num_heads"], config["d_ff"]
    layers, decoder = config["num_layers"], config.get("num_decoder_layers") or config["num_layers"]
    width = heads * config["d_kv"]
    gated = str(config.get("feed_forward_proj", "gated-gelu" if family == "mt5" else "relu")).startswith("gated")
    attention, mlp = 4 * h * width, (3 if gated else 2) * h * inner
    positions = config.get("relative_attention_num_buckets", 32) * heads
    in_layers = layers * (attention + mlp + 2 * h) + decoder * (2 * attention + mlp + 3 * h) + 2 * positions + 2 * h
    embedding = config["vocab_size"] * h
    tied = config.get("tie_word_embeddings", family in _TIED)
    return Shape(
        family=family,
        layers=decoder,
        hidden=h,
        inner=inner,
        query_width=width,
        kv_width=width,
        vocabulary=config["vocab_size"],
        embedding=embedding,
        head=0 if tied else embedding,
        in_layers=in_layers,
        used_in_layers=in_layers,
        largest=embedding,
        encoder_layers=layers,
        cross_width=width,
    )


def _bart(config: Mapping[str, Any], family: str) -> Shape:
    h, layers, decoder = config["d_model"], config["encoder_layers"], config["decoder_layers"]
    attention, norm = 4 * (h * h + h), 2 * h

    def mlp(inner: int) -> int:
        return 2 * h * inner + inner + h

    encoder = layers * (attention + mlp(config["encoder_ffn_dim"]) + 2 * norm)
    in_layers = encoder + decoder * (2 * attention + mlp(config["decoder_ffn_dim"]) + 3 * norm) + 2 * norm
    in_layers += 2 * norm if family == "mbart" else 0  # norms behind the last layers
    tokens = config["vocab_size"] * h
    tied = config.get("tie_word_embeddings", True)
    return Shape(
        family=family,
        layers=decoder,
        hidden=h,
        inner=config["decoder_ffn_dim"],
        query_width=h,
        kv_width=h,
        vocabulary=config["vocab_size"],
        embedding=tokens + 2 * (config["max_position_embeddings"] + 2) * h,
        head=0 if tied else tokens,
        in_layers=in_layers,
        used_in_layers=in_layers,
        largest=tokens,
        encoder_layers=layers,
        cross_width=h,
    )


def _scratch(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What grpo/embedded/scratch.py builds with a vocabulary of bytes: 256 of them and two marks."""
    h = settings["hidden_size"]
    return {
        "model_type": "qwen2",
        "hidden_size": h,
        "intermediate_size": 4 * h,
        "num_hidden_layers": settings["num_layers"],
        "num_attention_heads": settings["num_heads"],
        "num_key_value_heads": settings["num_heads"],
        "vocab_size": 258,
        "tie_word_embeddings": True,
    }
