"""How an opened session comes to its first step: evaluated and warmed up, or as its newest checkpoint left it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.record import Record
from grpo.embedded import checkpoint
from grpo.embedded.adapter import load
from grpo.embedded.copies import OLD, REFERENCE, before_adapter, frozen
from grpo.embedded.models import open_model
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import as_row
from grpo.embedded.session import Session
from grpo.embedded.sft import demonstrations, warm_up
from grpo.engine import EngineError
from grpo.metrics.outcome import Outcome

SFT = "sft"  # the milestone after the warm-up, and the folder under checkpoints/ with its model: the reference


def begin(session: Session, demonstrations: list[Record]) -> None:
    """The first start: evaluate, warm up, evaluate again; what comes out is the reference."""
    warm, config = session.checkpoints / SFT, session.run.config
    warmed = session.world.from_first(lambda: session.run.resume and warm.is_dir() and checkpoint.damaged(warm) is None)
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


def take_up(session: Session, saved: Path, state: Mapping[str, Any]) -> None:
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
        world=session.world,
    )

    def write(path: Path) -> None:
        checkpoint.write_model(path, policy)
        state = json.dumps({"outcome": session.outcome.as_dict()}, ensure_ascii=False)
        (path / checkpoint.STATE).write_text(state, encoding="utf-8")

    try:
        session.world.from_first(lambda: checkpoint.publish(session.checkpoints, SFT, write))
    except checkpoint.SaveError as error:
        raise EngineError(f"{error}; it is the reference model and must be on disk: free some space") from error
