"""Rewards that a user's file registers by name: `--external_plugins FILE --reward NAME`.

The file fills a dictionary, which is also how ms-swift's plug-ins do it:

    from reward_funcs import orms

    def dummy(completions, **kwargs):
        return [1.0 if len(completion) > 1024 else 0.0 for completion in completions]

    orms["dummy"] = dummy

A name may be a function or a class, in any of the shapes of signature.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.loader import called, read, run
from reward_funcs.score import Recipe, Reward

orms: dict[str, Callable[..., Any]] = {}  # "outcome reward models", the name that ms-swift gave it


def load_plugins(files: Sequence[str]) -> dict[str, Reward]:
    """Name -> reward, of every name that the files register. Raises RewardError, one line."""
    found: dict[str, Reward] = {}
    for text in files:
        file = Path(os.path.abspath(os.path.expanduser(text)))
        source = read(file, "--external_plugins")
        names = _registered(file, source)
        if not names:
            raise RewardError(
                f"{file}: registers no reward; write `from reward_funcs import orms` and orms['NAME'] = your_function"
            )
        for name in names:
            if not name.isidentifier():
                raise RewardError(f"{file}: {name!r} is no name for --reward; use letters, digits and _")
            found[name] = from_plugin(file, source, name)
    return found


def from_plugin(file: Path, source: bytes, name: str) -> Reward:
    """The reward that a plug-in file with this text registers as `name`."""
    recipe = Recipe("plugin", {"file": str(file), "source": source, "name": name})
    function = called(_registered(file, source)[name], file, name)
    return Reward(function, file=file, sha256=hashlib.sha256(source).hexdigest(), name=name, recipe=recipe)


_by_file: dict[tuple[str, bytes], dict[str, Callable[..., Any]]] = {}


def _registered(file: Path, source: bytes) -> dict[str, Callable[..., Any]]:
    key = (str(file), source)
    if key not in _by_file:
        before = dict(orms)
        orms.clear()
        try:
            module = run(file, source)
            own = getattr(module, "orms", {})  # the file's own dictionary, or one imported from elsewhere
            _by_file[key] = {**orms, **(own if isinstance(own, Mapping) else {})}
        finally:
            orms.clear()
            orms.update(before)
    return _by_file[key]
