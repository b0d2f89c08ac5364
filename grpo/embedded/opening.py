"""Opens a run: model, tokenizer, prompts, reward, logs; then warms up, or takes up where the newest checkpoint is."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from omegaconf import DictConfig, OmegaConf

from data_prep.convert import load_rows
from data_prep.record import Record
from data_prep.records import read_records
from grpo.embedded import checkpoint
from grpo.embedded.beginning import begin, take_up
from grpo.embedded.draws import Draws
from grpo.embedded.encoder_decoder import EncoderDecoderPolicy
from grpo.embedded.interrupts import Interrupts
from grpo.embedded.memory import token_budget
from grpo.embedded.models import attach_adapter, end_turns, make_policy, open_model, open_tokenizer
from grpo.embedded.parallel import ALONE, World
from grpo.embedded.policy import Policy, choose_device, choose_dtype
from grpo.embedded.prompts import Encoder, Prompt, encode
from grpo.embedded.scoring import open_scoring
from grpo.embedded.session import Session
from grpo.embedded.settings import Settings
from grpo.engine import EngineError, Run, schedule
from grpo.metrics.live import Progress
from grpo.metrics.log import MetricsLog
from grpo.metrics.outcome import Outcome


@contextlib.contextmanager
def open_session(run: Run, settings: Settings, interrupts: Interrupts, world: World = ALONE) -> Iterator[Session]:
    """A session ready for its next step. Raises EngineError, DataError, RewardError, StopRequested."""
    config = run.config
    # The first process may set a damaged folder aside.
    saved, notes = world.from_first(
        lambda: checkpoint.newest(run.output_dir / "checkpoints") if run.resume else (None, [])
    )
    state = checkpoint.load_state(saved) if saved else {}
    torch.manual_seed(settings.seed)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what it retries ends in one line of ours
    transformers.utils.logging.disable_progress_bar()  # its bars for a second's work break the display

    rows = load_rows(run.train) if run.train else []
    demonstrations = _read_demonstrations(config)
    policy = _open_policy(world, config, rows, demonstrations, saved, state.get("dtype", config.launcher.dtype))
    world.copy_from_first(policy.trained())
    encoder = open_encoder(config, policy)
    if not encoder.has_template:
        notes.append(
            "the tokenizer has no chat template: prompts are given as plain text; --prompt_template gives another"
        )
    notes += end_turns(policy)
    prompts, val_prompts, lines = _encode(config, rows, load_rows(run.val), encoder)
    notes += lines
    per_epoch, total_steps = _schedule(run, len(prompts))
    loggers = list(config.trainer.logger)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(total_steps, shown="console" in loggers))
        scoring = stack.enter_context(open_scoring(run, interrupts)) if world.first else None
        notes += scoring.notes if scoring else []
        log = stack.enter_context(open_log(run, loggers, state.get("step"), progress)) if world.first else None
        session = Session(
            run=run,
            settings=settings,
            interrupts=interrupts,
            policy=policy,
            reference=None,
            optimizer=open_optimizer(policy, settings.optim),
            reward=scoring,
            encoder=encoder,
            draws=Draws(run, settings, prompts, encoder),
            prompts=prompts,
            val_prompts=val_prompts,
            per_epoch=per_epoch,
            total_steps=total_steps,
            max_micro_tokens=min(settings.max_micro_tokens, _token_budget(run.config, policy, world)),
            progress=progress,
            log=log,
            outcome=Outcome(**state.get("outcome", {})),
            world=world,
        )
        _say_what_runs(session, notes)
        if saved:
            take_up(session, saved, state)
        else:
            begin(session, demonstrations)
        yield session


def _open_policy(
    world: World,
    config: DictConfig,
    rows: list[dict[str, Any]],
    demonstrations: list[Record],
    saved: Path | None,
    dtype: str,
) -> Policy:
    texts = [message["content"] for row in rows for message in row["prompt"]]
    texts += [text for record in demonstrations for text in (record.prompt[-1]["content"], record.ground_truth)]
    tokenizer = open_tokenizer(config, texts, saved)
    with_lora = bool(config.actor_rollout_ref.model.lora_rank)
    model = open_model(config, tokenizer, str(saved) if saved and not with_lora else None)
    adapted = attach_adapter(config, model, saved) if with_lora else None
    device = choose_device(config.trainer.device)
    policy = make_policy(model, tokenizer, device, world.from_first(lambda: choose_dtype(dtype, device)), adapted)
    if config.actor_rollout_ref.model.enable_gradient_checkpointing:
        policy.recompute_activations()
    return policy


def _encode(
    config: DictConfig, rows: list[dict[str, Any]], val_rows: list[dict[str, Any]], encoder: Encoder
) -> tuple[list[Prompt], list[Prompt], list[str]]:
    """(prompts to train on, prompts to evaluate on, lines to say)."""
    prompts, left_out = encode(rows, encoder)
    cut = encoder.cut
    val_prompts, val_left_out = encode(val_rows, encoder)
    val_cut = encoder.cut - cut
    longest, most = config.data.max_prompt_length, config.data.val_max_samples
    if not val_prompts:
        raise EngineError(f"every evaluation prompt is over --max_prompt_length {longest}; raise it")
    notes = []
    if left_out or val_left_out:
        notes.append(
            f"left out {left_out} training and {val_left_out} evaluation prompts over {longest} tokens "
            "(--max_prompt_length)"
        )
    if cut or val_cut:
        kept = "last" if config.data.truncation == "left" else "first"
        notes.append(
            f"cut {cut} training and {val_cut} evaluation prompts to their {kept} {longest} tokens "
            f"(data.truncation={config.data.truncation})"
        )
    return prompts, val_prompts[:most] if most > 0 else val_prompts, notes


def _schedule(run: Run, prompts: int) -> tuple[int, int]:
    """(steps per epoch, or 0 when the data has no end; steps in all)."""
    config = run.config
    if run.records is not None:
        if config.trainer.total_training_steps is None:
            raise EngineError("prompts made during training have no end: say how many steps with --max_steps")
        return 0, int(config.trainer.total_training_steps)
    per_epoch, total_steps = schedule(config, prompts)
    if not total_steps:
        raise EngineError(
            f"{prompts} prompts of at most {config.data.max_prompt_length} tokens do not fill one batch of "
            f"--train_batch_size {config.data.train_batch_size}; lower it, or raise --max_prompt_length"
        )
    return per_epoch, total_steps


def open_log(run: Run, loggers: list[str], resume_step: int | None, progress: Progress) -> MetricsLog:
    """Where the run's steps are written. resume_step: the last one to keep."""
    return MetricsLog(
        run.output_dir,
        loggers,
        resume_step,
        project=run.config.trainer.project_name,
        experiment=Path(run.config.trainer.experiment_name).name,
        config=OmegaConf.to_container(run.config),  # type: ignore[arg-type]
        say=progress.note,
    )


def _say_what_runs(session: Session, notes: list[str]) -> None:
    policy, config = session.policy, session.run.config
    weights = sum(weight.numel() for weight in policy.model.parameters())
    trained = sum(weight.numel() for weight in policy.trained())
    lora = f", {trained / 1e6:.2f}M of them trained (LoRA)" if policy.adapter is not None else ""
    count = session.world.size
    threads = f" ({_threads(policy)})" if policy.device.type == "cpu" else ""
    where = f"{policy.device}{threads}" if count == 1 else f"{count} processes, {policy.device}{threads} each"
    session.progress.note(
        f"embedded engine on {where}, {str(policy.dtype).removeprefix('torch.')}: "
        f"{config.actor_rollout_ref.model.path}, {weights / 1e6:.1f}M weights{lora}; {_prompts(len(session.prompts))}, "
        f"{len(session.val_prompts):,} to evaluate on; {session.total_steps} steps"
    )
    for note in notes:
        session.progress.note(note)


def _token_budget(config: DictConfig, policy: Policy, world: World) -> int:
    pair = int(config.data.max_prompt_length) + 2 * int(config.data.max_response_length)
    return token_budget(policy, lanes=policy.lanes, pair=pair, sharers=world.size)


def _prompts(count: int) -> str:
    return f"{count:,} prompt{'s' if count != 1 else ''}"


def _threads(policy: Policy) -> str:
    count = torch.get_num_threads()
    side_by_side = "" if policy.lanes == 1 else f", {policy.lanes} groups at a time"
    return f"{count} thread{'s' if count > 1 else ''}{side_by_side}"


def open_encoder(config: DictConfig, policy: Policy) -> Encoder:
    """What turns a prompt of this run into the tokens that its model reads."""
    return Encoder(
        policy.tokenizer,
        template=config.actor_rollout_ref.model.custom_chat_template,
        max_length=int(config.data.max_prompt_length),
        truncation="filter" if config.data.filter_overlong_prompts else config.data.truncation,
        whole=isinstance(policy, EncoderDecoderPolicy),
    )


def open_optimizer(policy: Policy, optim: Mapping[str, Any]) -> torch.optim.Optimizer:
    """AdamW over what is trained. optim: the values of actor_rollout_ref.actor.optim."""
    return torch.optim.AdamW(
        policy.trained(),
        lr=float(optim["lr"]),
        betas=tuple(optim["betas"]),
        weight_decay=float(optim["weight_decay"]),
        fused=True,  # one pass over the weights; it has kernels for CPUs, CUDA and MPS
    )


def _read_demonstrations(config: DictConfig) -> list[Record]:
    sft = config.launcher.sft
    if not sft.steps:
        return []
    if not sft.files:
        raise EngineError("launcher.sft.steps is set, but launcher.sft.files names no demonstrations")
    return read_records(sft.files, answer_key="response", data_source="demonstration")
