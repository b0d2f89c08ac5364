"""Which batches of prompts a run takes: in the data's order, each step one, or more where it samples again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo.embedded.prompts import Encoder, Prompt, batches, streamed
from grpo.embedded.settings import Settings
from grpo.engine import Run


class Draws:
    """The batches, one after the other. done: how many the finished steps took, which a resumed run goes on from."""

    def __init__(self, run: Run, settings: Settings, prompts: Sequence[Prompt], encoder: Encoder) -> None:
        self.done = 0
        self._run, self._settings, self._prompts, self._encoder = run, settings, prompts, encoder
        self._taken = 0  # with those of the step that is not finished
        self._source: Iterator[list[Prompt]] | None = None

    def next(self) -> list[Prompt] | None:
        """The next batch; None where prompts made during training came to an end."""
        if self._source is None:
            self._source, self._taken = self._from(self.done), self.done
        prompts = next(self._source, None)
        self._taken += prompts is not None
        return prompts

    def finish_step(self) -> None:
        """What was taken belongs to a step that is done."""
        self.done = self._taken

    def _from(self, first: int) -> Iterator[list[Prompt]]:
        size, config = self._settings.train_batch_prompts, self._run.config
        if self._run.records is not None:
            return streamed(self._run.records, self._encoder, size=size, first_step=first)
        return batches(
            self._prompts,
            size=size,
            seed=self._settings.seed,
            shuffle=bool(config.data.shuffle),
            drop_last=bool(config.launcher.drop_last),
            first_step=first,
        )
