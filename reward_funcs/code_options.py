"""The options of the code reward, and where they come from: a caller, `set_code_options`, or the environment.

The environment variable CODE_REWARD ("partial=true,timeout=10") reaches workers in other processes; it is read once.
Running without a jail is none of these: only `--unsafe_code_exec` says so, through `run_without_jail`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.sandbox.limits import Limits, as_limit

ENVIRONMENT = "CODE_REWARD"
_JAILS = ("auto", "bubblewrap", "landlock")


@dataclass(frozen=True)
class CodeOptions:
    """partial: pay the pass rate. jail: auto, bubblewrap or landlock. url: a SandboxFusion server instead of a jail.

    unsafe: no jail at all, only a process with limits. limits: what one response may use.
    """

    partial: bool = False
    jail: str = "auto"
    url: str | None = None
    unsafe: bool = False
    limits: Limits = field(default_factory=Limits)


_NAMES = ("partial", "jail", "url", *(limit.name for limit in fields(Limits)))
_set: CodeOptions | None = None
_without_jail = False


def read_options(given: Mapping[str, Any], base: CodeOptions | None = None) -> CodeOptions:
    """`base` with names and values, which may be text, on top. RewardError names an unknown or impossible one."""
    base = base or CodeOptions()
    limits: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _NAMES:
            raise RewardError(f"code: no option {name[:40]!r}; there are {', '.join(_NAMES)}")
        if name == "partial":
            others[name] = _yes_or_no(name, value)
        elif name in ("jail", "url"):
            others[name] = value
        else:
            limits[name] = as_limit(name, value)
    options = replace(base, **others, limits=replace(base.limits, **limits))
    if options.jail not in _JAILS:
        raise RewardError(f"code: jail={str(options.jail)[:40]!r}; it is one of {', '.join(_JAILS)}")
    if options.url is not None and not str(options.url).startswith(("http://", "https://")):
        raise RewardError(f"code: url={str(options.url)[:80]!r} has to begin with http:// or https://")
    return options


def set_code_options(options: CodeOptions | None) -> None:
    """For every later call in this process; None goes back to the environment's."""
    global _set
    _set = options


def run_without_jail(allowed: bool) -> None:
    """`--unsafe_code_exec`: whether this process, from now on, runs programs with no more than limits."""
    global _without_jail
    _without_jail = allowed


def code_options() -> CodeOptions:
    """Those that were set, else the environment's, else the defaults; unsafe where the user said so."""
    options = _set or _from_environment(os.environ.get(ENVIRONMENT, ""))
    return replace(options, unsafe=True) if _without_jail else options


@functools.lru_cache(maxsize=8)
def _from_environment(text: str) -> CodeOptions:
    pairs = [entry.partition("=") for entry in text.split(",") if entry.strip()]
    for name, sign, _ in pairs:
        if not sign:
            raise RewardError(f"{ENVIRONMENT}: {name[:40]!r} has no value; write name=value,name=value")
    return read_options({name.strip(): value.strip() for name, _, value in pairs})


def _yes_or_no(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise RewardError(f"code: {name}={str(value)[:40]!r}; it is true or false")
    return words[str(value).lower()]
