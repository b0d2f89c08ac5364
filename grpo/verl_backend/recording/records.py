"""A verl run's files as ours: metrics.jsonl, completions.jsonl, the display and summary.json, while verl trains.

verl logs a line of metrics when a step is done, dumps the step's responses in the background, and our reward workers
write down each call (inside/scoring.py); `Records.poll` joins the three. Leaves out the run itself and verl's own log.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo.engine import EngineError, Run
from grpo.metrics.live import Progress
from grpo.metrics.log import MetricsLog
from grpo.metrics.names import with_both_names
from grpo.metrics.outcome import Outcome
from grpo.verl_backend.recording import earlier, step_values
from grpo.verl_backend.recording.dumped import lines_of, lines_of_calls
from grpo.verl_backend.recording.tails import Dump, Tail
from grpo.verl_backend.settings.reward_settings import CALLS, uses_v1
from reward_funcs import RewardError


@dataclass
class _Batch:
    """The reward calls of one step's training or evaluation so far. failed: those without a reward."""

    calls: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)


class Records:
    """Made before verl starts: what an earlier attempt did not write down any more is recorded, and its files that verl
    is going to write again are removed.

    resume_step: of the checkpoint that verl goes on from (None: from the start); `log` was opened with the last step
    that it has. Call `poll` a few times a second, `poll(ended=True)` when verl has ended, however it did, and `finish`
    when it ended well.
    """

    def __init__(self, run: Run, log: MetricsLog, progress: Progress, *, resume_step: int | None = None) -> None:
        self._run, self._log, self._progress = run, log, progress
        config, rollout = run.config, run.config.actor_rollout_ref.rollout
        self._n = {"train": int(rollout.n), "val": int(rollout.val_kwargs.n)}
        self._prompts = {"train": int(config.data.train_batch_size), "val": 0}
        self._masks = uses_v1(run)
        self._most_errors = float(config.launcher.max_reward_errors) if self._masks else 0.0
        self._limit = int(config.data.max_response_length)
        self._resume_step = resume_step
        self.step = resume_step or 0  # the last one that is recorded
        self.seen = 0  # rows read so far, of any kind: it grows as long as verl does something
        self.outcome = Outcome()
        self._last_evaluation: tuple[dict[str, float], list[dict[str, Any]]] | None = None
        self._metrics = Tail(run.output_dir / earlier.VERL_METRICS)
        self._workers: dict[Path, Tail] = {}
        self._calls: dict[str, dict[str, Any]] = {}  # key of a response -> its reward call, until its dump comes
        self._batches: dict[tuple[str, int], _Batch] = defaultdict(_Batch)
        self._waiting: list[tuple[int, dict[str, Any], dict[str, Dump]]] = []  # steps that wait for their dumps
        self._phase = ""
        self._told_of_errors = self._told_of_missing = False
        if resume_step is not None:
            self._record_what_was_left(earlier.last_recorded(run.output_dir, resume_step), resume_step)
        earlier.remove_what_comes_again(run.output_dir, resume_step)
        self._seconds_before = self._take_up() if resume_step is not None else 0.0
        self._began = time.monotonic()

    def poll(self, *, ended: bool = False) -> None:
        """Read what is new. Raises RewardError when too many reward calls of a batch failed, EngineError when our own
        files cannot be written."""
        folder = self._run.output_dir / CALLS
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            for call in self._workers.setdefault(path, Tail(path)).rows():
                self.seen += 1
                self._take(call)
        for row in self._metrics.rows():
            self.seen += 1
            step, logged = int(row["step"]), row["data"]
            if self._resume_step is None or step > self._resume_step:
                self._waiting.append((step, logged, self._dumps_of(step, logged)))
        while self._waiting:
            values = self._record(*self._waiting[0], ended=ended or len(self._waiting) > 1)
            if values is None:
                break
            self._show_step(self._waiting.pop(0)[0], values)

    def finish(self, checkpoint: Path) -> dict[str, Any]:
        """The contents of summary.json, with the embedded engine's keys, after `poll(ended=True)`."""
        run = self._run
        if self._last_evaluation is not None:
            self.outcome.note("final", *self._last_evaluation)
        return {
            "engine": "verl",
            "algorithm": run.algorithm or run.config.algorithm.adv_estimator,
            "recipe": run.recipe,
            "steps": self.step,
            "seconds": round(self._seconds_before + time.monotonic() - self._began, 1),
            "accuracy": self.outcome.accuracy,
            "reward_mean": self.outcome.reward_mean,
            "peak_rss_mb": round(_largest_child_mb(), 1),
            "checkpoint": str(checkpoint),
            "report": str(run.output_dir / "report.html"),
            "example": self.outcome.example(),
        }

    def _take_up(self) -> float:
        """Remember the first and the last evaluation of the earlier attempts; the seconds that the kept steps took."""
        for step, lines in earlier.evaluations(self._run.output_dir).items():
            self._note_evaluation(step, step_values.of_validation(lines), lines)
        return earlier.seconds(self._run.output_dir)

    def _note_evaluation(self, step: int, measured: dict[str, float], lines: list[dict[str, Any]]) -> None:
        if step == 0:
            self.outcome.note("start", measured, lines)
        else:
            self._last_evaluation = measured, lines

    def _take(self, call: dict[str, Any]) -> None:
        """Count a reward call, show it, and keep it until the dump with its response comes."""
        split = _split(call)
        if call["step"] is None:
            call["step"] = self.step + (split == "train")
        batch = self._keep(call, split)
        if call["score"] is None:
            self._check_errors(split, call["step"], batch)
        self._show(split, call["step"], batch)

    def _keep(self, call: dict[str, Any], split: str) -> _Batch:
        batch = self._batches[split, call["step"]]
        batch.calls += 1
        if call["key"] is not None:
            self._calls[call["key"]] = call
        if call["score"] is None:
            batch.failed.append(call)
        return batch

    def _total(self, split: str) -> int:
        """How many responses a batch has."""
        if not self._prompts[split]:
            from pyarrow.parquet import read_metadata

            self._prompts[split] = read_metadata(self._run.val).num_rows
        return self._prompts[split] * self._n[split]

    def _check_errors(self, split: str, step: int, batch: _Batch) -> None:
        first, failed = batch.failed[0], len(batch.failed)
        total = max(self._total(split), batch.calls)  # more where verl replaces groups (algorithm.filter_groups)
        traceback = next((call["traceback"] for call in batch.failed if call["traceback"]), None)
        if traceback and not self._told_of_errors:
            self._told_of_errors = True
            self._progress.note(f"a reward call failed in step {step}; its response trains nothing:\n{traceback}")
        if failed <= self._most_errors * total:
            return
        custom = self._run.config.reward.custom_reward_function
        place = f"{custom.path}:{custom.name}" if custom.path else "the shipped reward"
        what = "reward calls" if split == "train" else "reward calls of an evaluation"
        allowed = f"more than --max_reward_errors {self._most_errors:g} allows"
        if not self._masks:
            allowed = "and trainer.use_v1=False cannot leave a response out of the update"
        raise RewardError(
            f"{place}: {failed} of {total} {what} failed, {allowed}; the first, record {first['index']}: "
            f"{first['error']}"
        )

    def _show(self, split: str, step: int, batch: _Batch) -> None:
        total = self._total(split)
        if split == "val" and step == 0:
            self._enter("evaluate", total)
        else:
            self._enter("train", self._progress.total_steps)
        self._progress.working("sampling" if split == "train" else "evaluating", min(batch.calls, total), total)

    def _enter(self, phase: str, total: int) -> None:
        if self._phase != phase:
            self._phase = phase
            self._progress.phase(phase, total, done=self.step if phase == "train" else 0)

    def _dumps_of(self, step: int, logged: Mapping[str, Any]) -> dict[str, Dump]:
        """The dumps that verl makes of what this line of metrics is about."""
        evaluated = any(name.startswith("val-") for name in logged)
        splits = [*(["train"] if step > 0 else []), *(["val"] if evaluated else [])]
        return {split: Dump(self._run.output_dir / earlier.DUMPS[split] / f"{step}.jsonl") for split in splits}

    def _record(
        self, step: int, logged: Mapping[str, Any], dumps: dict[str, Dump], *, ended: bool
    ) -> dict[str, float] | None:
        """Write a step's lines and give its values; None when its dumps are not whole yet."""
        found: dict[str, list[dict[str, Any]]] = {}
        for split, dump in dumps.items():
            batch = self._batches[split, step]
            rows = dump.rows(batch.calls - len(batch.failed) or None, ended=ended)
            if rows is None:
                return None
            found[split] = rows
        values = step_values.numbers(logged)
        lines: list[dict[str, Any]] = []
        for split, rows in found.items():
            batch = self._batches.pop((split, step))
            lines += self._finish_split(split, step, rows, batch, values)
        values.pop("training/global_step", None)  # the line's own step
        self._write(step, lines, values)
        return values

    def _write(self, step: int, lines: list[dict[str, Any]], values: dict[str, float]) -> None:
        try:
            self._log.completions(step, lines)
            self._log.step(step, values)
        except OSError as error:
            raise EngineError(f"{error}; free some space and start again: it goes on from the last save") from error
        self.step = step
        self._calls = {key: call for key, call in self._calls.items() if call["step"] > step}

    def _show_step(self, step: int, values: dict[str, float]) -> None:
        if step == 0:
            evaluated = {name: values[f"val_{name}"] for name in ("accuracy", "reward_mean")}
            total = self._total("val")
            self._enter("evaluate", total)
            self._progress.advance(total, **evaluated)
        else:
            self._enter("train", self._progress.total_steps)
            self._progress.step(step, with_both_names(values))

    def _record_what_was_left(self, recorded: int, saved: int) -> None:
        """Record the steps after `recorded` up to the checkpoint: verl saves a step before it evaluates, logs and dumps
        it. Where it was ended in between, the step's reward calls are all there is."""
        for call in earlier.calls(self._run.output_dir):
            if recorded < call["step"] <= saved:
                self._keep(call, _split(call))
        for row in Tail(self._run.output_dir / earlier.VERL_METRICS).rows():
            if recorded < int(row["step"]) <= saved:
                recorded = int(row["step"])
                self._record(recorded, row["data"], self._dumps_of(recorded, row["data"]), ended=True)
        for step in range(max(recorded, 0) + 1, saved + 1):
            found = [call for call in self._calls.values() if call["step"] == step and _split(call) == "train"]
            batch = self._batches.pop(("train", step), _Batch())
            if found:
                lengths = {"response_length": fmean(call["length"] for call in found)}
                values = step_values.of_training(lines_of_calls(found), errors=len(batch.failed))
                self._write(step, [], values | lengths)
            known = "of it its rewards alone are known" if found else "nothing of it is known"
            self._progress.note(f"step {step}: verl was ended after its save and before its line of metrics; {known}")
        self.step = saved

    def _finish_split(
        self, split: str, step: int, rows: Sequence[Mapping[str, Any]], batch: _Batch, values: dict[str, float]
    ) -> list[dict[str, Any]]:
        """The lines for completions.jsonl; what they say goes to `values`."""
        calls = [self._calls.pop(str(row.get("uid", "")).rpartition("_")[0], {}) for row in rows]
        lines = lines_of(rows, calls, batch.failed, split)
        if split == "val":
            measured = step_values.of_validation(lines)
            values |= measured
            self._note_evaluation(step, measured, lines)
            return lines
        values |= step_values.of_training(lines, errors=len(batch.failed)) | step_values.speed(values)
        truncated = [call.get("truncated") for call in [*calls, *batch.failed]]
        cut = step_values.clip_fraction(truncated, values, self._limit)
        values.pop("response_length/clip_ratio", None)
        values |= {} if cut is None else {"response_clip_fraction": cut}
        self._say_what_is_missing(step, lines)
        return lines

    def _say_what_is_missing(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """verl says it in a worker's log alone."""
        alone = sum(len(rewards) == 1 for rewards in step_values.groups(lines).values())
        missing = self._total("train") - len(lines)
        if alone and self._n["train"] > 1:
            self._progress.note(
                f"step {step}: groups left with one response: {alone}; verl takes its reward for its advantage"
            )
        if missing > 0 and lines and not self._told_of_missing:
            self._told_of_missing = True
            self._progress.note(f"step {step}: verl lost {missing} of {self._total('train')} responses; see verl.log")


def _split(call: Mapping[str, Any]) -> str:
    return "val" if call["split"] == "val" else "train"


def _largest_child_mb() -> float:
    """The largest resident memory of a process below this one that has ended, in MB (10^6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
