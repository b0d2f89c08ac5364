"""Runs programs that a model wrote, so that they can harm nothing and decide nothing about their own reward.

client.py starts one server per process (server.py), which forks a jail per program (jail.py, landlock.py, seccomp.py,
bubblewrap.py); talk.py holds each program to its deadline; run_model.py and run_tests.py are what runs inside. What the
answers mean is code_score.py's. Linux only: elsewhere, and where no jail holds (probe.py), it refuses.
"""

from __future__ import annotations

from reward_funcs.sandbox.client import close_servers
from reward_funcs.sandbox.errors import SandboxError
from reward_funcs.sandbox.limits import Limits
from reward_funcs.sandbox.probe import JAILS, usable_jail

__all__ = ["JAILS", "Limits", "SandboxError", "close_servers", "usable_jail"]
