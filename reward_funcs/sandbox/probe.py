"""Which jail holds on this machine, found by trying to break out of it. A version number or a file is no proof.

Each candidate runs one program that does honest work and tries to read, write, signal and connect where it must not.
The result is kept for this process.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace

from reward_funcs.sandbox.client import server
from reward_funcs.sandbox.errors import SandboxError
from reward_funcs.sandbox.limits import Limits
from reward_funcs.sandbox.talk import Talk, hold

JAILS = ("bubblewrap", "landlock")
NO_JAIL = "none"

# Prints a word for everything that it should not have been able to do. ARGUMENTS is replaced by a JSON list.
_ESCAPES = r"""
import json, os, socket, tempfile, threading
secret, outside, pid, port = json.loads(ARGUMENTS)
def tried(name, act):
    try:
        act()
    except (OSError, ValueError):
        return
    print(name)
def append():
    with open(secret, "a") as file:
        file.write("x")
tried("read", lambda: open(secret).read())
tried("append", append)
tried("write", lambda: open(outside, "w").close())
tried("delete", lambda: os.unlink(secret))
tried("signal", lambda: os.kill(pid, 0))
tried("environment", lambda: open(f"/proc/{pid}/environ").read())
tried("connect", lambda: socket.create_connection(("127.0.0.1", port), 1))
tried("mode", lambda: os.chmod(secret, 0o777))
if os.environ.get("SANDBOX_CANARY"):
    print("environ")
with tempfile.TemporaryFile() as file:
    file.write(b"honest work")
thread = threading.Thread(target=print, args=("done",))
thread.start()
thread.join()
"""

_found: dict[str, str | None] = {}  # jail -> None when it holds, else why not
_probing = threading.Lock()


def _after_fork() -> None:
    global _probing
    _probing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def usable_jail(candidates: Sequence[str] = JAILS) -> str:
    """The first of `candidates` that holds. Raises SandboxError, which names what each one lacks, when none does."""
    with _probing:
        for jail in candidates:
            if jail not in _found:
                _found[jail] = _why_not(jail)
            if _found[jail] is None:
                return jail
    reasons = "; ".join(f"{jail}: {_found[jail]}" for jail in candidates)
    raise SandboxError(
        f"no sandbox for model-written code works on this machine ({reasons}). Install bubblewrap (apt install "
        "bubblewrap), use a kernel with Landlock (5.13 or newer), name a sandbox server with code:url=http://..., or "
        "run the code unprotected with --unsafe_code_exec"
    )


def _why_not(jail: str) -> str | None:
    if sys.platform != "linux":
        return f"needs Linux, and this is {sys.platform}"
    if jail == NO_JAIL:
        return None
    try:
        broken = _escapes(jail)
    except SandboxError as error:
        return str(error)
    return f"does not hold here: {', '.join(broken)}" if broken else None


def _escapes(jail: str) -> list[str]:
    """What the probing program could do that it must not; SandboxError when it could not even work."""
    with (
        tempfile.TemporaryDirectory(prefix="code-probe-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        secret = os.path.join(folder, "secret")
        with open(secret, "w", encoding="ascii") as file:
            file.write("secret")
        before = _mode(secret)
        arguments = json.dumps([secret, os.path.join(folder, "outside"), os.getpid(), listener.getsockname()[1]])
        program = _ESCAPES.replace("ARGUMENTS", repr(arguments))
        printed = run_script(jail, program)
        escaped = [word for word in printed.split() if word != "done"]
        # A Landlock jail answers chmod as if it were done.
        if _mode(secret) == before:
            escaped = [word for word in escaped if word != "mode"]
    if "done" not in printed.split():
        raise SandboxError("honest work fails in it")
    return escaped


def _mode(path: str) -> int | None:
    return os.stat(path).st_mode if os.path.exists(path) else None


def run_script(jail: str, source: str) -> str:
    """What a script prints in the jail, errors included."""
    limits = replace(Limits(), timeout=10.0)
    running = server(jail)
    order = json.dumps({"source": source}).encode()
    talk = Talk(running.spawn("main", limits, stdin=True), order)
    hold(running, [talk], limits, limits.timeout)
    return talk.stdout.decode(errors="replace") + talk.stderr.decode(errors="replace")
