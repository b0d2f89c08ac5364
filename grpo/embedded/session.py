"""What the loop asks for at every step, and what a run leaves behind: samples, records, checkpoints, the summary.

Opened by opening.py. Everything that a resumed run must find again is in `_state()`; the rest follows from the
configuration.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo.atomic import atomic_write
from grpo.embedded import checkpoint
from grpo.embedded.best import keep_if_best
from grpo.embedded.copies import OLD, REFERENCE, move
from grpo.embedded.draws import Draws
from grpo.embedded.evaluate import evaluate
from grpo.embedded.interrupts import SAVING, Interrupts
from grpo.embedded.parallel import ALONE, World, sample_together
from grpo.embedded.passes import log_probs_together
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Encoder, Prompt, hash_seed
from grpo.embedded.rollout import Ended, Rollouts
from grpo.embedded.scoring import BatchScoring
from grpo.embedded.settings import Settings
from grpo.embedded.update import learning_rate
from grpo.engine import EngineError, Result, Run
from grpo.metrics.live import Progress
from grpo.metrics.log import MetricsLog
from grpo.metrics.outcome import Outcome, peak_rss_mb
from grpo.report import write_report
from reward_funcs.scoring import Scoring


@dataclass
class Session:
    """One open run. per_epoch: steps of an epoch, 0 when the data has no end; step: the last one that is done.

    old: the copy of the policy that samples, None = the policy itself does. kl_coef: weight of the KL in the reward,
    next_kl_coef: that of the next step. reward, log: None where another process of `world` scores and records.
    """

    run: Run
    settings: Settings
    interrupts: Interrupts
    policy: Policy
    reference: Policy | None
    optimizer: torch.optim.Optimizer
    reward: Scoring | None
    encoder: Encoder
    draws: Draws
    prompts: list[Prompt]
    val_prompts: list[Prompt]
    per_epoch: int
    total_steps: int
    max_micro_tokens: int
    progress: Progress
    log: MetricsLog | None
    outcome: Outcome
    world: World = ALONE
    old: Policy | None = None
    kl_coef: float = 0.0
    next_kl_coef: float = 0.0
    step: int = 0
    optimizer_steps: int = 0
    saved_step: int = 0
    seconds_before: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.checkpoints = self.run.output_dir / "checkpoints"

    def steps(self) -> Iterator[tuple[int, list[Prompt]]]:
        """(step, its prompts) from where the run stands to its end; steps count from 1."""
        self.progress.phase("train", self.total_steps, done=self.step)
        for step in range(self.step + 1, self.total_steps + 1):
            prompts = self.draws.next()
            if prompts is None:
                return
            if self.step:
                self.interrupts.first = SAVING
            yield step, prompts

    def most_batches(self) -> float:
        """How many batches of prompts one step may take: what the user said, else a pass over the prompts."""
        refill = self.settings.refill
        return (refill.max_batches if refill else 1) or self.per_epoch or float("inf")

    def sample(self, step: int, prompts: list[Prompt], number: int, on_ended: Ended) -> Rollouts:
        """Responses to the step's batch of prompts with this number; the user may stop it between two tokens."""
        total = len(prompts) * self.settings.sampling.n

        def on_token(done: int) -> None:
            self.interrupts.check()
            self.progress.working("sampling", done, total)

        ids = [prompt.ids for prompt in prompts]
        seed = hash_seed(self.settings.seed, "sample", step, *([number] if number else []))
        return sample_together(
            self.world,
            self.old or self.policy,
            ids,
            self.settings.sampling,
            seed=seed,
            max_rows=self.settings.max_rows,
            on_token=on_token,
            on_ended=on_ended,
        )

    def scoring(self, prompts: list[Prompt]) -> BatchScoring:
        """What the reward says of the responses to these prompts."""
        n, max_errors = self.settings.sampling.n, self.settings.max_reward_errors
        return BatchScoring(self.world, self.reward, self.policy, prompts, n, max_errors)

    def reference_log_probs(self, rollouts: Rollouts) -> torch.Tensor | None:
        """[B, R] under the frozen model; None when nothing is measured against it."""
        if self.reference is None:
            return None
        how = {"temperature": self.settings.sampling.temperature, "max_tokens": self.max_micro_tokens}
        return log_probs_together(self.world, self.reference, rollouts, **how)

    def next_learning_rate(self) -> float:
        """Set and return the learning rate of the coming optimizer step."""
        optim, batch = self.settings.optim, self.settings.train_batch_prompts
        per_step = -(-batch // self.settings.mini_batch_prompts) * self.settings.ppo_epochs
        total = self.total_steps * per_step
        warmup = optim["lr_warmup_steps"]
        lr = learning_rate(
            self.optimizer_steps,
            lr=float(optim["lr"]),
            kind=optim["lr_scheduler_type"],
            warmup=int(warmup if warmup >= 0 else optim["lr_warmup_steps_ratio"] * total),
            total=total,
            min_ratio=float(optim["min_lr_ratio"] or 0.0),
        )
        self.optimizer_steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def renew_copies(self, step: int) -> None:
        """After the update of `step`, before its checkpoint: renew the copies of the policy that are due."""
        settings = self.settings
        if self.old is not None and step % settings.update_old_after == 0:
            move(self.old, self.policy, share=1.0)
        if self.reference is not None and settings.update_ref_after and step % settings.update_ref_after == 0:
            move(self.reference, self.policy, share=settings.ref_mixup)

    def finish_step(self, step: int, values: dict[str, float], lines: list[dict[str, Any]]) -> None:
        """Record a step; evaluate and save when it is time. A failed save is said, and tried again next time."""
        self.draws.finish_step()
        self.step, self.kl_coef = step, self.next_kl_coef
        settings, last = self.settings, step == self.total_steps
        values["epoch"] = (self.draws.done - 1) // self.per_epoch if self.per_epoch else 0
        evaluated: list[dict[str, Any]] = []
        if last or (settings.test_freq > 0 and step % settings.test_freq == 0):
            measured, evaluated = self.evaluate(step, "final" if last else None)
            values |= measured
            keep_if_best(self, step, measured)
        self._record(step, values, [*lines, *evaluated])
        self.progress.step(step, values)
        if settings.debug:
            for line in lines:
                self.progress.note(f"{line['prompt']!r} -> {line['response']!r}  reward {line['reward']:.6g}")
        if last or (settings.save_freq > 0 and step % settings.save_freq == 0):
            try:
                self.save()
            except checkpoint.SaveError as error:
                self.progress.note(f"WARNING: {error}; training goes on, the older checkpoints are untouched")

    def evaluate(self, step: int, milestone: str | None) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Answer the evaluation prompts: metrics, and lines for the log. milestone: the name to remember this by."""
        total = len(self.val_prompts) * self.settings.val_sampling.n
        values, lines = evaluate(
            self.world,
            self.policy,
            self.val_prompts,
            self.settings.val_sampling,
            self.reward,
            seed=hash_seed(self.settings.seed, "evaluate", step),
            max_rows=self.settings.max_rows,
            max_errors=self.settings.max_reward_errors,
            on_token=lambda done: self.progress.working("evaluating", done, total),
        )
        if milestone:
            self.outcome.note(milestone, values, lines)
        return values, lines

    def milestone(self, name: str, said: str) -> None:
        """An evaluation before training, shown as a phase of its own. What GRPO starts from is recorded as step 0."""
        self.interrupts.check()
        self.progress.phase(said, len(self.val_prompts))
        values, lines = self.evaluate(0, name)
        self.progress.advance(
            len(self.val_prompts), accuracy=values["val_accuracy"], reward_mean=values["val_reward_mean"]
        )
        if name == "sft" or not self.run.config.launcher.sft.steps:
            self._record(0, values, lines)

    def _record(self, step: int, values: dict[str, float], lines: list[dict[str, Any]]) -> None:
        if self.log is None:
            return
        try:
            self.log.completions(step, lines)
            self.log.step(step, values)
        except OSError as error:
            raise EngineError(f"{error}; free some space and start again: it goes on from the last save") from error

    def save(self) -> None:
        """Write a checkpoint of the last step; raises SaveError."""
        if self.log is not None:
            self.log.sync()
            state, keep, copies = self._state(), self.settings.keep, self.copies()
            checkpoint.save(self.checkpoints, self.step, self.policy, self.optimizer, state, keep=keep, copies=copies)
        self.saved_step = self.step

    def copies(self) -> dict[str, Policy]:
        """The copies that a resumed run cannot make again."""
        moved = self.reference if self.settings.update_ref_after else None
        return {name: copy for name, copy in ((OLD, self.old), (REFERENCE, moved)) if copy is not None}

    def _state(self) -> dict[str, Any]:
        return {
            "optimizer_steps": self.optimizer_steps,
            "drawn": self.draws.done,
            "kl_coef": self.kl_coef,
            "seconds": self._seconds(),
            "dtype": str(self.policy.dtype).removeprefix("torch."),
            "outcome": self.outcome.as_dict(),
        }

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._began

    def save_and_say(self) -> str:
        """After a stop between steps: save if there is anything new. What was saved and how to go on, for the user."""
        folder = os.path.relpath(self.run.output_dir)
        folder = str(self.run.output_dir) if folder.startswith("..") else folder
        go_on = f"go on with: ./train.sh --resume --output_dir {shlex.quote(folder)}"
        if self.step == 0:
            return f"stopped before the first step was done, so there is nothing to save; {go_on}"
        if self.saved_step != self.step:
            try:
                self.save()
            except checkpoint.SaveError as error:
                return (
                    f"stopped after step {self.step}, but {error}; the last save is of step {self.saved_step}; {go_on}"
                )
        return f"stopped after step {self.step} of {self.total_steps}; the checkpoint is saved; {go_on}"

    def finish(self) -> Result:
        """Export the model, write the summary and the report."""
        if self.saved_step != self.step:  # the last save failed, or the data ended early
            self._save_or_stop()
        if "final" not in self.outcome.accuracy:
            self.evaluate(self.step, "final")
        final = self.checkpoints / "final"
        if self.log is None:
            return Result({}, final, None)
        try:
            wanted = self.run.config.launcher.export
            checkpoint.publish(
                self.checkpoints,
                "final",
                lambda path: checkpoint.write_final(path, self.policy, lora=wanted.lora, dtype=wanted.dtype),
            )
        except checkpoint.SaveError as error:
            raise EngineError(f"training is done, but {error}; free some space and start again to export") from error
        run = self.run
        summary = {
            "engine": "embedded",
            "algorithm": run.algorithm or run.config.algorithm.adv_estimator,
            "recipe": run.recipe,
            "steps": self.step,
            "seconds": round(self._seconds(), 1),
            "accuracy": self.outcome.accuracy,
            "reward_mean": self.outcome.reward_mean,
            "peak_rss_mb": round(peak_rss_mb(), 1),
            "checkpoint": str(final),
            "report": str(run.output_dir / "report.html"),
            "example": self.outcome.example(),
        } | ({"best": self.outcome.best} if self.outcome.best else {})
        self.log.sync()
        atomic_write(run.output_dir / "summary.json", json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
        return Result(summary, final, write_report(run.output_dir))

    def _save_or_stop(self) -> None:
        try:
            self.save()
        except checkpoint.SaveError as error:
            raise EngineError(f"{error}; free some space and start again: it goes on from the last save") from error
