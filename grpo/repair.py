"""`--fix`: what is refused gets the nearest value that works, is said, and is tried again. Knows no rule itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from grpo import launch, rules
from grpo.config import ConfigError, Settings
from grpo.engine import Engine
from grpo.resolve import Resolved
from grpo.values import shown

ORIGIN = "flag --fix"
ROUNDS = 9  # one repair may uncover the next; more than this is going in circles

T = TypeVar("T")


def repaired(resolved: Resolved, attempt: Callable[[], T]) -> T:
    """What `attempt()` returns, under --fix once its ConfigErrors are repaired; what was changed goes to the notes."""
    for _ in range(ROUNDS):
        try:
            return attempt()
        except ConfigError as problem:
            if resolved.line.fix != "true" or not problem.fix:
                raise
            _apply(resolved, problem)
    return attempt()


def accepted(resolved: Resolved, engine: Engine, *, own_reward: bool = False, here: bool = True) -> Settings:
    """The settings, once the rules and the engine take them; raises ConfigError.

    own_reward: a reward is given as a callable; here: to train on this machine, not only to plan.
    """

    def attempt() -> Settings:
        settings = resolved.settings()
        rules.check(settings, own_reward=own_reward)
        launch.refuse(engine, launch.make_run(resolved, settings), here=here)
        return settings

    return repaired(resolved, attempt)


def fitted(
    resolved: Resolved,
    data: launch.Data,
    engine: Engine,
    *,
    own_reward: bool = False,
    say: Callable[[str], None] | None = None,
) -> Settings:
    """The settings once the batch fits the data, and what follows from that batch is taken; raises ConfigError.

    say: to train on this machine: what the engine lacks is fetched, which may take minutes, and judged with the rest.
    """
    repaired(resolved, lambda: launch.fit(resolved, data, engine))
    if say is not None:
        engine.prepare(launch.make_run(resolved, resolved.settings()), say)
    return accepted(resolved, engine, own_reward=own_reward, here=say is not None)


def _apply(resolved: Resolved, problem: ConfigError) -> None:
    settings, draft = resolved.settings(), resolved.draft
    for key, value in problem.fix.items():
        before = shown(settings[key]) if key in settings.values else settings.passthrough.get(key, "verl's default")
        if value is None and key in draft.passthrough:
            del draft.passthrough[key], draft.origins[key]
            resolved.notes.append(f"--fix: {before} is left out")
        else:
            draft.key(key, value, ORIGIN)
            resolved.notes.append(f"--fix: {key} is {shown(value)} instead of {before}")
