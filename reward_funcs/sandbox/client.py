"""The trainer's side of the sandbox: starts the server, hands programs to it, and holds them to one deadline.

One server per process, made at the first use and again in a forked child; any number of threads may use it. No signal
handler, no event loop, no main thread is needed. Left out: what the answers of a program mean (code_score.py).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import glob
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import asdict, dataclass

from reward_funcs.sandbox.bubblewrap import bubblewrap_command, find_bubblewrap
from reward_funcs.sandbox.cleanup import remove_tree
from reward_funcs.sandbox.errors import SandboxError
from reward_funcs.sandbox.interpreter import environment, find_interpreter
from reward_funcs.sandbox.limits import Limits

_START_SECONDS = 30.0
_GRACE_SECONDS = 10.0  # for the kernel to end what was killed


@dataclass(frozen=True)
class Spawned:
    """A program's ends of ours. status: lines of JSON on how it ended."""

    id: str
    channel: socket.socket
    stdout: int
    stderr: int
    status: int
    stdin: int | None

    def close(self) -> None:
        """Closes what is still open."""
        self.channel.close()
        for fd in (self.stdout, self.stderr, self.status, self.stdin):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)


def _connect(
    name: str, stdin: bool, given: contextlib.ExitStack, kept: contextlib.ExitStack
) -> tuple[Spawned, dict[str, int]]:
    """Our ends and, by name, the program's; `given` closes the latter, `kept` the former."""
    channel, their_channel = socket.socketpair()
    kept.callback(channel.close)
    given.callback(their_channel.close)
    channel.setblocking(False)
    mine: dict[str, int] = {}
    theirs = {"channel": their_channel.fileno()}
    for stream in ("stdout", "stderr", "status", *["stdin"] * stdin):
        read, write = os.pipe()
        mine[stream], theirs[stream] = (write, read) if stream == "stdin" else (read, write)
        kept.callback(os.close, mine[stream])
        given.callback(os.close, theirs[stream])
        os.set_blocking(mine[stream], False)
    return Spawned(name, channel, mine["stdout"], mine["stderr"], mine["status"], mine.get("stdin")), theirs


class Server:
    """A running server with one kind of jail."""

    def __init__(self, jail: str) -> None:
        self.jail = jail
        self.broken = False
        self._count = 0
        self._lock = threading.Lock()
        # Where programs without a file system of their own get a folder each: this, and a number.
        self._folders = os.path.join(tempfile.gettempdir(), f"code-sandbox-{secrets.token_hex(8)}-")
        self._init: int | None = None  # pid of bubblewrap's init, which outlives a killed bubblewrap
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        info_read, info_write = os.pipe()
        try:
            with theirs:
                self._process = self._start(theirs.fileno(), info_write)
        except OSError as error:
            os.close(info_read)
            self._discard(ours)
            raise SandboxError(f"the {jail} jail's server could not be started: {error}") from None
        finally:
            os.close(info_write)
        self.control = ours
        try:
            self._greet(info_read)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(info_read)

    def _start(self, control: int, info: int) -> subprocess.Popen[bytes]:
        interpreter = find_interpreter()
        settings = {
            "control": control,
            "jail": self.jail,
            "folders": self._folders,
            "packages": interpreter.packages,
            "readable": interpreter.readable,
            "own_user": interpreter.open_to_others(parents=self.jail != "bubblewrap"),
        }
        command = interpreter.command(json.dumps(settings))
        if self.jail == "bubblewrap":
            program = find_bubblewrap()
            if program is None:
                raise OSError("bubblewrap (the program bwrap) is not installed")
            command = bubblewrap_command(program, interpreter, info_fd=info, privileged=os.geteuid() == 0) + command
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment("/tmp"),
            cwd="/",
            pass_fds=(control, info),
            start_new_session=True,
        )

    def _greet(self, info: int) -> None:
        if not select.select([self.control], [], [], _START_SECONDS)[0] or not self.control.recv(4096):
            assert self._process.stderr is not None
            os.set_blocking(self._process.stderr.fileno(), False)
            said = (self._process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
            raise SandboxError(
                f"the {self.jail} jail's server did not start: {said[-1][:300] if said else 'no answer'}"
            )
        if self.jail == "bubblewrap":
            with contextlib.suppress(ValueError, KeyError):
                self._init = json.loads(os.read(info, 65536))["child-pid"]

    def spawn(self, role: str, limits: Limits, *, stdin: bool = False, peer: socket.socket | None = None) -> Spawned:
        """Asks for one program. role: what it is to do (jail.py). Raises SandboxError when the server is gone."""
        with self._lock:
            self._count += 1
            name = str(self._count)
        with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
            try:
                spawned, theirs = _connect(name, stdin, given, kept)
                if peer is not None:
                    theirs["peer"] = peer.fileno()
                request = {"op": "run", "id": name, "role": role, "limits": asdict(limits), "fds": list(theirs)}
                socket.send_fds(self.control, [json.dumps(request).encode()], list(theirs.values()))
            except OSError as error:
                self.broken = self.broken or error.errno not in (
                    errno.EMFILE,
                    errno.ENFILE,
                    errno.ENOMEM,
                    errno.ENOBUFS,
                )
                raise SandboxError(f"the {self.jail} jail's server was not reached: {error}") from None
            kept.pop_all()
        return spawned

    def kill(self, spawned: Spawned) -> None:
        """SIGKILL for a program and everything it started."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps({"op": "kill", "id": spawned.id}).encode())

    def close(self, *, at_once: bool = False) -> None:
        """Ends the server, which ends what runs. at_once: it does not answer any more."""
        self.broken = True
        if at_once:
            self._kill()
        self._discard(self.control)
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._discard()

    def _kill(self) -> None:
        for pid in (self._init, self._process.pid):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _discard(self, control: socket.socket | None = None) -> None:
        if control is not None:
            control.close()
        for left in glob.glob(f"{glob.escape(self._folders)}*"):  # by a server that was killed itself
            with contextlib.suppress(OSError):
                remove_tree(left)

    def forget(self) -> None:
        """In a forked child: lets go of the parent's server without ending it."""
        self.control.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process.returncode = 0  # it is not this process's to wait for


_servers: dict[str, Server] = {}
_starting = threading.Lock()


def server(jail: str) -> Server:
    """This process's server for the jail `jail`; started when there is none, or the last one broke."""
    with _starting:
        running = _servers.get(jail)
        if running is None or running.broken:
            if running is not None:
                running.close(at_once=True)
                del _servers[jail]
            running = _servers[jail] = Server(jail)
        return running


def close_servers() -> None:
    """Ends this process's servers; the next use starts new ones."""
    with _starting:
        for running in _servers.values():
            running.close()
        _servers.clear()


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()
    for running in _servers.values():
        running.forget()
    _servers.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no jail either
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_servers)
