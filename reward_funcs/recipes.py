"""Makes a reward from its `Recipe` again, in another process. What a recipe holds can be pickled.

A user's file travels with its text, so that every worker of a run has the same function, whatever is edited meanwhile.
Leaves out where recipes come from: loader.py, named.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.score import Recipe, Reward


def rebuilt(recipe: Recipe) -> Reward:
    """The reward of a recipe; raises RewardError."""
    maker: Callable[..., Reward] = _MAKERS[recipe.maker]
    return maker(**recipe.values)


def importable(function: Callable[..., Any]) -> Recipe | None:
    """The recipe of a function given from Python; None when another process cannot import it (a lambda, `__main__`)."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    try:
        same = getattr(importlib.import_module(module), name, None) is function
    except ImportError:
        return None
    return Recipe("imported", {"module": module, "name": name, "path": tuple(sys.path)}) if same else None


def _of_file(file: str, source: bytes, name: str) -> Reward:
    from reward_funcs.loader import from_source

    return from_source(Path(file), source, name)


def _of_plugin(file: str, source: bytes, name: str) -> Reward:
    from reward_funcs.plugins import from_plugin

    return from_plugin(Path(file), source, name)


def _of_name(name: str, values: dict[str, Any]) -> Reward:
    from reward_funcs.named import make

    return make(name, values)


def _shipped(name: str) -> Reward:
    from reward_funcs.loader import load_reward

    return load_reward(None, name)


def _imported(module: str, name: str, path: Sequence[str]) -> Reward:
    sys.path += [entry for entry in path if entry not in sys.path]
    try:
        return Reward(getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise RewardError(f"{module}.{name} cannot be imported in a worker process: {error}") from error


_MAKERS: dict[str, Callable[..., Reward]] = {
    "file": _of_file,
    "plugin": _of_plugin,
    "named": _of_name,
    "shipped": _shipped,
    "imported": _imported,
}
