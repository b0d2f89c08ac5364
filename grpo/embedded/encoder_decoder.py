"""A policy whose model has an encoder and a decoder: the prompt goes into the one, the response out of the other.

T5, BART, mT5, Pegasus and what else transformers opens with AutoModelForSeq2SeqLM. The encoder runs once per group,
its states are repeated for the n responses, and gradients of all of them meet in it. What differs from a causal model
is here, in Policy's own methods; sampling, rewards, advantages, update and report are the same.
Legend: P prompts, n responses each, B = P * n, L prompt tokens, R response tokens, V vocabulary, H width.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    DynamicCache,
    EncoderDecoderCache,
    EncoderDecoderModel,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from grpo.embedded.cache import GrowingLayer
from grpo.embedded.decoding import CachedDecoding
from grpo.embedded.policy import Policy, read_logits
from grpo.engine import EngineError

if TYPE_CHECKING:
    from grpo.embedded.decoding import Decoding


class EncoderDecoderPolicy(Policy):
    """See Policy. beginning: the decoder's first tokens, which every response follows and none contains."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beginning = decoder_beginning(self.model)

    @property
    def packs(self) -> bool:
        """Never: there is no row that holds prompt and response."""
        return False

    def open_decoding(
        self, ids: torch.Tensor, mask: torch.Tensor, n: int, max_new: int, *, longest: int | None = None
    ) -> Decoding:
        """As Policy says; the encoder runs once per group. Raises EngineError where the decoder is too short."""
        positions = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if positions is not None and len(self.beginning) - 1 + max_new > positions:
            raise EngineError(
                f"the decoder has {positions} positions, {len(self.beginning) - 1} of them before the response: "
                f"--max_response_length {max_new} is too long"
            )
        return _Decoding(self, ids, mask, n)

    def encode(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The encoder's states of the prompts, [P, L, H], and their mask [P, L]. ids, mask: [P, L], left-padded.

        Padding goes to the right first: absolute positions (BART's) count from the left edge, whatever the mask says.
        """
        ids, mask = _padded_right(ids, mask)
        return self.model.get_encoder()(input_ids=ids, attention_mask=mask, use_cache=False)[0], mask

    def log_probs(
        self,
        prompt_ids: torch.Tensor,
        prompt_mask: torch.Tensor,
        response_ids: torch.Tensor,
        response_mask: torch.Tensor,
        *,
        temperature: float,
        entropy: str | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As Policy says: log_prob and entropy of every response token, [B, R] each, the decoder reading them all at
        once behind its beginning."""
        n, width = len(response_ids) // len(prompt_ids), response_ids.shape[1]
        with self.arithmetic(), self.recomputing():
            states, mask = self.encode(prompt_ids, prompt_mask)
            first = response_ids.new_tensor(self.beginning).expand(len(response_ids), -1)
            logits = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states.repeat_interleave(n, 0)),  # type: ignore[arg-type]
                attention_mask=mask.repeat_interleave(n, 0),
                decoder_input_ids=torch.cat([first, response_ids[:, :-1]], 1),
                use_cache=False,
            ).logits[:, -width:]  # [B, R, V]
        return read_logits(logits, response_ids, temperature=temperature, entropy=entropy)


class _Decoding(CachedDecoding):
    """The decoder token by token. The encoder's states are read in the first step only, which caches what the decoder
    attends to."""

    def __init__(self, policy: EncoderDecoderPolicy, ids: torch.Tensor, mask: torch.Tensor, n: int) -> None:
        self._model = policy.model
        self._states, self._mask = policy.encode(ids, mask)
        own, across = DynamicCache(), DynamicCache()
        own.layer_class_to_replicate = GrowingLayer
        self._cache = EncoderDecoderCache(own, across)
        self._run(ids.new_tensor(policy.beginning).expand(len(ids), -1))
        self._cache.batch_repeat_interleave(n)
        self._mask, self.logits = self._mask.repeat_interleave(n, 0), self.logits.repeat_interleave(n, 0)
        self._states = self._states[:1]  # from here on their shape alone is looked at

    def step(self, tokens: torch.Tensor) -> None:
        """As Decoding says."""
        self._run(tokens[:, None])

    def _run(self, tokens: torch.Tensor) -> None:
        states = self._states.expand(len(tokens), -1, -1)
        self.logits = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),  # type: ignore[arg-type]
            attention_mask=self._mask,
            decoder_input_ids=tokens,
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]


def freeze_unused(model: PreTrainedModel) -> None:
    """Take out of training what no gradient reaches: tables of sine waves (Pegasus, Marian) and a pooler (BERT's)."""
    for name, module in model.named_modules():
        if "Sinusoidal" in type(module).__name__ or name.endswith("pooler"):
            module.requires_grad_(False)


def joined(source: str, found: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> PreTrainedModel:
    """A decoder-only model turned into an encoder and a decoder: both begin with its weights, and the decoder's
    attention to the encoder is new (Rothe et al. 2020, arXiv 1907.12461). Raises EngineError.
    """
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(found), None)
    if kind is None or "encoder_hidden_states" not in inspect.signature(kind.forward).parameters:  # type: ignore[union-attr]
        raise EngineError(
            f"launcher.encoder_decoder: {found.model_type} models have no attention to an encoder; GPT-2 and "
            "GPT-BigCode have, or name an encoder-decoder model with --model (T5, BART)"
        )
    end = tokenizer.eos_token_id
    start = next((token for token in (tokenizer.bos_token_id, end) if token is not None), None)
    if start is None:
        raise EngineError(f"launcher.encoder_decoder: the tokenizer of {source} names no end, set its eos_token")
    folder = str(Path(source).expanduser())
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        model = EncoderDecoderModel.from_encoder_decoder_pretrained(folder, folder)
    pad = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    tokens = {"decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": pad}
    model.config.update(tokens)
    model.generation_config = GenerationConfig(**tokens)
    freeze_unused(model)
    return model.float()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' list of the weights that are new, which model_rules.py says in a line."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def decoder_beginning(model: PreTrainedModel) -> list[int]:
    """The tokens before every response: decoder_start_token_id, then forced_bos_token_id where there is one (BART's
    <s>, mBART's language). Raises EngineError where no start is named."""
    found = []
    for name in ("decoder_start_token_id", "forced_bos_token_id"):
        said = [getattr(settings, name, None) for settings in (model.generation_config, model.config)]
        token = next((number for number in said if number is not None), None)
        if token is not None:
            found.append(int(token))
        elif not found:
            raise EngineError(
                "neither generation_config.json nor config.json names a decoder_start_token_id, the token that the "
                "decoder begins with; set it in config.json to what the model was trained with"
            )
    return found


def check_fits(
    found: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, lengths: tuple[int, int], source: str
) -> None:
    """Raise EngineError where tokens or positions fit neither half. lengths: of prompt and response."""
    nested = isinstance(getattr(found, "encoder", None), PreTrainedConfig)
    halves = (found.encoder, found.decoder) if nested else (found, found)
    rows = [getattr(half, "vocab_size", None) for half in halves]
    if rows[0] != rows[1]:
        raise EngineError(
            f"{source}: its encoder has {rows[0]} tokens and its decoder {rows[1]}; one tokenizer reads prompts and "
            "writes responses here, so take a model whose halves share a vocabulary"
        )
    if rows[0] is not None and len(tokenizer) > rows[0]:
        raise EngineError(
            f"{source}: the tokenizer has {len(tokenizer)} tokens and the model's embedding {rows[0]}; "
            "they do not belong together (see actor_rollout_ref.model.tokenizer_path)"
        )
    names = (("encoder", "--max_prompt_length"), ("decoder", "--max_response_length"))
    for half, (part, flag), wanted in zip(halves, names, lengths, strict=True):
        longest = getattr(half, "max_position_embeddings", None)
        if longest is not None and wanted > longest:
            raise EngineError(f"{source}: its {part} has {longest} positions; {flag} {wanted} is over them, lower it")


def _padded_right(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded rows with their padding behind them."""
    order = (1 - mask).argsort(dim=1, stable=True)
    return ids.gather(1, order), mask.gather(1, order)
