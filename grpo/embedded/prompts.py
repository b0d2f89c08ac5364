"""Prompts as token ids, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from data_prep.errors import DataError
from data_prep.record import Record
from grpo.engine import EngineError

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
# For a tokenizer without a template: a single message is its text, a conversation says who speaks.
TURNS_TEMPLATE = (
    "{% if messages | length == 1 %}{{ messages[0]['content'] }}{% else %}{% for message in messages %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}{% endif %}"
)
UNTOUCHED, OWN, PLAIN = "none", "chat", "plain"  # values of custom_chat_template that are no template
_PROBE = "zqxjv"  # a word that no template writes by itself


@dataclass(frozen=True)
class Prompt:
    """ids: what the model reads; text: the same, for logs; the rest goes to the reward."""

    ids: list[int]
    text: str
    data_source: str
    ground_truth: str
    extra_info: dict[str, Any]


class Encoder:
    """Chat messages to token ids, by the tokenizer's chat template, the user's, or the text as it is.

    template: Jinja; `chat` or None = the tokenizer's own; `plain` = the messages' text, with the special tokens that
    the tokenizer puts around any text; `none` = the text and nothing else, since it was templated before.
    whole: an encoder reads it, so that a text's end token stays.
    cut: how many prompts lost tokens to max_length so far.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template: str | None,
        max_length: int,
        truncation: str,
        whole: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._untouched = template == UNTOUCHED
        if template not in (None, UNTOUCHED, OWN):
            tokenizer.chat_template = PLAIN_TEMPLATE if template == PLAIN else template
        self.has_template = self._untouched or tokenizer.chat_template is not None
        if not self.has_template:
            tokenizer.chat_template = TURNS_TEMPLATE
        self._plain = not self._untouched and tokenizer.chat_template in (PLAIN_TEMPLATE, TURNS_TEMPLATE)
        self._max_length, self._truncation, self._whole = max_length, truncation, whole
        self._system_is_kept = self._untouched
        self._one_text = whole and not self._untouched and tokenizer.chat_template == TURNS_TEMPLATE
        self.cut = 0

    def text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """What the model reads. Raises DataError for messages that the template refuses or drops."""
        if self._one_text and len(messages) > 1:
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                f"a model with an encoder and no chat template reads one text, not a conversation ({roles}): put what "
                "it needs into the prompt itself, or give --prompt_template"
            )
        if self._untouched:
            return "".join(message["content"] for message in messages)
        try:
            if not self._system_is_kept and messages[0]["role"] == "system":
                self._check_system(messages)
            return self._apply(messages)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                f"the chat template does not take a prompt of the messages {roles} ({error}); change the prompt, or "
                "give another template: --prompt_template"
            ) from error

    def _apply(self, messages: Sequence[Mapping[str, str]]) -> str:
        rendered = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return str(rendered)

    def _check_system(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Some templates leave out the system prompt without a word; then nobody would see what was trained."""
        if _PROBE not in self._apply([{"role": "system", "content": _PROBE}, *messages[1:]]):
            raise DataError(
                "the chat template drops the system prompt; put it into the prompts themselves, or give a template "
                "that keeps it: --prompt_template"
            )
        self._system_is_kept = True

    def __call__(self, row: Mapping[str, Any]) -> Prompt | None:
        """The prompt, or None when it is too long and `truncation` leaves it out."""
        text = self.text(row["prompt"])
        # A template writes the special tokens itself; plain text gets those that the tokenizer puts around any text.
        ids = self._tokenizer(text, add_special_tokens=self._plain)["input_ids"]
        end = ids[-1:] if ids and self._plain and ids[-1] == self._tokenizer.eos_token_id else []
        if end and not self._whole:
            ids, end = ids[:-1], []
        if len(ids) > self._max_length:
            if self._truncation == "filter":
                return None
            if self._truncation == "error":
                raise DataError(
                    f"record {row['extra_info'].get('index')}: the prompt has {len(ids)} tokens, over "
                    f"data.max_prompt_length={self._max_length}; raise it, or set data.truncation=left"
                )
            kept = self._max_length - len(end)
            ids = ids[-self._max_length :] if self._truncation == "left" else [*ids[:kept], *end]
            self.cut += 1
        if not ids:
            raise DataError(f"record {row['extra_info'].get('index')}: the prompt has no tokens; give it some text")
        return Prompt(ids, text, row["data_source"], row["ground_truth"], dict(row["extra_info"]))


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token with which the tokenizer's chat template ends an answer; None where it has none."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except TemplateError:
        return None
    if _PROBE not in text:
        return None
    after = tokenizer(text.rpartition(_PROBE)[2].lstrip(), add_special_tokens=False)["input_ids"]
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    return after[0] if after and after[0] in special else None


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
