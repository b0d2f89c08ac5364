"""The overrides that bring our reward functions, or the user's file, into verl's reward workers. Leaves out the calls
themselves (inside/)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.engine import Run, reward_arguments

INSIDE = Path(__file__).resolve().parents[1] / "inside"
CALLS = "reward_parts"  # folder in a run's folder: what the workers write down, for records.py
FUNCTION = "reward.custom_reward_function"
MANAGER = "reward.reward_manager"


def settings(run: Run) -> Iterator[tuple[str, Any]]:
    """(verl's key, value); what the user says of the manager's source goes before."""
    yield f"{FUNCTION}.path", str(INSIDE / "reward.py")
    yield f"{FUNCTION}.name", "compute_score"
    # One text, since the names and weights of `--reward` are lists.
    arguments = reward_arguments(run.config) | {"timeout": float(run.config.launcher.reward.timeout)}
    yield f"{FUNCTION}.reward_kwargs.reward", json.dumps(arguments, ensure_ascii=False)
    yield f"{FUNCTION}.reward_kwargs.calls_folder", str(run.output_dir / CALLS)
    if not uses_v1(run):
        # An exception in a reward would end the older trainer with no word; the launcher ends it, and says why.
        yield f"{FUNCTION}.reward_kwargs.failed", "zero"
    if f"{MANAGER}.source" not in run.passthrough:
        yield f"{MANAGER}.source", "importlib"
        yield f"{MANAGER}.module.path", str(INSIDE / "reward_manager.py")


def refusals(run: Run) -> list[str]:
    """Overrides whose effect would not get past our reward, one line each with what to do instead."""
    lines = [
        f"launcher.reward.names ({run.origins.get('launcher.reward.names', 'default')}): every reward worker of verl "
        f"would load a model for {name}; serve it once with ./train.sh serve-reward, and take server:http://HOST:PORT"
        for name in run.config.launcher.reward.names
        if re.match(r"reward_model\b|llm_judge\b(?!.*url=)", name)
    ]
    for key, override in run.passthrough.items():
        if key.startswith(f"{FUNCTION}.reward_kwargs"):
            lines.append(
                f"{key} ({run.origins.get(key, 'override')}): reward functions are called in the same way by both "
                "engines, without arguments of their own; write the value into the file of --reward_func"
            )
        elif key == "reward.reward_model.enable" and _is_true(override):
            lines.append(
                f"{key} ({run.origins.get(key, 'override')}): a reward function decides the score, and the address of "
                "a reward model does not reach it; leave it out, and ask a server of your own in --reward_func"
            )
    return lines


def uses_v1(run: Run) -> bool:
    """Whether verl's V1 trainer runs (its default): it leaves a response out whose reward raised."""
    return _is_true(run.passthrough.get("trainer.use_v1", "=true"))


def _is_true(override: str) -> bool:
    return override.rpartition("=")[2].strip("'\"").lower() in ("true", "yes", "on", "1")
