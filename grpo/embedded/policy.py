"""The policy: a causal language model, its tokenizer, where it computes and in which precision.

Weights stay float32 (they are what the optimizer adds 1e-6 steps to); `dtype` is the precision of the arithmetic.
Dropout is off everywhere, so that the probabilities of sampling and of the update are the same function.
Legend: P prompts, n responses each, B = P * n, L prompt tokens (left-padded), R response tokens (right-padded).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo.algorithm import entropy_of, log_probs_of
from grpo.embedded import llama_reading, packing
from grpo.embedded.adapter import TRAINED, matrices, using
from grpo.embedded.cache import growing_cache
from grpo.embedded.decoding import CachedDecoding, Decoding
from grpo.embedded.lanes import lanes_of
from grpo.embedded.llama_decoding import LlamaDecoding
from grpo.embedded.llama_like import can_be_read_out, can_be_written_out
from grpo.embedded.packing import (
    Layout,
    NotExact,
    lay_out,
    packed_log_probs,
    probe_batch,
    recompute_contexts,
    window_of,
)
from grpo.engine import EngineError

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass
class Policy:
    """A model and all that is needed to run it.

    stop_ids: tokens that end a response, first the one that a demonstration ends with
    adapter: peft's view of the model, where LoRA is trained
    part: which of its adapters is this policy's, None = none of them
    in_lanes: whether its work is shared out among threads where that pays (lanes.py)
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    stop_ids: list[int]
    pad_id: int
    adapter: PeftModel | None = None
    part: str | None = TRAINED
    in_lanes: bool = True

    def __post_init__(self) -> None:
        if not getattr(self.model, "is_quantized", False):  # which is where it was loaded
            self.model.to(self.device)  # type: ignore[arg-type]
        self.model.eval()
        for layer in self.model.modules():
            if type(layer).__name__ == "Linear4bit":  # in evaluation mode it repacks itself on a CPU,
                layer.training = True  # and from then on bitsandbytes passes no gradient through it
        self._recomputed: list[torch.nn.Module] = []
        self._packs: bool | None = None  # not tried yet
        self._read = packing.read_row
        self._writes_out: bool | None = None  # likewise
        self._window = window_of(self.model)
        self._last_logits_only = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """The context in which to run the model: with this policy's adapter, autocast where `dtype` is not float32."""
        with contextlib.ExitStack() as stack:
            if self.adapter is not None and self.part != TRAINED:
                stack.enter_context(using(self.adapter, self.part))
            if self.dtype != torch.float32:
                stack.enter_context(torch.autocast(self.device.type, dtype=self.dtype))
            yield

    def own(self) -> dict[str, torch.nn.Parameter]:
        """The weights in which this policy and its copies differ, by the same names."""
        if self.adapter is None:
            return dict(self.model.named_parameters())
        return {} if self.part is None else matrices(self.adapter, self.part)

    def trained(self) -> list[torch.nn.Parameter]:
        """The weights that training changes."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def recompute_activations(self) -> None:
        """From now on recompute the layers' activations in the backward pass instead of keeping them."""
        contexts = functools.partial(recompute_contexts, self.model)
        self.model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
        self._recomputed = [layer for layer in self.model.modules() if isinstance(layer, GradientCheckpointingLayer)]
        for layer in self._recomputed:  # the dropout of the layer itself; that of its parts stays in evaluation mode
            for name, value in vars(layer).items():
                if "dropout" in name and isinstance(value, float):
                    setattr(layer, name, 0.0)

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[bool]:
        """While a gradient is wanted: transformers recomputes in training mode only, and then keeps no KV cache."""
        wanted = bool(self._recomputed) and torch.is_grad_enabled()
        for layer in self._recomputed:
            layer.training = wanted
        try:
            yield wanted
        finally:
            for layer in self._recomputed:
                layer.training = False

    def read_prompts(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, DynamicCache]:
        """Run the prompts once. ids, mask: [P, L]. Returns the logits after the prompt [P, V] and the KV cache."""
        make = DynamicCache if torch.is_grad_enabled() else growing_cache
        cache = make(config=self.model.config)
        only_last = {"logits_to_keep": 1} if self._last_logits_only else {}
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self.model(
            ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, **only_last
        )
        return out.logits[:, -1], cache

    def open_decoding(
        self, ids: torch.Tensor, mask: torch.Tensor, n: int, max_new: int, *, longest: int | None = None
    ) -> Decoding:
        """Begin n responses of at most max_new tokens to each prompt. ids, mask: [P, L], left-padded.

        A prompt is run once for its whole group. longest: prompt that may be admitted later, in tokens; None = L.
        Within arithmetic(), without gradients.
        """
        longest = longest or ids.shape[1]
        if max(longest + max_new, 8) <= self._window and self.writes_out:  # 8: what the try takes
            return LlamaDecoding(self, ids, mask, n, max_new, longest=longest)
        return CachedDecoding(self, ids, mask, n)

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
        """log_prob and entropy of every response token, [B, R] each, in float32; padding holds finite rubbish.

        entropy: None = not wanted, "metric" = without gradient, "loss" = with it.

        prompt_ids, prompt_mask: [P, L]; response_ids, response_mask: [B, R], a prompt's n responses side by side.
        A prompt is run once for its whole group, in the backward pass too, wherever the model's cache allows it. Where
        the model can be packed, nothing is computed for padding, and a response with an empty mask costs nothing.
        """
        n, packs = len(response_ids) // len(prompt_ids), self.packs
        with self.arithmetic(), self.recomputing() as recomputing:
            if packs:
                layout = lay_out(prompt_ids, prompt_mask, response_ids, response_mask)
                if layout.longest <= self._window:
                    how: dict[str, Any] = {"temperature": temperature, "entropy": entropy}
                    how["read"] = packing.read_row if recomputing else self._read
                    return packed_log_probs(self.model, layout, response_ids.shape, **how)
            if n > 1 and not recomputing and self._can_share_prompts():
                logits = self._logits_shared(prompt_ids, prompt_mask, response_ids, response_mask, n)
            else:
                logits = self._logits_plain(prompt_ids, prompt_mask, response_ids, response_mask, n)
        return read_logits(logits, response_ids, temperature=temperature, entropy=entropy)

    @property
    def lanes(self) -> int:
        """Threads of Python that its work is shared out among at most (lanes.py): of what is written out, no less."""
        most = lanes_of(self) if self.in_lanes and not self._recomputed else 1  # what it costs to ask comes last
        return most if most == 1 or (self.packs and self._read is llama_reading.read_row and self.writes_out) else 1

    @property
    def writes_out(self) -> bool:
        """Whether its decoding is written out; tried once."""
        if self._writes_out is None:
            with self.arithmetic(), torch.no_grad():
                self._writes_out = can_be_written_out(self)
        return self._writes_out

    @property
    def packs(self) -> bool:
        """Whether this model may be given a batch in one row without padding; tried once, outside arithmetic()."""
        if self._packs is None:
            readers = [llama_reading.read_row] if can_be_read_out(self) else []
            exact = (read for read in (*readers, packing.read_row) if self._window and self._packing_is_exact(read))
            reader = next(exact, None)
            self._packs, self._read = reader is not None, reader or packing.read_row
        return self._packs

    def _packing_is_exact(self, read: Callable[[PreTrainedModel, Layout], torch.Tensor]) -> bool:
        probe = probe_batch(self.model.config.get_text_config().vocab_size, self.device)
        how: dict[str, Any] = {"temperature": 1.0, "entropy": None, "read": read}
        with self.arithmetic(), torch.no_grad():
            try:
                ours, _ = packed_log_probs(self.model, lay_out(*probe), probe[2].shape, **how)
            except NotExact:
                return False
            theirs = log_probs_of(self._logits_plain(*probe, len(probe[2]) // len(probe[0])), probe[2])
        plain = self.dtype == torch.float32 and not getattr(self.model, "is_quantized", False)
        far = ((ours - theirs).abs() * probe[3]).max()
        return bool(far < (1e-4 if plain else 5e-2))

    def _can_share_prompts(self) -> bool:
        """Not when a layer keeps only a window of the cache."""
        return all(type(layer) is DynamicLayer for layer in DynamicCache(config=self.model.config).layers)

    def _logits_shared(self, prompt_ids, prompt_mask, response_ids, response_mask, n: int) -> torch.Tensor:
        first, cache = self.read_prompts(prompt_ids, prompt_mask)  # [P, V]
        first = first.repeat_interleave(n, 0)[:, None]  # [B, 1, V]
        if response_ids.shape[1] == 1:
            return first
        cache.batch_repeat_interleave(n)
        prompt_mask = prompt_mask.repeat_interleave(n, 0)  # [B, L]
        mask = torch.cat([prompt_mask, response_mask[:, :-1]], 1)
        positions = prompt_mask.sum(1, keepdim=True) + torch.arange(response_ids.shape[1] - 1, device=self.device)
        rest = self.model(
            response_ids[:, :-1], attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).logits
        return torch.cat([first, rest], 1)  # [B, R, V]

    def _logits_plain(self, prompt_ids, prompt_mask, response_ids, response_mask, n: int) -> torch.Tensor:
        ids = torch.cat([prompt_ids.repeat_interleave(n, 0), response_ids], 1)
        mask = torch.cat([prompt_mask.repeat_interleave(n, 0), response_mask], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        width = response_ids.shape[1]
        only_last = {"logits_to_keep": width + 1} if self._last_logits_only else {}
        logits = self.model(ids, attention_mask=mask, position_ids=positions, use_cache=False, **only_last).logits
        return logits[:, -width - 1 : -1]


def read_logits(
    logits: torch.Tensor, ids: torch.Tensor, *, temperature: float, entropy: str | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log_prob and entropy of the tokens, [B, R] each, as Policy.log_probs says. logits: [B, R, V]; ids: [B, R]."""
    chosen = log_probs_of(logits, ids, temperature=temperature)
    if entropy is None:
        return chosen, None
    return chosen, entropy_of(logits if entropy == "loss" else logits.detach(), temperature=temperature)


def choose_device(wanted: str) -> torch.device:
    """`auto`: CUDA, else Apple's MPS, else the CPU. Raises EngineError for a device that torch does not reach."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted != "auto":
        if not there.get(wanted):
            raise EngineError(
                f"--device {wanted}: this PyTorch reaches no such device; --device auto takes what is there"
            )
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """The precision of the arithmetic; `auto` measures instead of asking the CPU for its flags.

    A CPU without bf16 units runs bf16 hundreds of times slower than float32, one with them up to ten times faster.
    Autocast costs some of the gain, hence bf16 only where its products are four times as fast: CPUs have either none
    of it, or twice (AVX-512), or eight times and more (AMX), so a busy machine does not tip the choice.
    """
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[wanted]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device.type == "mps":
        return torch.float32
    seconds = _product_seconds()
    return torch.bfloat16 if 4 * seconds[torch.bfloat16] < seconds[torch.float32] else torch.float32


def _product_seconds(size: int = 256, rounds: int = 20) -> dict[torch.dtype, float]:
    """The fastest of some square matrix products of each precision, taken in turn so that both meet the same noise.

    bf16 without units takes a tenth of a second a product, so the rounds end early.
    """
    fastest = dict.fromkeys((torch.float32, torch.bfloat16), float("inf"))
    until = time.perf_counter() + 0.2
    for _ in range(rounds):
        for dtype in fastest:
            a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
            start = time.perf_counter()
            torch.mm(a, b)
            fastest[dtype] = min(fastest[dtype], time.perf_counter() - start)
        if time.perf_counter() > until:
            break
    return fastest
