"""A small model and its tokenizer, made here from a config: no download, any language.

The model is a decoder (Qwen2's architecture), or an encoder and a decoder (T5's).

The tokenizer is Qwen2's byte-level one, so that transformers and vLLM open the folder as they open any Qwen model.
`vocabulary="bytes"` has a token for every byte (a Chinese character is three); `"characters"` has one more for every
character of the texts it is shown, which a tiny model learns from faster; `"words"` one for every piece of a word that
is frequent in them, which makes texts several times shorter.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from grpo.engine import EngineError

MOST_WORDS = 4096  # tokens of the vocabulary `words`
PAD, END = "<|endoftext|>", "<|im_end|>"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def make_tokenizer(vocabulary: str, texts: Iterable[str] = ()) -> Qwen2Tokenizer:
    """A tokenizer that reads any text. vocabulary: `bytes`, or `characters` or `words` (those of `texts`)."""
    if vocabulary == "words":
        made = make_tokenizer("bytes").train_new_from_iterator(texts, vocab_size=MOST_WORDS, show_progress=False)
        made.chat_template = TEMPLATE
        return made  # type: ignore[return-value]
    if vocabulary not in ("bytes", "characters"):
        raise EngineError(f"launcher.scratch.vocabulary={vocabulary}: bytes, characters or words")
    words = dict.fromkeys([PAD, END, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    merges: dict[tuple[str, str], None] = {}
    characters = {character for text in texts for character in text} if vocabulary == "characters" else set()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for character in sorted(characters):
        ((letters, _),) = to_bytes.pre_tokenize_str(character)  # a letter for each of its bytes
        for end in range(1, len(letters)):
            merges[letters[:end], letters[end]] = None
            words[letters[: end + 1]] = None
    tokenizer = Qwen2Tokenizer(
        vocab={word: number for number, word in enumerate(words)},
        merges=list(merges),  # type: ignore[arg-type]
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(
    tokenizer: PreTrainedTokenizerBase, *, hidden_size: int, num_layers: int, num_heads: int, max_length: int, seed: int
) -> PreTrainedModel:
    """Random weights from `seed`, in float32. max_length: prompt and response together, in tokens."""
    if hidden_size % num_heads or (hidden_size // num_heads) % 2:
        raise EngineError(
            f"launcher.scratch.hidden_size={hidden_size} does not split into {num_heads} heads of even width; "
            f"try launcher.scratch.num_heads={max(1, hidden_size // 32)}"
        )
    pad_id, end_id = (int(tokenizer.convert_tokens_to_ids(word)) for word in (PAD, END))  # type: ignore[arg-type]
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        pad_token_id=pad_id,
        bos_token_id=None,
        eos_token_id=end_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(pad_token_id=pad_id, eos_token_id=end_id, do_sample=True)
    return model


def make_encoder_decoder(
    tokenizer: PreTrainedTokenizerBase, *, hidden_size: int, num_layers: int, num_heads: int, seed: int
) -> PreTrainedModel:
    """Random weights of a T5 from `seed`, in float32. num_layers: of the encoder, and of the decoder."""
    pad_id, end_id = (int(tokenizer.convert_tokens_to_ids(word)) for word in (PAD, END))  # type: ignore[arg-type]
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=hidden_size,
        d_kv=hidden_size // num_heads,
        d_ff=4 * hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        dropout_rate=0.0,
        pad_token_id=pad_id,
        eos_token_id=end_id,
        decoder_start_token_id=pad_id,  # type: ignore[call-arg]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config).float()
    model.generation_config = GenerationConfig(
        pad_token_id=pad_id, eos_token_id=end_id, decoder_start_token_id=pad_id, do_sample=True
    )
    return model
