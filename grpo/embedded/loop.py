"""Training on one screen: prompts -> rollouts -> rewards -> advantages -> update, with what makes it stop and go on.

What a step needs is assembled in session.py; the maths is in grpo/algorithm/.
"""

from __future__ import annotations

import time
from statistics import fmean as mean

from grpo.embedded.gather import gather
from grpo.embedded.interrupts import Interrupts, StopRequested
from grpo.embedded.learn import learn_from, measured
from grpo.embedded.opening import open_session
from grpo.embedded.parallel import ALONE, World
from grpo.embedded.prompts import hash_seed
from grpo.embedded.rollout import Rollouts
from grpo.embedded.session import Session
from grpo.embedded.settings import settings_of
from grpo.embedded.update import Batch, mini_batches, update
from grpo.engine import Interrupted, Result, Run


def train(run: Run, world: World = ALONE) -> Result:
    """Train as `run` says. Raises EngineError, RewardError, DataError, or Interrupted with a checkpoint written.

    world: the processes that train together, each of which calls this.
    """
    settings = settings_of(run.config)
    with Interrupts("before the first step there is nothing to save", launched=world.size > 1) as interrupts:
        try:
            with open_session(run, settings, interrupts, world) as session:
                return _train(session)
        except StopRequested:
            warm_up = "; a warm-up is kept once it is done" if run.config.launcher.sft.steps else ""
            raise Interrupted(f"stopped before the first step, so there is nothing to save{warm_up}") from None


def _train(session: Session) -> Result:
    try:
        for step, prompts in session.steps():
            began = time.perf_counter()
            sampled = gather(session, step, prompts)  # responses and their scores; B = prompts * n
            values = measured(sampled)
            batch, more = learn_from(session, sampled)  # advantages
            session.interrupts.check()  # the last moment at which the weights are still those of the step before
            values |= more | update_policy(session, step, batch)
            session.renew_copies(step)
            values |= speed(sampled.rollouts, time.perf_counter() - began)
            session.finish_step(step, values, sampled.lines())
            session.interrupts.check()
        return session.finish()
    except StopRequested:
        raise Interrupted(session.save_and_say()) from None


def update_policy(session: Session, step: int, batch: Batch) -> dict[str, float]:
    """All optimizer steps on one batch; their mean statistics."""
    settings = session.settings
    seed = hash_seed(settings.seed, "mini_batches", step) if settings.shuffle_mini_batches else None
    stats = []
    for part in mini_batches(batch, size=settings.mini_batch_prompts, epochs=settings.ppo_epochs, shuffle_seed=seed):
        lr = session.next_learning_rate()
        stat = update(
            session.policy,
            session.optimizer,
            part,
            settings.objective,
            clip_grad=float(settings.optim["clip_grad"]),
            max_tokens=session.max_micro_tokens,
            max_rows=settings.max_micro_rows,
            world=session.world,
        )
        stats.append(stat | {"lr": lr})
    session.optimizer.zero_grad(set_to_none=True)  # a gradient is as large as the weights; sampling has use for that
    names = {name: None for stat in stats for name in stat}
    return {name: mean([stat[name] for stat in stats if name in stat]) for name in names}


def speed(rollouts: Rollouts, seconds: float) -> dict[str, float]:
    """Response length, seconds of the step, and its tokens per second: prompts and responses, counted as verl does."""
    lengths = rollouts.response_mask.sum(1).float()
    prompts = rollouts.n * rollouts.prompt_mask.sum()
    return {
        "response_length": float(lengths.mean()),
        "seconds_per_step": seconds,
        "tokens_per_second": float(lengths.sum() + prompts) / seconds,
    }
