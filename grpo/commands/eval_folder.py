"""What ./train.sh eval leaves behind: responses as they come, and, once it is done, the results.

Until then the responses stand in `unfinished.jsonl`, whose first line says of what evaluation; the same evaluation,
started again, goes on from there. Files of an earlier one stay as they are until the new one is done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from grpo.atomic import atomic_write
from grpo.commands.training_words import Asked
from grpo.engine import EngineError

UNFINISHED, COMPLETIONS, RESULTS = "unfinished.jsonl", "completions.jsonl", "results.json"
Line = dict[str, Any]


class Folder:
    """The output folder of an evaluation, as a context manager while responses come. mark: of which evaluation."""

    def __init__(self, folder: Path, mark: str, labels: Sequence[str], k: int) -> None:
        self.folder, self._mark, self._labels, self._k = folder, mark, list(labels), k
        self.lines: list[Line] = []
        self.notes: list[str] = []
        self._file: TextIO | None = None

    @property
    def place(self) -> Path:
        """Where responses stand until all are there."""
        return self.folder / UNFINISHED

    @property
    def count(self) -> int:
        """Responses so far."""
        return len(self.lines)

    def __enter__(self) -> Folder:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lines = self._left_over()
            self._count = Counter((line["model"], line["data"], line["record"]) for line in self.lines)
            atomic_write(self.place, "".join(map(_text, [{"evaluation": self._mark}, *self.lines])))
            self._file = open(self.place, "a", encoding="utf-8")
        except OSError as error:
            raise EngineError(f"{self.folder}: cannot be written ({error.strerror}); name another with --to") from error
        if self.lines:
            self.notes.append(f"going on with {len(self.lines):,} responses from {self.place}")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._file
        self._file.close()
        if not self.lines:
            self.place.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds an earlier evaluation
                self.folder.rmdir()

    def known(self, model: str, data: str, records: Sequence[int]) -> bool:
        """Whether all responses to these prompts are there."""
        return all(self._count[model, data, record] == self._k for record in records)

    def take(self, lines: list[Line]) -> None:
        """Keep more responses: on disk before this returns."""
        try:
            self._write(lines)
        except OSError as error:
            raise EngineError(
                f"{self.place}: {error.strerror}; free some space, and the same command goes on"
            ) from error
        self.lines += lines

    def finish(self, results: str) -> None:
        """Write the results; raises EngineError."""
        order = {label: number for number, label in enumerate(self._labels)}
        self.lines.sort(key=lambda line: order[line["model"]])
        try:
            atomic_write(self.folder / COMPLETIONS, "".join(_text(line) for line in self.lines))
            atomic_write(self.folder / RESULTS, f"{results}\n")
            self.place.unlink()
        except OSError as error:
            raise EngineError(
                f"{self.folder}: {error.strerror}; free some space, and the same command goes on"
            ) from error

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        assert self._file
        self._file.write("".join(map(_text, lines)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _left_over(self) -> list[Line]:
        """The responses of this same evaluation to prompts that have all of theirs; [] where there are none."""
        try:
            head, *texts = self.place.read_text(encoding="utf-8").rstrip("\n").split("\n")
            if json.loads(head) != {"evaluation": self._mark}:
                return []
        except (OSError, ValueError):
            return []
        lines = []
        for text in texts:
            try:
                lines.append(json.loads(text))
            except ValueError:  # torn by a kill, and the last
                break
        there = Counter((line["model"], line["data"], line["record"]) for line in lines)
        return [line for line in lines if there[line["model"], line["data"], line["record"]] == self._k]


def fingerprint(asked: Asked, models: Mapping[str, str], temperature: float) -> str:
    """What must be the same for responses to belong to one evaluation: settings, models, files and rewards."""
    settings = {key: value for key, value in asked.settings.values.items() if not key.startswith("trainer.")}
    named = [*models.values(), *asked.own.data, settings["reward.custom_reward_function.path"]]
    named += settings["launcher.reward.plugins"]
    parts = [asked.own.k, temperature, list(models.items()), asked.own.data, settings, [_state(name) for name in named]]
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()


def _state(name: str | None) -> list[Any]:
    """Sizes and times of the files behind a name; [] of a Hub id."""
    path = Path(str(name).partition("#")[0]).expanduser()
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"
