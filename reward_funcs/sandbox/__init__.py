"""Runs programs that a model wrote, so that they can harm nothing and decide nothing about their own reward.

client.py starts one server per process (server.py), which forks a jail per program (jail.py, landlock.py, seccomp.py,
bubblewrap.py); talk.py holds each program to its deadline; run_model.py and run_tests.py are what runs inside. What the
answers mean is code_score.py's. Linux only: elsewhere, and where no jail holds (probe.py), it refuses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reward_funcs.sandbox.client import close_servers
    from reward_funcs.sandbox.errors import SandboxError
    from reward_funcs.sandbox.limits import Limits
    from reward_funcs.sandbox.probe import JAILS, usable_jail

__all__ = ["JAILS", "Limits", "SandboxError", "close_servers", "usable_jail"]

_MODULES = {
    "JAILS": "probe",
    "Limits": "limits",
    "SandboxError": "errors",
    "close_servers": "client",
    "usable_jail": "probe",
}


def __getattr__(name: str) -> Any:
    """Imported when first asked for: the options of the code reward need the limits only, and nothing to run them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
