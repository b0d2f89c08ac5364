"""Holds a program, or a program and its tests, to one deadline and to its limits, and collects what they say.

Everything is read with a cap, and nothing is waited for longer than the deadline: a program that stops reading, floods,
drips, closes its descriptors or leaves a grandchild with the pipe is ended from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from dataclasses import dataclass, field
from typing import Any

from reward_funcs.sandbox.client import Server, Spawned
from reward_funcs.sandbox.errors import SandboxError
from reward_funcs.sandbox.limits import Limits

_SET_UP_SECONDS = 60.0  # until a jail stands, on a machine under load
_GONE_SECONDS = 15.0  # until everything that was killed is gone
_LEFT_OVER_SECONDS = 0.5  # for what is still in the pipes of a program that is gone
_CHUNK = 65536
_ALL_RESULTS = 4  # times the largest single one, for all of a program's messages
_KEPT_OF_STDERR = 4096


@dataclass
class Talk:
    """One program. order, stdin: what it gets. The rest is what came of it.

    frames: its messages. end: how it ended, as the server said. over: the limit that it broke.
    """

    spawned: Spawned
    order: bytes
    stdin: bytes = b""
    frames: list[bytes] = field(default_factory=list)
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    end: dict[str, Any] = field(default_factory=dict)
    over: str | None = None
    standing: bool = False
    gone: bool = False
    _partial: bytearray = field(default_factory=bytearray)
    _status: bytearray = field(default_factory=bytearray)
    _printed: int = 0
    _said: int = 0


def hold(server: Server, talks: list[Talk], limits: Limits, seconds: float) -> float:
    """Talks until the last of `talks` is gone, then ends the others. Returns the seconds used since all stand.

    Raises SandboxError when a jail could not be set up or broke; a program's own failure is in its Talk.
    """
    poll = _Poll(talks)
    began: float | None = None
    asked = time.monotonic()
    killed: float | None = None
    try:
        while not all(talk.gone for talk in talks):
            now = time.monotonic()
            if began is None and all(talk.standing or talk.gone for talk in talks):
                began = now
            if killed is None and _finished(talks, began, now, seconds, limits):
                killed = now
                for talk in talks:
                    if not talk.gone:
                        server.kill(talk.spawned)
            if began is None and killed is None and now - asked > _SET_UP_SECONDS:
                server.broken = True
                raise SandboxError(f"the {server.jail} jail did not stand after {_SET_UP_SECONDS:g} s")
            if killed is not None and now - killed > _GONE_SECONDS:
                server.broken = True
                raise SandboxError(f"the {server.jail} jail's server does not end a program that it was told to end")
            until = _next_moment(began, killed, asked, seconds) - now
            poll.step(max(0.0, until), limits)
        poll.rest(limits)
    finally:
        for talk in talks:
            if not talk.gone:
                server.kill(talk.spawned)
            talk.spawned.close()
    _raise_if_broken(server, talks, killed is not None)
    return time.monotonic() - (began or asked)


def _finished(talks: list[Talk], began: float | None, now: float, seconds: float, limits: Limits) -> bool:
    """Whether it is time to end what still runs; notes which limit was broken."""
    if began is not None and now - began >= seconds:
        for talk in talks:
            if not talk.gone:
                talk.over = talk.over or "timeout"
        return True
    return talks[-1].gone or any(talk.over for talk in talks)


def _next_moment(began: float | None, killed: float | None, asked: float, seconds: float) -> float:
    if killed is not None:
        return killed + _GONE_SECONDS + 0.1
    return asked + _SET_UP_SECONDS + 0.1 if began is None else began + seconds


def _raise_if_broken(server: Server, talks: list[Talk], killed: bool) -> None:
    for talk in talks:
        if "error" in talk.end:
            raise SandboxError(f"the {server.jail} jail: {talk.end['error']}")
        if "gone" not in talk.end:
            server.broken = True
            raise SandboxError(f"the {server.jail} jail's server has ended while a program ran")
        if "limit" in talk.end:
            talk.over = talk.over or talk.end["limit"]
        elif "code" not in talk.end and not killed:
            raise SandboxError(f"the {server.jail} jail was ended from outside while a program ran")
        elif server.jail == "landlock" and talk.end.get("code") == -9 and not killed:
            # It cannot send itself SIGKILL there, so this was the machine: out of memory, or somebody's kill.
            raise SandboxError("a program was killed from outside; is the machine out of memory?")
        if not talk.standing and not killed:
            raise SandboxError(f"the {server.jail} jail ended before its program began: {talk.end}")


class _Poll:
    """Readiness of every descriptor of every program."""

    def __init__(self, talks: list[Talk]) -> None:
        self.poll = select.poll()
        self.of: dict[int, tuple[Talk, str]] = {}
        self.unsent: dict[int, memoryview] = {}
        for talk in talks:
            spawned = talk.spawned
            framed = len(talk.order).to_bytes(4, "big") + talk.order
            self._add(spawned.channel.fileno(), talk, "channel", select.POLLIN | select.POLLOUT, framed)
            for name in ("stdout", "stderr", "status"):
                self._add(getattr(spawned, name), talk, name, select.POLLIN)
            if spawned.stdin is not None:
                self._add(spawned.stdin, talk, "stdin", select.POLLOUT, talk.stdin)

    def _add(self, fd: int, talk: Talk, name: str, events: int, data: bytes | None = None) -> None:
        self.poll.register(fd, events)
        self.of[fd] = (talk, name)
        if data is not None:
            self.unsent[fd] = memoryview(data)

    def _drop(self, fd: int) -> None:
        self.poll.unregister(fd)
        del self.of[fd]
        self.unsent.pop(fd, None)

    def step(self, seconds: float, limits: Limits) -> None:
        """Waits until something can be read or written, and does it."""
        for fd, events in self.poll.poll(seconds * 1000 + 1):
            talk, name = self.of[fd]
            if events & select.POLLOUT and fd in self.unsent:
                self._write(fd, name, talk)
            if fd in self.of and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._read(fd, name, talk, limits)

    def rest(self, limits: Limits) -> None:
        """What is left in the pipes; whoever still holds their other end is not waited for."""
        until = time.monotonic() + _LEFT_OVER_SECONDS
        for fd in list(self.unsent):
            self.unsent.pop(fd)
            if self.of[fd][1] == "stdin":
                self._drop(fd)
            else:
                self.poll.modify(fd, select.POLLIN)
        while self.of and time.monotonic() < until:
            self.step(until - time.monotonic(), limits)

    def _write(self, fd: int, name: str, talk: Talk) -> None:
        try:
            self.unsent[fd] = self.unsent[fd][os.write(fd, self.unsent[fd][: 1 << 20]) :]
        except BlockingIOError:
            return
        except OSError:  # it does not listen any more
            self.unsent[fd] = memoryview(b"")
        if self.unsent[fd]:
            return
        if name == "stdin":
            self._drop(fd)
            os.close(fd)
            object.__setattr__(talk.spawned, "stdin", None)
        else:
            self.unsent.pop(fd)
            self.poll.modify(fd, select.POLLIN)

    def _read(self, fd: int, name: str, talk: Talk, limits: Limits) -> None:
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(fd)
            talk.gone = talk.gone or name == "status"
        elif name == "status":
            _take_status(talk, chunk)
        elif name == "channel":
            _take_frames(talk, chunk, limits.result)
        else:
            _take_output(talk, name, chunk, limits.output)


def _take_status(talk: Talk, chunk: bytes) -> None:
    talk._status += chunk
    while b"\n" in talk._status:
        line, _, talk._status = talk._status.partition(b"\n")
        with contextlib.suppress(ValueError):
            talk.end.update(json.loads(line))
    talk.gone = "gone" in talk.end


def _take_frames(talk: Talk, chunk: bytes, largest: int) -> None:
    if talk.over:
        return
    talk._partial += chunk
    talk._said += len(chunk)
    if talk._said > _ALL_RESULTS * largest:
        talk.over = "result"
    while len(talk._partial) >= 4:
        length = int.from_bytes(talk._partial[:4], "big")
        if length > largest + 1024:
            talk.over = "result"
            return
        if len(talk._partial) < 4 + length:
            return
        frame = bytes(talk._partial[4 : 4 + length])
        del talk._partial[: 4 + length]
        if talk.standing:
            talk.frames.append(frame)
        talk.standing = True


def _take_output(talk: Talk, name: str, chunk: bytes, most: int) -> None:
    talk._printed += len(chunk)
    if talk._printed > most:
        talk.over = talk.over or "output"
    elif name == "stdout":
        talk.stdout += chunk
    else:
        talk.stderr += chunk[: _KEPT_OF_STDERR - len(talk.stderr)]
