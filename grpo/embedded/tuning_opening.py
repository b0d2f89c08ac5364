"""Opens a run of ./train.sh sft: model, demonstrations, packing, logs; or takes it up at its newest checkpoint."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from omegaconf import DictConfig

from data_prep.convert import load_rows
from grpo.embedded import checkpoint
from grpo.embedded.interrupts import Interrupts
from grpo.embedded.memory import token_budget
from grpo.embedded.models import attach_adapter, end_turns, make_policy, open_model, open_tokenizer
from grpo.embedded.opening import open_encoder, open_log, open_optimizer
from grpo.embedded.policy import Policy, choose_device, choose_dtype
from grpo.embedded.prompts import Encoder
from grpo.embedded.sft import Demonstration, demonstrations, keeps_apart
from grpo.engine import EngineError, Run, schedule
from grpo.metrics.live import Progress
from grpo.metrics.log import MetricsLog


@dataclass
class Tuning:
    """One open run. width: tokens of a row of packed demonstrations; val_loss: when -> what it was."""

    run: Run
    interrupts: Interrupts
    policy: Policy
    optimizer: torch.optim.Optimizer
    train: list[Demonstration]
    val: list[Demonstration]
    packing: bool
    width: int
    per_epoch: int
    total_steps: int
    max_tokens: int
    progress: Progress
    log: MetricsLog
    val_loss: dict[str, float]
    step: int = 0
    saved_step: int = 0
    seconds_before: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    @property
    def checkpoints(self) -> Path:
        """Where they go."""
        return self.run.output_dir / "checkpoints"

    def seconds(self) -> float:
        """Of the run, those before it was taken up again included."""
        return self.seconds_before + time.monotonic() - self._began


@contextlib.contextmanager
def opened(run: Run, interrupts: Interrupts) -> Iterator[Tuning]:
    """A run that stands where its newest checkpoint is. Raises EngineError, DataError."""
    config = run.config
    saved, notes = checkpoint.newest(run.output_dir / "checkpoints") if run.resume else (None, [])
    state = checkpoint.load_state(saved) if saved else {}
    torch.manual_seed(int(config.launcher.seed))
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    rows, val_rows = load_rows(run.train) if run.train else [], load_rows(run.val)
    policy = _open_policy(config, [*rows, *val_rows], saved, state.get("dtype", config.launcher.dtype))
    encoder = open_encoder(config, policy)
    notes += end_turns(policy)
    train, val, lines = _encoded(config, rows, val_rows, encoder, policy)
    notes += lines
    per_epoch, total_steps = schedule(config, len(train))
    if not total_steps:
        raise EngineError(f"{len(train)} demonstrations do not fill a batch; lower --train_batch_size")
    packing, line = _packing(config, policy, train, state)
    notes += line
    loggers = list(config.trainer.logger)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(total_steps, shown="console" in loggers))
        log = stack.enter_context(open_log(run, loggers, state.get("step"), progress))
        tuning = Tuning(
            run=run,
            interrupts=interrupts,
            policy=policy,
            optimizer=open_optimizer(policy, config.actor_rollout_ref.actor.optim),
            train=train,
            val=val,
            packing=packing,
            width=max(max(map(len, train)), max(map(len, val))),
            per_epoch=per_epoch,
            total_steps=total_steps,
            max_tokens=token_budget(policy),
            progress=progress,
            log=log,
            val_loss=dict(state.get("val_loss", {})),
        )
        if saved:
            tuning.step = tuning.saved_step = state["step"]
            tuning.seconds_before = state["seconds"]
            checkpoint.load_optimizer(saved, tuning.optimizer)
            notes.append(f"going on after step {tuning.step}, from {saved}")
        _say(tuning, notes)
        yield tuning


def _open_policy(config: DictConfig, rows: list[dict[str, Any]], saved: Path | None, dtype: str) -> Policy:
    texts = [message["content"] for row in rows for message in row["prompt"]] + [row["ground_truth"] for row in rows]
    tokenizer = open_tokenizer(config, texts, saved)
    with_lora = bool(config.actor_rollout_ref.model.lora_rank)
    model = open_model(config, tokenizer, str(saved) if saved and not with_lora else None)
    adapted = attach_adapter(config, model, saved)
    device = choose_device(config.trainer.device)
    policy = make_policy(model, tokenizer, device, choose_dtype(dtype, device), adapted)
    if config.actor_rollout_ref.model.enable_gradient_checkpointing:
        policy.recompute_activations()
    return policy


def _encoded(
    config: DictConfig, rows: list[dict[str, Any]], val_rows: list[dict[str, Any]], encoder: Encoder, policy: Policy
) -> tuple[list[Demonstration], list[Demonstration], list[str]]:
    """(to train on, to evaluate on, lines to say)."""
    longest, notes, found = int(config.data.max_response_length), [], []
    for name, part in (("train", rows), ("evaluation", val_rows)):
        pairs = ((row, row["ground_truth"]) for row in part)
        made, prompts, responses = demonstrations(pairs, encoder, policy, longest=longest)
        if prompts or responses:
            notes.append(
                f"left out of the {name} demonstrations: {prompts} with a prompt over {config.data.max_prompt_length} "
                f"tokens (--max_prompt_length), {responses} with a response over {longest} (--max_response_length)"
            )
        if not made:
            raise EngineError(f"no {name} demonstration is short enough: {notes[-1]}")
        found.append(made)
    if encoder.cut:
        notes.append(f"cut {encoder.cut} prompts (data.truncation={config.data.truncation})")
    return found[0], found[1], notes


def _packing(
    config: DictConfig, policy: Policy, train: list[Demonstration], state: Mapping[str, Any]
) -> tuple[bool, list[str]]:
    """Whether to pack, and a line where the architecture does not allow it. A resumed run does as it did."""
    if "packing" in state or not config.launcher.sft.packing or len(train) < 2:
        return bool(state.get("packing", False)), []
    if keeps_apart(policy, train[0], train[1]):
        return True, []
    kind = policy.model.config.model_type
    return False, [f"{kind} models cannot keep demonstrations in one row apart: each gets a row of its own"]


def _say(tuning: Tuning, notes: list[str]) -> None:
    policy, config = tuning.policy, tuning.run.config
    weights = sum(weight.numel() for weight in policy.model.parameters())
    trained = sum(weight.numel() for weight in policy.trained())
    lora = f", {trained / 1e6:.2f}M of them trained (LoRA)" if policy.adapter is not None else ""
    tuning.progress.note(
        f"SFT on {policy.device}, {str(policy.dtype).removeprefix('torch.')}: {config.actor_rollout_ref.model.path}, "
        f"{weights / 1e6:.1f}M weights{lora}; {len(tuning.train):,} demonstrations, {len(tuning.val):,} to evaluate "
        f"on; {tuning.total_steps} steps of {config.data.train_batch_size}"
    )
    for note in notes:
        tuning.progress.note(note)
