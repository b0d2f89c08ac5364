"""Answers of one or two models to the same conversation, for ./train.sh chat. Leaves out the terminal.

A LoRA adapter and the model it was trained on share their weights in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerBase

from grpo.embedded import adapter
from grpo.embedded.choosing import Sampling
from grpo.embedded.encoder_decoder import EncoderDecoderPolicy
from grpo.embedded.hub import fetch
from grpo.embedded.models import check_sizes, end_turns, make_policy, read_config, read_model, read_tokenizer
from grpo.embedded.policy import Policy, choose_device, choose_dtype
from grpo.embedded.prompts import Encoder
from grpo.embedded.rollout import sample
from grpo.embedded.scoring import responses_text
from grpo.engine import EngineError

_UNLIMITED = 1 << 20  # tokens of a model whose config names no limit


@dataclass(frozen=True)
class Voice:
    """One model. longest: tokens that it reads, prompt and answer together, or each, where an encoder reads prompts."""

    name: str
    policy: Policy
    encoder: Encoder
    longest: int


@dataclass(frozen=True)
class Talk:
    """Models that answer the same messages, each in its own conversation."""

    voices: list[Voice]

    def answer(
        self, number: int, messages: Sequence[Mapping[str, str]], *, temperature: float, most: int, seed: int
    ) -> str:
        """What model `number` says next. most: tokens. Raises EngineError when the conversation is too long."""
        voice = self.voices[number]
        apart = isinstance(voice.policy, EncoderDecoderPolicy)
        if apart:  # it was made to answer one text, not to go on with its own
            messages = [*(message for message in messages if message["role"] == "system"), messages[-1]]
        prompt = voice.encoder({"prompt": messages, "data_source": "", "ground_truth": "", "extra_info": {}})
        assert prompt is not None
        room = voice.longest - (0 if apart else len(prompt.ids))
        if room < 1 or len(prompt.ids) > voice.longest:
            raise EngineError(f"{voice.name} reads {voice.longest} tokens, and the conversation has {len(prompt.ids)}")
        sampling = Sampling(n=1, max_length=min(most, room), temperature=temperature)
        rollouts = sample(voice.policy, [prompt.ids], sampling, seed=seed)
        return responses_text(voice.policy, rollouts)[0].strip()


def open_talk(
    models: Sequence[str],
    *,
    template: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust: bool = False,
) -> Talk:
    """Open model folders, adapters or Hub ids, the first one first. Raises EngineError."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    voices: list[Voice] = []
    for name in models:
        beneath = next((voice for voice in voices if _is_under(voice, name)), None)
        if beneath is not None:
            policy = dataclasses.replace(beneath.policy, part=None)
            voices.append(dataclasses.replace(beneath, name=name, policy=policy))
        else:
            voices.append(open_voice(name, template=template, device=device, dtype=dtype, trust=trust))
    return Talk(voices)


def open_voice(name: str, *, template: str | None, device: str, dtype: str, trust: bool = False) -> Voice:
    """Open one model folder, adapter or Hub id. Raises EngineError."""
    folder, base = Path(name).expanduser(), model_under(name)
    tokenizer, longest, _ = open_reader(name, trust=trust)
    model, adapted = read_model(base, trust=trust), None
    if base != name:
        adapted = adapter.attach(model, adapter.Lora(0, 0, "", base, folder), seed=0)
    where = choose_device(device)
    policy = make_policy(model, tokenizer, where, choose_dtype(dtype, where), adapted)
    whole = isinstance(policy, EncoderDecoderPolicy)
    encoder = Encoder(tokenizer, template=template, max_length=_UNLIMITED, truncation="error", whole=whole)
    end_turns(policy)
    return Voice(name, policy, encoder, longest)


def open_reader(name: str, *, trust: bool = False) -> tuple[PreTrainedTokenizerBase, int, bool]:
    """The tokenizer of a model or adapter, how many tokens the model reads, and whether an encoder reads the prompts,
    which then take none of the answer's; opens no weights, but fetches what is on the Hub. Raises EngineError."""
    folder, base = Path(name).expanduser(), model_under(name)
    fetch(base, functools.partial(print, file=sys.stderr), code=trust)
    own = base == name or any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json"))
    tokenizer, found = read_tokenizer(name if own else base, trust=trust), read_config(base, trust=trust)
    check_sizes(found, tokenizer, (0, 0), name)
    longest = getattr(found.get_text_config(), "max_position_embeddings", None) or _UNLIMITED
    return tokenizer, longest, bool(found.is_encoder_decoder)


def model_under(name: str) -> str:
    """The model under an adapter's folder; anything else is a model itself."""
    folder = Path(name).expanduser()
    is_adapter = (folder / adapter.CONFIG).is_file() and not (folder / "config.json").is_file()
    return _base_of(folder) if is_adapter else name


def _is_under(voice: Voice, name: str) -> bool:
    """Whether `name` is the model under the adapter of `voice`."""
    if voice.policy.adapter is None:
        return False
    base, folder = _base_of(Path(voice.name).expanduser()), Path(name).expanduser()
    return base == name or (folder.is_dir() and Path(base).is_dir() and folder.samefile(base))


def _base_of(folder: Path) -> str:
    base = json.loads((folder / adapter.CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not base:
        raise EngineError(f"{folder}: the adapter does not name the model it was trained on")
    return str(base)
