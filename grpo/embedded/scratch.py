"""A small Qwen2-architecture model and its tokenizer, made here from a config: no download, any language.

`vocabulary="bytes"` reads any text (a Chinese character is three tokens); `"characters"` knows the characters it is
shown, one token each, which is what a tiny model learns from fastest.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from grpo.engine import EngineError

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def make_tokenizer(vocabulary: str, texts: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer over bytes, or over the characters of `texts` (then a character never seen is `<|unknown|>`)."""
    if vocabulary == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab=_numbered([PAD, END, *alphabet]), merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    elif vocabulary == "characters":
        alphabet = sorted({character for text in texts for character in text} | {"\n"})
        words = _numbered([PAD, END, UNKNOWN, *alphabet])
        tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        raise EngineError(f"launcher.scratch.vocabulary={vocabulary}: bytes or characters")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    wrapped.chat_template = TEMPLATE
    return wrapped


def make_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, num_layers: int, num_heads: int, max_length: int, seed: int
) -> PreTrainedModel:
    """Random weights from `seed`, in float32. max_length: prompt and response together, in tokens."""
    if hidden_size % num_heads or (hidden_size // num_heads) % 2:
        raise EngineError(
            f"launcher.scratch.hidden_size={hidden_size} does not split into {num_heads} heads of even width; "
            f"try launcher.scratch.num_heads={max(1, hidden_size // 32)}"
        )
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, do_sample=True
    )
    return model


def _numbered(words: Iterable[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(words)}
