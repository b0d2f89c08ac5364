"""A Python process of our own that can be killed: messages over a socket, none of which is trusted.

To the child goes pickle, from it comes JSON, since code that a model wrote may run there. It is the leader of its own
session, so that Ctrl-C does not reach it and one signal ends whatever it started. It ends with its parent, however that
ends. Leaves out what the messages say (workers.py, symbolic.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parent.parent)
_HEADER = 8  # bytes of a message's length
LARGEST_REPLY = 4 * 2**20  # bytes; a longer one is not from our code
_BEGIN = (
    "import sys; root, module, *fds = sys.argv[1:]; "
    "sys.path[:] = [root] + [p for p in sys.path if p not in ('', root)]; "
    "from importlib import import_module; import_module(module).main(*map(int, fds))"
)


class BadReply(Exception):
    """What came from the child is not one of its messages."""


class Child:
    """A running child. module: its `main(socket's fd, lifeline's fd)` is called there."""

    def __init__(self, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        end, self._lifeline = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, _ROOT, module, str(theirs.fileno()), str(end)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), end),
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(end)
        self._unread = bytearray()

    def send(self, message: Any, *, timeout: float) -> None:
        """Hand a message over; raises OSError when the child does not take it."""
        data = pickle.dumps(message)
        self.socket.settimeout(timeout)
        self.socket.sendall(len(data).to_bytes(_HEADER, "big") + data)

    def read(self) -> list[Any]:
        """The messages that are there, after waiting for at least some bytes. Raises EOFError when the child is gone,
        OSError, and BadReply for what is no message."""
        try:
            data = self.socket.recv(2**16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError
        self._unread += data
        found = []
        while len(self._unread) >= _HEADER:
            length = int.from_bytes(self._unread[:_HEADER], "big")
            if length > LARGEST_REPLY:
                raise BadReply(f"a message of {length} bytes")
            if len(self._unread) < _HEADER + length:
                break
            text = bytes(self._unread[_HEADER : _HEADER + length])
            del self._unread[: _HEADER + length]
            try:
                found.append(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise BadReply(str(error)[:100]) from None
        return found

    def kill(self) -> int:
        """End it and all that it started in its session; its exit status, negative for a signal."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        status = self.process.wait()
        self.socket.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return status

    def __del__(self) -> None:
        if hasattr(self, "process") and self._lifeline >= 0:
            self.kill()


class Parent:
    """The child's end."""

    def __init__(self, fd: int, lifeline: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._pid = os.getpid()
        end_with(lifeline)

    def receive(self) -> Any:
        """The next message; None when there is no parent any more."""
        header = self._exactly(_HEADER)
        data = self._exactly(int.from_bytes(header, "big")) if header else None
        return None if data is None else pickle.loads(data)  # noqa: S301 - from our own parent, over our own socket

    def send(self, message: dict[str, Any]) -> None:
        """Answer. A process that the reward forked, and that came back from it, ends here instead."""
        if os.getpid() != self._pid:
            os._exit(0)
        data = json.dumps(message).encode()
        self._socket.sendall(len(data).to_bytes(_HEADER, "big") + data)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            more = self._socket.recv(min(count - len(data), 2**20))
            if not more:
                return None
            data += more
        return bytes(data)


def end_with(lifeline: int) -> None:
    """Let the kernel end this process and those it forks (SIGIO to the group) as soon as the pipe's other end closes.

    Whatever runs here then: a loop in C lets no Python code watch for it.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
