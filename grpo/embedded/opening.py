"""Opens a run: model, tokenizer, prompts, reward, logs; then warms up, or takes up where the newest checkpoint is."""

from __future__ import annotations

import contextlib
import json
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
from grpo.embedded.adapter import load
from grpo.embedded.copies import OLD, REFERENCE, before_adapter, frozen
from grpo.embedded.draws import Draws
from grpo.embedded.evaluate import open_scoring
from grpo.embedded.interrupts import Interrupts
from grpo.embedded.memory import token_budget
from grpo.embedded.models import attach_adapter, end_turns, make_policy, open_model, open_tokenizer
from grpo.embedded.policy import Policy, choose_device, choose_dtype
from grpo.embedded.prompts import Encoder, Prompt, as_row, encode
from grpo.embedded.session import Session
from grpo.embedded.settings import Settings
from grpo.embedded.sft import demonstrations, warm_up
from grpo.engine import EngineError, Run, schedule
from grpo.metrics.live import Progress
from grpo.metrics.log import MetricsLog
from grpo.metrics.outcome import Outcome

SFT = "sft"  # the milestone after the warm-up, and the folder under checkpoints/ with its model: the reference


@contextlib.contextmanager
def open_session(run: Run, settings: Settings, interrupts: Interrupts) -> Iterator[Session]:
    """A session ready for its next step. Raises EngineError, DataError, RewardError, StopRequested."""
    config = run.config
    saved, notes = checkpoint.newest(run.output_dir / "checkpoints") if run.resume else (None, [])
    state = checkpoint.load_state(saved) if saved else {}
    torch.manual_seed(settings.seed)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what it retries ends in one line of ours
    transformers.utils.logging.disable_progress_bar()  # its bars for a second's work break the display

    rows = load_rows(run.train) if run.train else []
    demonstrations = _read_demonstrations(config)
    policy = _open_policy(config, rows, demonstrations, saved, state.get("dtype", config.launcher.dtype))
    encoder = Encoder(
        policy.tokenizer,
        template=config.actor_rollout_ref.model.custom_chat_template,
        max_length=int(config.data.max_prompt_length),
        truncation="filter" if config.data.filter_overlong_prompts else config.data.truncation,
    )
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
        scoring = stack.enter_context(open_scoring(run, interrupts))
        notes += scoring.notes
        log = stack.enter_context(_metrics_log(run, loggers, state.get("step"), progress))
        session = Session(
            run=run,
            settings=settings,
            interrupts=interrupts,
            policy=policy,
            reference=None,
            optimizer=_optimizer(policy, settings),
            reward=scoring,
            encoder=encoder,
            draws=Draws(run, settings, prompts, encoder),
            prompts=prompts,
            val_prompts=val_prompts,
            per_epoch=per_epoch,
            total_steps=total_steps,
            max_micro_tokens=min(settings.max_micro_tokens, token_budget(policy)),
            progress=progress,
            log=log,
            outcome=Outcome(**state.get("outcome", {})),
        )
        _say_what_runs(session, notes)
        if saved:
            _take_up(session, saved, state)
        else:
            _begin(session, demonstrations)
        yield session


def _open_policy(
    config: DictConfig, rows: list[dict[str, Any]], demonstrations: list[Record], saved: Path | None, dtype: str
) -> Policy:
    texts = [message["content"] for row in rows for message in row["prompt"]]
    texts += [text for record in demonstrations for text in (record.prompt[-1]["content"], record.ground_truth)]
    tokenizer = open_tokenizer(config, texts, saved)
    with_lora = bool(config.actor_rollout_ref.model.lora_rank)
    model = open_model(config, tokenizer, str(saved) if saved and not with_lora else None)
    adapted = attach_adapter(config, model, saved) if with_lora else None
    device = choose_device(config.trainer.device)
    policy = make_policy(model, tokenizer, device, choose_dtype(dtype, device), adapted)
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


def _metrics_log(run: Run, loggers: list[str], resume_step: int | None, progress: Progress) -> MetricsLog:
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
    threads = f" ({torch.get_num_threads()} threads)" if policy.device.type == "cpu" else ""
    session.progress.note(
        f"embedded engine on {policy.device}{threads}, {str(policy.dtype).removeprefix('torch.')}: "
        f"{config.actor_rollout_ref.model.path}, {weights / 1e6:.1f}M weights{lora}; {len(session.prompts):,} prompts, "
        f"{len(session.val_prompts):,} to evaluate on; {session.total_steps} steps"
    )
    for note in notes:
        session.progress.note(note)


def _begin(session: Session, demonstrations: list[Record]) -> None:
    """The first start: evaluate, warm up, evaluate again; what comes out is the reference."""
    warm, config = session.checkpoints / SFT, session.run.config
    warmed = session.run.resume and warm.is_dir() and checkpoint.damaged(warm) is None
    if warmed:
        session.outcome = Outcome(**checkpoint.load_state(warm)["outcome"])
        policy = session.policy
        if policy.adapter is not None:
            load(policy.adapter, warm)
        else:
            policy.model.load_state_dict(open_model(config, policy.tokenizer, str(warm)).state_dict())
    elif session.settings.val_before_train:
        session.milestone("start", "evaluate")
    if demonstrations and not warmed:
        _warm_up(session, demonstrations)
    if demonstrations:
        session.milestone(SFT, "evaluate after the warm-up")
    if session.settings.needs_reference:
        session.reference = _reference(session, begun=True)
    if session.settings.update_old_after > 1:
        session.old = frozen(session.policy, OLD)
    if session.settings.kl_in_reward:
        session.kl_coef = session.next_kl_coef = session.settings.kl_in_reward.coef


def _take_up(session: Session, saved: Path, state: Mapping[str, Any]) -> None:
    """Go on after the newest checkpoint's step."""
    session.step = session.saved_step = state["step"]
    session.optimizer_steps, session.seconds_before = state["optimizer_steps"], state["seconds"]
    session.draws.done, session.kl_coef = state.get("drawn", session.step), state.get("kl_coef", 0.0)
    session.next_kl_coef = session.kl_coef
    checkpoint.load_optimizer(saved, session.optimizer)
    if session.settings.needs_reference:
        session.reference = _reference(session, begun=False)
    if session.settings.update_old_after > 1:
        session.old = frozen(session.policy, OLD)
    for name, copy in session.copies().items():  # as they were, where the run renews them
        checkpoint.load_copy(saved, name, copy)
    session.progress.note(f"going on after step {session.step}, from {saved}")


def _reference(session: Session, *, begun: bool) -> Policy:
    """The model that GRPO starts from. begun: the policy is still that one.

    With LoRA it is the policy's own model: after a warm-up with the adapter as that left it, else without.
    """
    policy, warm = session.policy, session.checkpoints / SFT
    if not begun and warm.is_dir() and (damage := checkpoint.damaged(warm)):
        raise EngineError(f"{warm}: {damage}; it is the reference model, so start over with --resume disable")
    if policy.adapter is not None:
        if not warm.is_dir():
            return before_adapter(policy, moves=bool(session.settings.update_ref_after))
        reference = frozen(policy, REFERENCE)
        load(policy.adapter, warm, REFERENCE)
        return reference
    if begun:
        return frozen(policy, REFERENCE)
    source = str(warm) if warm.is_dir() else None
    return frozen(policy, REFERENCE, open_model(session.run.config, policy.tokenizer, source))


def _optimizer(policy: Policy, settings: Settings) -> torch.optim.Optimizer:
    optim = settings.optim
    return torch.optim.AdamW(
        policy.trained(),
        lr=float(optim["lr"]),
        betas=tuple(optim["betas"]),
        weight_decay=float(optim["weight_decay"]),
    )


def _read_demonstrations(config: DictConfig) -> list[Record]:
    sft = config.launcher.sft
    if not sft.steps:
        return []
    if not sft.files:
        raise EngineError("launcher.sft.steps is set, but launcher.sft.files names no demonstrations")
    return read_records(sft.files, answer_key="response", data_source="demonstration")


def _warm_up(session: Session, records: list[Record]) -> None:
    """Supervised steps on the demonstrations, and a folder with what came out."""
    policy, sft, optim = session.policy, session.run.config.launcher.sft, session.settings.optim
    rows = ((as_row(record, index), record.ground_truth) for index, record in enumerate(records))
    pairs, left_out, _ = demonstrations(rows, session.encoder, policy)
    if left_out:
        session.progress.note(f"left out {left_out} of {len(records)} demonstrations: their prompts are too long")

    def on_step(step: int, loss: float) -> None:
        session.interrupts.check()
        session.progress.advance(loss=loss)

    session.progress.phase("warm-up (SFT)", sft.steps)
    warm_up(
        policy,
        pairs,
        steps=sft.steps,
        batch_size=sft.batch_size,
        lr=sft.lr,
        weight_decay=float(optim["weight_decay"]),
        clip_grad=float(optim["clip_grad"]),
        seed=session.settings.seed,
        on_step=on_step,
    )

    def write(path: Path) -> None:
        checkpoint.write_model(path, policy)
        state = json.dumps({"outcome": session.outcome.as_dict()}, ensure_ascii=False)
        (path / checkpoint.STATE).write_text(state, encoding="utf-8")

    try:
        checkpoint.publish(session.checkpoints, SFT, write)
    except checkpoint.SaveError as error:
        raise EngineError(f"{error}; it is the reference model and must be on disk: free some space") from error
