"""How many prompts are short enough to train on, counted before an engine starts that would only find out later.

Leaves out models of the Hub and tokenizers without tokenizer.json: the engine counts those.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.config import ConfigError, Settings
from grpo.model_rules import MODEL, TEMPLATE, TOKENIZER
from grpo.rules import said

if TYPE_CHECKING:
    from data_prep.record import Record

LONGEST = "data.max_prompt_length"
COUNTED = 20_000  # prompts; more would take seconds


def short_enough(settings: Settings, train: Sequence[Record], val: Sequence[Record]) -> tuple[int, list[str]]:
    """(how many of `train` are at most data.max_prompt_length tokens long, a note where that is not all).

    All are where it cannot be told, and where longer prompts are cut. Raises ConfigError when none of a file's is.
    """
    from data_prep.prompt_tokens import PromptTokens, tokenizer_file

    folder = Path(str(settings[TOKENIZER] or settings[MODEL])).expanduser()
    kept = not settings["data.filter_overlong_prompts"]
    if kept or len(train) + len(val) > COUNTED or tokenizer_file(folder) is None:
        return len(train), []
    counter, longest = PromptTokens(folder, template=settings[TEMPLATE]), settings[LONGEST]
    lengths = {
        what: counter.counts(record.prompt for record in records)
        for what, records in (("training", train), ("evaluation", val))
    }
    for what, tokens in lengths.items():
        if tokens and min(tokens) > longest:
            raise ConfigError(
                f"{said(settings, LONGEST)}: each of the {len(tokens):,} {what} prompts is longer, {min(tokens):,} "
                f"to {max(tokens):,} tokens as the model reads them; --max_prompt_length {max(tokens)} takes all",
                fix={LONGEST: max(tokens)},
            )
    long = sum(tokens > longest for tokens in lengths["training"])
    note = f"{long:,} of {len(train):,} prompts are longer than max_prompt_length={longest:,} tokens and are left out"
    return len(train) - long, [note] if long else []
