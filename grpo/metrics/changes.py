"""Which responses changed most between a run's first and last look at the same prompt. Leaves out showing them.

Two evaluations are compared where there were two; otherwise the first and the last time a prompt was sampled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.metrics.log import COMPLETIONS, parse_line

_HALF = 32 * 2**20  # bytes read from each end of a long completions.jsonl, so that a report takes seconds
_PROMPTS = 4000  # prompts compared at most
_TEXT = 8000  # characters kept of a response; the rest is counted


@dataclass
class Look:
    """The responses to one prompt at one step: their mean reward and the first of them, as text."""

    step: int
    response: str
    length: int
    _sum: float = 0.0
    count: int = 0

    @property
    def reward(self) -> float:
        """Mean reward; 0 when every reward call failed."""
        return self._sum / self.count if self.count else 0.0

    def add(self, reward: object) -> None:
        """Count one more response's reward."""
        if isinstance(reward, (int, float)):
            self._sum += reward
            self.count += 1


@dataclass
class Change:
    """One prompt, first and last."""

    prompt: str
    ground_truth: str
    first: Look
    last: Look

    @property
    def gain(self) -> float:
        """Mean reward last minus first."""
        return self.last.reward - self.first.reward


def most_changed(output_dir: Path, limit: int = 8) -> tuple[str, list[Change]]:
    """("val" or "train", at most `limit` prompts, largest change of reward first). Losses are kept beside gains.

    A quarter of the room belongs to prompts that got worse, if there are any: a report must not hide them.
    """
    looks: dict[str, dict[str, Change]] = {"val": {}, "train": {}}
    before = None
    for row in _rows(output_dir / COMPLETIONS):
        # The responses of a group stand together; the same prompt after another one is a new look, even in one step
        # (step 0 is evaluated before and after the warm-up).
        key, split = _key(row), "val" if row.get("split") == "val" else "train"
        _note(looks[split], row, key, new_look=(key, split, row["step"]) != before)
        before = key, split, row["step"]
    for split in ("val", "train"):
        seen_twice = [c for c in looks[split].values() if c.first.step != c.last.step]
        changed = [c for c in seen_twice if c.first.response != c.last.response or c.gain]
        if changed:
            worse = sorted((c for c in changed if c.gain < 0), key=lambda c: c.gain)[: max(1, limit // 4)]
            rest = sorted((c for c in changed if c.gain >= 0), key=lambda c: -c.gain)
            return split, rest[: limit - len(worse)] + worse
    return "train", []


def text_of(prompt: object) -> str:
    """A prompt as text: a chat list loses its structure but not its words."""
    if isinstance(prompt, list):
        messages = [m for m in prompt if isinstance(m, dict)]
        lines = [str(m.get("content", "")) for m in messages]
        if len(messages) == 1:
            return lines[0]
        return "\n".join(f"{m.get('role', '')}: {line}" for m, line in zip(messages, lines, strict=True))
    return str(prompt)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of completions.jsonl: all of them, or those at its two ends when it is long."""
    if not path.is_file():
        return
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        read = 0
        for line in file:
            read += len(line)
            if (row := parse_line(line)) is not None:
                yield row
            if size > 2 * _HALF and read >= _HALF:
                file.seek(size - _HALF)
                file.readline()  # the rest of a line whose start is not here
                read = -size


def _key(row: dict[str, Any]) -> str:
    return json.dumps([row.get("prompt"), row.get("ground_truth")], ensure_ascii=False)


def _note(looks: dict[str, Change], row: dict[str, Any], key: str, new_look: bool) -> None:
    change = looks.get(key)
    if change is None:
        if len(looks) >= _PROMPTS:
            return
        look = _look(row)
        change = looks[key] = Change(text_of(row.get("prompt")), str(row.get("ground_truth", "")), look, look)
    elif new_look:
        change.last = _look(row)
    change.last.add(row.get("reward"))


def _look(row: dict[str, Any]) -> Look:
    text = str(row.get("response", ""))
    kept = text if len(text) <= _TEXT else f"{text[:_TEXT]}… (+{len(text) - _TEXT:,})"
    return Look(row["step"], kept, int(row.get("length") or 0))
