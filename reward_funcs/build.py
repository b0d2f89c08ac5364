"""The reward of a run from what the user said: names with weights, plug-ins, a file, or a function from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reward_funcs.code_options import run_without_jail
from reward_funcs.combined import Combined
from reward_funcs.errors import RewardError
from reward_funcs.loader import load_reward
from reward_funcs.named import NAMES, from_spec, unknown
from reward_funcs.plugins import load_plugins
from reward_funcs.recipes import importable
from reward_funcs.score import Reward
from reward_funcs.spec import Spec, read_specs


def build_reward(
    *,
    names: str | Sequence[str] = (),
    weights: Sequence[float] | None = None,
    plugins: Sequence[str] = (),
    file: str | None = None,
    name: str = "compute_score",
    function: Callable[..., Any] | None = None,
    max_response_length: int | None = None,
    unsafe_code_exec: bool = False,
) -> Reward | Combined:
    """The one reward that training calls. Raises RewardError, one line.

    names:    --reward: `accuracy,cosine:max_len=1024`, or a list of such; empty = `file`, or the shipped reward
    weights:  --reward_weights, one for each name; None or empty = 1 each
    plugins:  --external_plugins: files that register names
    file:     --reward_func: FILE or FILE:NAME; beside names it is one more of them, the last
    function: given from Python, in place of a file
    max_response_length: tokens; what `max_len` of a reward is when nobody says
    unsafe_code_exec: from now on this process and its workers run model-written code without a jail; False: with one
    """
    run_without_jail(unsafe_code_exec)
    registered = load_plugins(plugins)
    specs = read_specs(names) if names else []
    own = None
    if function is not None:
        own = Reward(function, recipe=importable(function))
    elif file is not None or not specs:
        own = load_reward(file, name)
    if not specs:
        assert own is not None
        if registered:
            raise RewardError(f"--external_plugins registers {', '.join(registered)}; say which to use: --reward NAME")
        if weights:
            raise RewardError("--reward_weights goes with --reward NAME,NAME: one weight for each")
        return own
    rewards = [(_label(spec.name, spec.file), _of(spec, registered, max_response_length)) for spec in specs]
    if own is not None:
        rewards.append((_label(own.name, str(own.file) if own.file else None), own))
    return Combined(rewards, weights)


def _label(name: str, file: str | None) -> str:
    """What the curve is called: the function, or its file where all functions have the same name."""
    return Path(file).stem if file and name == "compute_score" else name


def _of(spec: Spec, registered: dict[str, Reward], max_response_length: int | None) -> Reward:
    if spec.file is not None or spec.name in registered:
        if spec.values or spec.value is not None:
            raise RewardError(
                f"--reward {spec.text}: a reward of your own takes no parameters; write them into its file"
            )
        return registered[spec.name] if spec.file is None else load_reward(spec.file, spec.name)
    if spec.name not in NAMES:
        raise RewardError(unknown(spec.name, [*registered, *NAMES]))
    return from_spec(spec, max_response_length=max_response_length)
