"""A reward function from a user's file: `load_reward("my_reward.py:name")`. It runs what the file runs when imported.

Left out: packages and module names. A reward is one file; the imports it makes have to be installed or on PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from reward_funcs import reward_func
from reward_funcs.errors import RewardError
from reward_funcs.score import Recipe, Reward

_ROOM = Path(__file__).resolve().parent


def load_reward(path: str | None, name: str = "compute_score") -> Reward:
    """The reward `name` of the Python file `path` (`FILE` or `FILE:NAME`); None gives the shipped one.

    Raises RewardError, one line, when there is no such file, it does not import, or it has no such function.
    """
    if path is None:
        file = _ROOM / "reward_func.py"
        sha256, recipe = _sha256_of_the_room(), Recipe("shipped", {"name": name})
        reward = Reward(_function(reward_func, name, file), file=file, sha256=sha256, recipe=recipe)
        from reward_funcs import symbolic  # here: what it imports is not needed to import the room

        reward.notes = tuple(symbolic.notes())
        return reward
    file, name = file_and_name(path, name)
    return from_source(file, read(file), name)


def read(file: Path, flag: str = "--reward_func") -> bytes:
    """The bytes of a user's file; raises RewardError. flag: what named it, for the message."""
    takes = f"{flag} takes a Python file" + (", as FILE or FILE:NAME" if flag == "--reward_func" else "")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise RewardError(f"{file}: no such file; {takes}") from None
    except IsADirectoryError:
        raise RewardError(f"{file} is a folder; {takes}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise RewardError(f"{file}: cannot be read ({error}); {takes}") from None


def from_source(file: Path, source: bytes, name: str) -> Reward:
    """The reward `name` of a file whose text is `source`, whatever the file holds by now."""
    sha256 = hashlib.sha256(source).hexdigest()
    recipe = Recipe("file", {"file": str(file), "source": source, "name": name})
    function = called(_function(run(file, source), name, file), file, name)
    return Reward(function, file=file, sha256=sha256, name=name, recipe=recipe)


def called(function: Callable[..., Any], file: Path, name: str) -> Callable[..., Any]:
    """A class of callable objects, as ms-swift's rewards are, as one of them; a function as it is."""
    if not isinstance(function, type):
        return function
    try:
        return function()
    except Exception as error:
        raise RewardError(
            f"{file}: the class '{name}' cannot be made without arguments: {_told(error, file)}"
        ) from error


def file_and_name(path: str, name: str) -> tuple[Path, str]:
    """`FILE:NAME` in two, the file absolute; `name` where it names none."""
    file, colon, function = path.rpartition(":")
    if colon and function.isidentifier() and not os.path.exists(path):
        path, name = file, function
    return Path(os.path.abspath(os.path.expanduser(path))), name


def run(file: Path, source: bytes) -> ModuleType:
    """The file as a module of its own name, so that two files called reward.py, dataclasses and pickle all work."""
    sha256 = hashlib.sha256(source).hexdigest()
    place = hashlib.sha256(str(file).encode("utf-8", "surrogateescape")).hexdigest()
    name = f"reward_file_{file.stem if file.stem.isidentifier() else 'unnamed'}_{place[:8]}_{sha256[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = SourceFileLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not loader.exec_module: it would leave a __pycache__ beside the user's file, and trust a stale one.
        exec(loader.source_to_code(source, str(file)), module.__dict__)  # noqa: S102 - the file that the user named
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RewardError(f"{file}{_line(error, file)}: does not import: {_told(error, file)}") from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _line(error: BaseException, file: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f", line {error.lineno}" if error.lineno else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""


def _told(error: BaseException, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}" + ("; save the file as UTF-8" if "codec can't decode" in error.msg else "")
    told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if isinstance(error, ModuleNotFoundError) and error.name:
        neighbour = file.with_name(error.name.partition(".")[0])
        if neighbour.with_suffix(".py").exists() or neighbour.is_dir():
            return f"{told}; it lies beside the file: run with PYTHONPATH={file.parent}"
        return f"{told}; install it in this environment"
    return told


def _function(module: ModuleType, name: str, file: Path) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function
    if function is not None:
        raise RewardError(f"{file}: '{name}' is {type(function).__name__}, not a function")
    own = [
        n
        for n, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__
    ]
    has = ", ".join(sorted(n for n in own if not n.startswith("_"))[:12]) or "none"
    raise RewardError(f"{file}: no function '{name}'; it has: {has}. Define it, or name another with FILE:NAME")


def _sha256_of_the_room() -> str:
    """One hash over the files of the shipped reward: reward_func.py alone only dispatches."""
    digest = hashlib.sha256()
    for file in sorted(_ROOM.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
