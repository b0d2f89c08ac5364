"""What rules.py asks about the model and its adapter, from the settings and the JSON files of the named folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from grpo.config import Settings
from grpo.values import shown

PART = "actor_rollout_ref.model"
MODEL, TOKENIZER, TEMPLATE = f"{PART}.path", f"{PART}.tokenizer_path", f"{PART}.custom_chat_template"
RANK, ALPHA, TARGETS, ADAPTER = (
    f"{PART}.{name}" for name in ("lora_rank", "lora_alpha", "target_modules", "lora_adapter_path")
)
RATE, QLORA = "actor_rollout_ref.actor.optim.lr", "launcher.qlora"
HALVES = "launcher.encoder_decoder"
EXPORT = {
    "launcher.export.dtype": ("float32", "bfloat16", "float16"),
    "launcher.export.lora": ("merge", "adapter"),
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")


def model_problems(settings: Settings) -> Iterator[str]:
    """What cannot be, one line each."""
    yield from _model(settings)
    yield from _encoder(settings)
    yield from _lora(settings)


def model_warnings(settings: Settings) -> Iterator[str]:
    """What runs, but hardly as meant; one line each."""
    if settings[HALVES] and not settings["launcher.sft.steps"]:
        yield (
            f"{_said(settings, HALVES)}: the decoder's attention to the encoder is new, and knows nothing of the "
            "prompt yet: show it answers first, --sft_warmup N --sft_data FILE"
        )
    if not settings[RANK]:
        for key in (ALPHA, TARGETS):
            if settings.by_user(key):
                yield f"{_said(settings, key)} changes nothing: {_said(settings, RANK)} trains all weights"
    elif settings.origins[RATE] == "default":
        # https://github.com/huggingface/trl/issues/2872: at the rate of full training, LoRA hardly moves
        yield (
            f"{_said(settings, RANK)} with the learning rate of full training, {shown(settings[RATE])}: LoRA usually "
            f"wants ten times more, --lr {shown(float(f'{10 * settings[RATE]:.3g}'))}"
        )


def is_local(model: str) -> bool:
    """A path on this machine, rather than a Hub id (ORG/NAME or NAME)."""
    there = Path(model).expanduser().exists()
    return there or model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model


def _said(settings: Settings, key: str) -> str:
    return f"{key}={shown(settings[key])} ({settings.origins[key]})"


def _model(settings: Settings) -> Iterator[str]:
    model, origin = settings[MODEL], settings.origins[MODEL]
    if model == "scratch":
        hidden, heads = settings["launcher.scratch.hidden_size"], settings["launcher.scratch.num_heads"]
        if hidden >= 1 and heads >= 1 and hidden % (2 * heads):
            origin = settings.origins["launcher.scratch.hidden_size"]
            yield (
                f"launcher.scratch.hidden_size={hidden} ({origin}) must be a multiple of 2 x num_heads = {2 * heads}; "
                f"take {max(1, hidden // (2 * heads)) * 2 * heads}"
            )
        return
    if not model or not is_local(str(model)):
        return
    folder = Path(model).expanduser()
    if folder.is_file():
        yield f"{MODEL}={model} ({origin}) is a file; name the folder that holds config.json and the weights"
    elif not folder.is_dir():
        yield f"{MODEL}={model} ({origin}): no such folder; give a model folder, or a Hub id such as Qwen/Qwen2.5-0.5B"
    elif not (folder / "config.json").is_file():
        adapter = (folder / "adapter_config.json").is_file()
        why = (
            f"is a LoRA adapter: start from it with --init_from {model}"
            if adapter
            else "has no config.json: not a model folder; to start from a run's folder: --init_from"
        )
        yield f"{MODEL}={model} ({origin}) {why}"
    elif settings[TOKENIZER] is None and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield f"{MODEL}={model} ({origin}) has no tokenizer; name one with {TOKENIZER}=PATH"


def _encoder(settings: Settings) -> Iterator[str]:
    """Of models with an encoder and a decoder."""
    if settings[HALVES] and settings[MODEL] == "scratch":
        yield f"{_said(settings, HALVES)}: take launcher.scratch.architecture=t5 for a new model of that kind"
    if settings[HALVES] and (settings[RANK] or settings[QLORA]):
        yield (
            f"{_said(settings, HALVES)}: the decoder's attention to the encoder is new and has to be trained as a "
            f"whole; leave {RANK if settings[RANK] else QLORA} out"
        )
    system = "launcher.data.system"
    if settings[system] and settings[TEMPLATE] is None and _reads_one_text(Path(str(settings[MODEL])).expanduser()):
        yield (
            f"{_said(settings, system)}: {settings[MODEL]} has an encoder and no chat template, and so no place for a "
            "system prompt; put it into the prompts, or give --prompt_template"
        )


def _reads_one_text(folder: Path) -> bool:
    """Whether the folder's files say that it has an encoder and no chat template."""
    if (folder / "chat_template.jinja").is_file():
        return False
    try:
        model, tokenizer = (
            json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "tokenizer_config.json")
        )
    except (OSError, ValueError):  # what is missing or broken is said elsewhere
        return False
    return bool(model.get("is_encoder_decoder")) and not tokenizer.get("chat_template")


def _lora(settings: Settings) -> Iterator[str]:
    if settings[RANK] and settings[MODEL] == "scratch":
        yield (
            f"{_said(settings, RANK)}: a new small model has nothing that an adapter could start from; leave LoRA out, "
            "or name a trained model with --model"
        )
    if settings[ADAPTER] is not None:
        folder = Path(settings[ADAPTER]).expanduser()
        if not (folder / "adapter_config.json").is_file():
            yield f"{_said(settings, ADAPTER)}: no adapter_config.json there; name the folder of a LoRA adapter"
        elif not settings[RANK]:
            yield f"{_said(settings, ADAPTER)} is trained on as LoRA, and {_said(settings, RANK)}; leave lora_rank out"
    for key, choices in EXPORT.items():
        if settings[key] is not None and settings[key] not in choices:
            yield f"{_said(settings, key)} is none of {', '.join(choices)}"
    if settings[QLORA] is None:
        return
    if settings[QLORA] not in (4, 8):
        yield f"{_said(settings, QLORA)} is none of 4, 8"
    if not settings[RANK]:
        yield f"{_said(settings, QLORA)} keeps the weights under an adapter small: it needs --lora_rank"
    if settings["launcher.export.lora"] == "merge":
        yield (
            f"{_said(settings, QLORA)}: rounded weights are not the model to merge into; "
            "set launcher.export.lora=adapter"
        )
