"""Prompts as token ids, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from data_prep.errors import DataError
from data_prep.record import Record
from grpo.engine import EngineError

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True)
class Prompt:
    """ids: what the model reads; text: the same, for logs; the rest goes to the reward."""

    ids: list[int]
    text: str
    data_source: str
    ground_truth: str
    extra_info: dict[str, Any]


class Encoder:
    """Chat messages to token ids, by the tokenizer's chat template (or the user's, or the plain text)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, template: str | None, max_length: int, truncation: str
    ) -> None:
        self._tokenizer = tokenizer
        if template is not None:
            tokenizer.chat_template = PLAIN_TEMPLATE if template == "plain" else template
        self.has_template = tokenizer.chat_template is not None
        if not self.has_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        self._plain = tokenizer.chat_template == PLAIN_TEMPLATE
        self._max_length, self._truncation = max_length, truncation

    def __call__(self, row: Mapping[str, Any]) -> Prompt | None:
        """The prompt, or None when it is too long and `truncation` leaves it out."""
        text = str(self._tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True))
        # A template writes the special tokens itself; plain text gets those that the tokenizer puts around any text.
        ids = self._tokenizer(text, add_special_tokens=self._plain)["input_ids"]
        if ids and self._plain and ids[-1] == self._tokenizer.eos_token_id:
            ids = ids[:-1]
        if len(ids) > self._max_length:
            if self._truncation == "filter":
                return None
            if self._truncation == "error":
                raise DataError(
                    f"record {row['extra_info'].get('index')}: the prompt has {len(ids)} tokens, over "
                    f"data.max_prompt_length={self._max_length}; raise it, or set data.truncation=left"
                )
            ids = ids[-self._max_length :] if self._truncation == "left" else ids[: self._max_length]
        if not ids:
            raise DataError(f"record {row['extra_info'].get('index')}: the prompt has no tokens; give it some text")
        return Prompt(ids, text, row["data_source"], row["ground_truth"], dict(row["extra_info"]))


def encode(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[list[Prompt], int]:
    """All prompts that are short enough, and how many were not."""
    prompts, left_out = [], 0
    for row in rows:
        prompt = encoder(row)
        if prompt is None:
            left_out += 1
        else:
            prompts.append(prompt)
    return prompts, left_out


def batches(
    prompts: Sequence[Prompt], *, size: int, seed: int, shuffle: bool, drop_last: bool, first_step: int
) -> Iterator[list[Prompt]]:
    """The batches of steps first_step, first_step + 1, ... without end; each epoch has its own order.

    Batch k is the same whether or not the steps before it were made in this process.
    """
    per_epoch = len(prompts) // size if drop_last else -(-len(prompts) // size)
    if per_epoch == 0:
        raise EngineError(f"{len(prompts)} prompts do not fill one batch of {size}: lower --train_batch_size")
    epoch, skip = divmod(first_step, per_epoch)
    while True:
        generator = torch.Generator().manual_seed(hash_seed(seed, "order", epoch))
        order = torch.randperm(len(prompts), generator=generator).tolist() if shuffle else list(range(len(prompts)))
        for number in range(skip, per_epoch):
            yield [prompts[index] for index in order[number * size : (number + 1) * size]]
        epoch, skip = epoch + 1, 0


def streamed(
    records: Iterable[Mapping[str, Any]], encoder: Encoder, *, size: int, first_step: int
) -> Iterator[list[Prompt]]:
    """Batches of prompts that are made while training runs; a resumed run draws and drops those it had seen."""
    batch: list[Prompt] = []
    skip = first_step
    for row in records:
        prompt = encoder(row)
        if prompt is not None:
            batch.append(prompt)
        if len(batch) == size:
            if skip:
                skip -= 1
            else:
                yield batch
            batch = []


def hash_seed(seed: int, *what: str | int) -> int:
    """A generator seed for one purpose, independent of every other purpose's (63 bits of a SHA-256)."""
    return int.from_bytes(hashlib.sha256(repr((seed, *what)).encode()).digest()[:8], "big") >> 1


def as_row(record: Record, index: int) -> dict[str, Any]:
    """A record in the form in which parquet rows come: with its index in extra_info."""
    return {
        "prompt": record.prompt,
        "data_source": record.data_source,
        "ground_truth": record.ground_truth,
        "extra_info": {**record.extra, "index": index},
    }
