"""The run of ./train.sh sft: supervised epochs over demonstrations, with checkpoints, metrics, resume and a report.

Opened by tuning_opening.py; the maths is in sft.py; what a folder and its records look like is as with GRPO.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time

import torch
from omegaconf import DictConfig

from grpo.atomic import atomic_write
from grpo.embedded import checkpoint
from grpo.embedded.interrupts import Interrupts, StopRequested
from grpo.embedded.prompts import hash_seed
from grpo.embedded.sft import Demonstration, micro_batches, rows_of, summed_loss
from grpo.embedded.tuning_opening import Tuning, opened
from grpo.embedded.update import learning_rate, require_gradients
from grpo.engine import EngineError, Interrupted, Result, Run
from grpo.metrics.outcome import peak_rss_mb
from grpo.report import write_report


def fine_tune(run: Run) -> Result:
    """Train as `run` says. Raises EngineError, DataError, or Interrupted with a checkpoint written."""
    with Interrupts() as interrupts:
        try:
            with opened(run, interrupts) as tuning:
                return _train(tuning)
        except StopRequested:
            raise Interrupted("stopped before the first step, so there is nothing to save") from None


def _train(tuning: Tuning) -> Result:
    config, total = tuning.run.config, tuning.total_steps
    if tuning.step == 0 and config.trainer.val_before_train:
        _record(tuning, 0, _evaluate(tuning, "start"))
    tuning.progress.phase("SFT", total, done=tuning.step)
    try:
        for step in range(tuning.step + 1, total + 1):
            tuning.interrupts.check()
            values = _step(tuning, step)
            tuning.step = step
            last = step == total
            if last or (config.trainer.test_freq > 0 and step % config.trainer.test_freq == 0):
                values |= _evaluate(tuning, "final" if last else None)
            _record(tuning, step, values)
            if last or (config.trainer.save_freq > 0 and step % config.trainer.save_freq == 0):
                _save_or_say(tuning)
    except StopRequested:
        if tuning.step and tuning.saved_step != tuning.step:
            _save_or_say(tuning)
        folder = os.path.relpath(tuning.run.output_dir)
        folder = shlex.quote(str(tuning.run.output_dir) if folder.startswith("..") else folder)
        raise Interrupted(
            f"stopped after step {tuning.step} of {total}, saved at step {tuning.saved_step}; go on with: "
            f"./train.sh sft --resume --output_dir {folder}"
        ) from None
    return _finish(tuning)


def _step(tuning: Tuning, step: int) -> dict[str, float]:
    """One optimizer step on the batch of that number."""
    config, policy, began = tuning.run.config, tuning.policy, time.perf_counter()
    optim = config.actor_rollout_ref.actor.optim
    batch = _batch(tuning, step)
    lr = _learning_rate(optim, step, tuning.total_steps)
    for group in tuning.optimizer.param_groups:
        group["lr"] = lr
    tuning.optimizer.zero_grad(set_to_none=True)
    tokens, total = sum(len(item.response) for item in batch), 0.0
    parts = micro_batches(rows_of(batch, width=tuning.width, packing=tuning.packing), max_tokens=tuning.max_tokens)
    for number, part in enumerate(parts):
        tuning.interrupts.check()
        loss = summed_loss(policy, part) / tokens
        loss.backward()
        total += float(loss.detach())
        tuning.progress.working("micro-batch", number + 1, len(parts))
    require_gradients(policy)
    norm = float(torch.nn.utils.clip_grad_norm_(policy.trained(), float(optim.clip_grad)))
    if not math.isfinite(norm) or not math.isfinite(total):
        raise EngineError(
            f"step {step}: the gradient is not finite (norm {norm}), so this update was not made; the last checkpoint "
            "is good: go on from it with a smaller --lr, or with --dtype float32"
        )
    tuning.optimizer.step()
    seconds = time.perf_counter() - began
    return {
        "loss": total,
        "grad_norm": norm,
        "lr": lr,
        "response_length": tokens / len(batch),
        "epoch": (step - 1) // tuning.per_epoch,
        "tokens_per_second": sum(map(len, batch)) / seconds,
        "seconds_per_step": seconds,
    }


def _batch(tuning: Tuning, step: int) -> list[Demonstration]:
    """The demonstrations of a step; each epoch has its own order, which depends on the seed and the epoch alone."""
    config, count = tuning.run.config, len(tuning.train)
    size = int(config.data.train_batch_size)
    epoch, number = divmod(step - 1, tuning.per_epoch)
    generator = torch.Generator().manual_seed(hash_seed(int(config.launcher.seed), "order", epoch))
    order = torch.randperm(count, generator=generator).tolist() if config.data.shuffle else list(range(count))
    return [tuning.train[index] for index in order[number * size : (number + 1) * size]]


def _learning_rate(optim: DictConfig, step: int, total: int) -> float:
    warmup = optim.lr_warmup_steps if optim.lr_warmup_steps >= 0 else optim.lr_warmup_steps_ratio * total
    return learning_rate(
        step - 1,
        lr=float(optim.lr),
        kind=optim.lr_scheduler_type,
        warmup=int(warmup),
        total=total,
        min_ratio=float(optim.min_lr_ratio or 0.0),
    )


@torch.no_grad()
def _evaluate(tuning: Tuning, name: str | None) -> dict[str, float]:
    """The loss on demonstrations that are not trained on. name: to remember it by."""
    tokens, total = sum(len(item.response) for item in tuning.val), 0.0
    rows = rows_of(tuning.val, width=tuning.width, packing=tuning.packing)
    for part in micro_batches(rows, max_tokens=tuning.max_tokens):
        tuning.interrupts.check()
        total += float(summed_loss(tuning.policy, part))
    value = total / tokens
    if name:
        tuning.val_loss[name] = value
    return {"val_loss": value}


def _record(tuning: Tuning, step: int, values: dict[str, float]) -> None:
    try:
        tuning.log.step(step, values)
    except OSError as error:
        raise EngineError(f"{error}; free some space and start again: it goes on from the last save") from error
    if step:
        tuning.progress.step(step, values)
    else:
        tuning.progress.note(f"before training: val_loss {values['val_loss']:.4f}")


def _save_or_say(tuning: Tuning) -> None:
    try:
        _save(tuning)
    except checkpoint.SaveError as error:
        tuning.progress.note(f"WARNING: {error}; training goes on, the older checkpoints are untouched")


def _save(tuning: Tuning) -> None:
    tuning.log.sync()
    state = {
        "seconds": tuning.seconds(),
        "dtype": str(tuning.policy.dtype).removeprefix("torch."),
        "val_loss": tuning.val_loss,
        "packing": tuning.packing,
    }
    keep = int(tuning.run.config.trainer.max_actor_ckpt_to_keep or 1_000_000)
    checkpoint.save(tuning.checkpoints, tuning.step, tuning.policy, tuning.optimizer, state, keep=keep)
    tuning.saved_step = tuning.step


def _finish(tuning: Tuning) -> Result:
    wanted, final = tuning.run.config.launcher.export, tuning.checkpoints / "final"
    try:
        if tuning.saved_step != tuning.step:
            _save(tuning)
        checkpoint.publish(
            tuning.checkpoints,
            "final",
            lambda path: checkpoint.write_final(path, tuning.policy, lora=wanted.lora, dtype=wanted.dtype),
        )
    except checkpoint.SaveError as error:
        raise EngineError(f"training is done, but {error}; free some space and start again to export") from error
    folder = tuning.run.output_dir
    summary = {
        "engine": "embedded",
        "algorithm": "sft",
        "recipe": tuning.run.recipe,
        "steps": tuning.step,
        "seconds": round(tuning.seconds(), 1),
        "val_loss": tuning.val_loss,
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "checkpoint": str(final),
        "report": str(folder / "report.html"),
    }
    tuning.log.sync()
    atomic_write(folder / "summary.json", json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
    return Result(summary, final, write_report(folder))
