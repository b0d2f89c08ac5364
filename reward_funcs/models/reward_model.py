"""`reward_model:FOLDER`: a sequence-classification model reads prompt and response and gives a number (S3-10, S0-07).

The model brings its own tokenizer and chat template; it has nothing to do with the policy's. Leaves out training one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.models.loading import chosen_device, local_folder, messages_of
from reward_funcs.returns import Attempt, Score
from reward_funcs.score import Sample


class RewardModel:
    """The model's own number: any range, higher is better. Source: whoever trained it.

    path: a local folder in Hugging Face's format, weights as safetensors. batch: responses in one forward pass. device:
    auto, cpu, cuda, cuda:1. label: for a head with several labels, whose probability is the score (0 to 1). max_length:
    tokens; the beginning of a longer text is cut, since the end decides.
    """

    def __init__(
        self, path: str, *, batch: int = 8, device: str = "auto", label: int | None = None, max_length: int = 4096
    ) -> None:
        self.path = local_folder(path, "reward_model")
        if batch < 1 or max_length < 1:
            raise RewardError(f"--reward reward_model: batch={batch} and max_length={max_length} have to be at least 1")
        self._batch, self._device, self._label, self._max_length = batch, device, label, max_length
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def __call__(self, samples: Sequence[Sample]) -> list[Attempt]:
        """The score of each sample."""
        with self._lock:  # one model: two threads would only fight for its memory
            model, tokenizer = self._loaded or self._load()
            texts = [_text(tokenizer, sample) for sample in samples]
            # Long ones together: padding is computed too. The order of the results is the samples'.
            order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
            found: list[Attempt] = [RewardError("not scored")] * len(texts)
            for start in range(0, len(order), self._batch):
                part = order[start : start + self._batch]
                for i, value in zip(part, self._scores(model, tokenizer, [texts[i] for i in part]), strict=True):
                    found[i] = Score(value)
        return found

    def _scores(self, model: Any, tokenizer: Any, texts: list[str]) -> list[float]:
        import torch

        inputs = tokenizer(
            texts, return_tensors="pt", padding=len(texts) > 1, truncation=True, max_length=self._max_length,
            add_special_tokens=not tokenizer.chat_template,
        ).to(model.device)  # fmt: skip
        with torch.inference_mode():
            logits = model(**inputs).logits.float()  # [B, labels]
        if self._label is not None:
            return logits.softmax(-1)[:, self._label].tolist()
        return logits[:, 0].tolist()

    def _load(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.path, trust_remote_code=False)
        tokenizer.truncation_side = "left"
        device = chosen_device(self._device)
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            self.path, trust_remote_code=False, use_safetensors=True, dtype=torch.float32 if device == "cpu" else "auto"
        )
        labels = int(model.config.num_labels)
        if self._label is None and labels != 1:
            raise RewardError(
                f"{self.path} has {labels} labels; say whose probability is the score: reward_model:PATH:label=1"
            )
        if self._label is not None and not 0 <= self._label < labels:
            raise RewardError(f"{self.path} has {labels} labels, 0 to {labels - 1}; there is no label={self._label}")
        # The head reads the last token that is not padding. Padding with the end token, as is often done where there is
        # none, would make it overlook the end of every text; without a token for it, texts are read one at a time.
        if tokenizer.pad_token_id is None and model.config.pad_token_id is not None:
            tokenizer.pad_token_id = model.config.pad_token_id
        model.config.pad_token_id = tokenizer.pad_token_id
        self._batch = self._batch if tokenizer.pad_token_id is not None else 1
        self._loaded = model.to(device).eval(), tokenizer
        return self._loaded


def _text(tokenizer: Any, sample: Sample) -> str:
    if not tokenizer.chat_template:
        prompt = "\n".join(message["content"] for message in messages_of(sample.prompt))
        return f"{prompt}\n{sample.solution}" if prompt else sample.solution
    said = [*messages_of(sample.prompt), {"role": "assistant", "content": sample.solution}]
    return tokenizer.apply_chat_template(said, tokenize=False)
