"""What a set of records holds, in a few lines: counts, lengths, sources, duplicates. Judges nothing."""

from __future__ import annotations

import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from data_prep.errors import plural, quote
from data_prep.record import Record

SHOWN = 12  # names listed on one line


@dataclass
class Summary:
    """Counts over the records that passed through `watch`. Lengths are characters.

    duplicates: records whose prompt was seen before; conflicts: those of them that came with another answer.
    """

    sources: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    prompt_lengths: array[int] = field(default_factory=lambda: array("L"))
    answer_lengths: array[int] = field(default_factory=lambda: array("L"))
    duplicates: int = 0
    conflicts: int = 0
    _answers: dict[int, int] = field(default_factory=dict)  # hash of the prompt -> hash of its first answer

    @property
    def rows(self) -> int:
        """How many records passed."""
        return len(self.prompt_lengths)

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, counted as they pass."""
        for record in records:
            self.add(record)
            yield record

    def add(self, record: Record) -> None:
        """Count one record."""
        self.sources[record.data_source] += 1
        self.columns.update(record.extra.keys())
        self.prompt_lengths.append(sum(len(message["content"]) for message in record.prompt))
        self.answer_lengths.append(len(record.ground_truth))
        answer = hash(record.ground_truth)
        prompt = hash(tuple([(message["role"], message["content"]) for message in record.prompt]))
        # Of a million prompts two share a 64-bit hash with a chance of 3 in 100 million; the texts would fill memory.
        first = self._answers.setdefault(prompt, answer)
        if len(self._answers) + self.duplicates < self.rows:
            self.duplicates += 1
            self.conflicts += first != answer

    def lines(self) -> list[str]:
        """The summary as the user reads it."""
        lines = [
            f"sources     {_names(self.sources, counts=True)}",
            f"prompts     {_lengths(self.prompt_lengths)}",
            f"answers     {_lengths(self.answer_lengths)}",
        ]
        again = "none: no prompt comes twice"
        if self.duplicates:
            again = f"{plural(self.duplicates, 'record')} with a prompt that came before"
            again += f", {self.conflicts:,} of them with another answer" if self.conflicts else ""
        lines.append(f"duplicates  {again}")
        if self.columns:
            lines.append(f"extra_info  {_names(self.columns, counts=False)}")
        return lines


def _names(counter: Counter[str], *, counts: bool) -> str:
    shown = [quote(name)[1:-1] + (f" {count:,}" if counts else "") for name, count in counter.most_common(SHOWN)]
    return ", ".join(shown) + (f" and {len(counter) - SHOWN:,} more" if len(counter) > SHOWN else "")


def _lengths(lengths: array[int]) -> str:
    if min(lengths) == max(lengths):
        return f"{plural(lengths[0], 'character')} each"
    return f"{min(lengths):,} to {max(lengths):,} characters, median {int(statistics.median(lengths)):,}"
