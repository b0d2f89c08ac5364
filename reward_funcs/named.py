"""The rewards that have a name: `--reward accuracy,format`. What each is stands in its own module, loaded when used.

Leaves out combining them (combined.py) and rewards of the user's (plugins.py).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.score import Recipe, Reward
from reward_funcs.signature import Shape
from reward_funcs.spec import Spec, bound, nearest


@dataclass(frozen=True)
class Named:
    """Where a reward is. A function f(sample, *, parameters), or a class made of its parameters, called with samples.

    here: it is called in this process, once for a batch: it holds a model or a connection, and has its own deadlines.
    """

    place: str
    here: bool = False


NAMES: dict[str, Named] = {
    "accuracy": Named("reward_funcs.accuracy:accuracy"),
    "code": Named("reward_funcs.accuracy:code"),
    "format": Named("reward_funcs.shaping:format_reward"),
    "cosine": Named("reward_funcs.shaping:cosine"),
    "repetition": Named("reward_funcs.shaping:repetition"),
    "soft_overlong": Named("reward_funcs.shaping:soft_overlong"),
    "length_similarity": Named("reward_funcs.text_overlap:length_similarity"),
    "rouge": Named("reward_funcs.text_overlap:rouge"),
    "knights_knaves": Named("reward_funcs.knights_knaves:knights_knaves"),
    "server": Named("reward_funcs.server_client:Server", here=True),
    "llm_judge": Named("reward_funcs.models.llm_judge:Judge", here=True),
    "reward_model": Named("reward_funcs.models.reward_model:RewardModel", here=True),
}
LENGTHS = ("max_len",)  # parameters that follow the longest response of the run when they are not given


def from_spec(spec: Spec, *, max_response_length: int | None = None) -> Reward:
    """The named reward with its parameters. Raises RewardError for an unknown name, with the nearest, or parameter."""
    if spec.name not in NAMES:
        raise RewardError(unknown(spec.name, list(NAMES)))
    function = _loaded(NAMES[spec.name])
    values = bound(spec, function, skip=0 if inspect.isclass(function) else 1)
    for name in LENGTHS:
        if name in inspect.signature(function).parameters and values.get(name) is None:
            if max_response_length is None:
                raise RewardError(f"--reward {spec.text}: say the longest response, {spec.name}:{name}=1024")
            values[name] = max_response_length
    return make(spec.name, values)


def make(name: str, values: dict[str, Any]) -> Reward:
    """The named reward with these parameters, already converted; raises RewardError."""
    named = NAMES[name]
    function = _loaded(named)
    if inspect.isclass(function):
        made: Any = function(**values)
        reward = Reward(made, name=name, shape=Shape("samples"))
    else:
        room = sys.modules[function.__module__]
        if check := getattr(room, "CHECKS", {}).get(name):
            check(**values)
        reward = Reward(partial(function, **values), name=name, shape=Shape("sample"))
        if notes := getattr(room, "NOTES", {}).get(name):
            reward.notes = tuple(notes(**values))
    if not named.here:
        reward.recipe = Recipe("named", {"name": name, "values": values})
    return reward


def unknown(name: str, known: list[str]) -> str:
    """One line about a name that no reward has."""
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near else ""
    return (
        f"no reward is called '{name[:80]}'; {hint}Known: {', '.join(known)}. A name of your own comes from "
        "--external_plugins FILE, and a function from FILE.py:NAME"
    )


def _loaded(named: Named) -> Any:
    module, _, name = named.place.partition(":")
    return getattr(importlib.import_module(module), name)
