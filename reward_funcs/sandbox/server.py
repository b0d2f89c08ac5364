"""The server: a small process that forks one jail per program, watches it, and says when it is gone for certain.

It is started by client.py, fresh (never forked from the trainer), inside bubblewrap or beside it, and holds no secret.
Requests come over one socket, each with the descriptors of its program; what that does never passes through here.
Left out: deadlines and results, which are the client's.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from reward_funcs.sandbox import kernel
from reward_funcs.sandbox.cleanup import remove_tree, space_used
from reward_funcs.sandbox.jail import Job, enter, report
from reward_funcs.sandbox.seccomp import filter_program
from reward_funcs.sandbox.usage import deleted_but_open, threads_of

WATCH_SECONDS = 0.02
MOST_ENTRIES = 4_096  # files and folders that a program may have in its folder at one time
_FEW_ENTRIES = 50
# What programs import most, loaded once instead of in each of them.
_COMMON = (
    *("abc", "array", "ast", "asyncio", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy"),
    *("dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io"),
    *("itertools", "json", "linecache", "math", "numbers", "operator", "queue", "random", "re", "signal", "site"),
    *("statistics", "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "time", "traceback"),
    *("types", "typing", "unittest", "uuid", "reward_funcs.sandbox.run_model"),
    *("reward_funcs.sandbox.run_tests", "reward_funcs.sandbox.remote_model", "reward_funcs.sandbox.remote_names"),
)


@dataclass
class _Running:
    pid: int
    status: int  # where the client reads how it ended
    folder: str | None
    limits: dict[str, Any]
    slot: int
    over: str | None = None  # the limit that the watch found broken


@dataclass
class _Server:
    control: socket.socket
    settings: dict[str, Any]
    running: dict[str, _Running] = field(default_factory=dict)
    first_user: int | None = None
    own_processes: int = -1  # descriptor of the process namespace to come back to


def main(text: str) -> None:
    """Serves until the other end of the control socket is closed. text: JSON of the settings."""
    settings = json.loads(text)
    sys.path += settings["packages"]
    for name in _COMMON:
        importlib.import_module(name)
    server = _Server(socket.socket(fileno=settings["control"]), settings)
    root = os.geteuid() == 0 and kernel.has_capabilities(kernel.CAP_SETUID) and settings["own_user"]
    server.first_user = _unused_users() if root else None
    filter_program(isolated=settings["jail"] == "bubblewrap")  # cached for the forks
    if settings["jail"] == "bubblewrap":
        _become_privileged()
        server.own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    else:
        kernel.adopt_orphans()
    gc.collect()
    gc.freeze()  # forked programs then share these pages, as no collection writes into them
    server.control.send(b'{"hello": true}')
    job = _serve(server)
    if job is not None:
        enter(job)
    _leave(server)


def _become_privileged() -> None:
    """Capabilities over namespaces of our own, unless root gave them: each program's namespaces are made with them."""
    if kernel.has_capabilities(kernel.CAP_SYS_ADMIN):
        return
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    kernel.map_only(uid, gid)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.die_with_parent()


def _unused_users() -> int | None:
    """The first of 4,096 numbers of users that exist nowhere and that we may become; None where only few are mapped."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    for first in (0x60000000 + os.getppid() % 65536 * 4096, 50_000):
        if any(inside <= first and first + 4096 <= inside + count for inside, _, count in ranges):
            return first
    return None


def _serve(server: _Server) -> Job | None:
    """Answers requests. In a fork it returns the job that the fork is for; in the server, None at the end."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(server.control, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    watching = server.settings["jail"] != "bubblewrap"  # there, the init of each program watches
    next_look = 0.0
    while True:
        timeout = WATCH_SECONDS * 1000 if watching and server.running else None
        ready = {fd for fd, _ in poll.poll(timeout)}
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 65536)
        _reap(server)
        if server.control.fileno() in ready:
            raw, fds, _, _ = socket.recv_fds(server.control, 65536, 8)
            if not raw:
                return None
            job = _answer(server, json.loads(raw), list(fds))
            if job is not None:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return job
        if watching and server.running and time.monotonic() >= next_look:
            _look(server)
            next_look = time.monotonic() + WATCH_SECONDS


def _answer(server: _Server, request: dict[str, Any], fds: list[int]) -> Job | None:
    if request["op"] == "kill":
        if running := server.running.get(request["id"]):
            _kill(running.pid, server.settings["jail"])
        return None
    named = dict(zip(request["fds"], fds, strict=True))
    slot = min(set(range(len(server.running) + 1)) - {running.slot for running in server.running.values()})
    user = None if server.first_user is None else server.first_user + slot
    settings = server.settings
    job = Job(settings["jail"], named, request["limits"], settings["readable"], user, request["role"])
    try:
        if settings["jail"] != "bubblewrap":
            job.folder = folder = settings["folders"] + request["id"]
            os.mkdir(folder, 0o700)
            if (free := shutil.disk_usage(folder).free) < request["limits"]["disk"]:
                raise OSError(errno.ENOSPC, f"{free} bytes are free at {folder}, less than a program may write")
            if user is not None:
                os.chown(folder, user, user)
        if user is not None:  # /dev/stdin opens the pipe anew, by its owner and mode
            for fd in fds:
                os.fchown(fd, user, user)
        pid = _fork(server)
    except OSError as error:
        report(named["status"], {"error": f"a program's process could not be made: {error}"})
        if job.folder:
            remove_tree(job.folder)
        pid = -1
    if pid == 0:
        return job
    for name, fd in named.items():
        if name != "status" or pid < 0:
            os.close(fd)
    if pid > 0:
        server.running[request["id"]] = _Running(pid, named["status"], job.folder, request["limits"], slot)
    return None


def _fork(server: _Server) -> int:
    if server.own_processes < 0:
        return os.fork()
    kernel.unshare(kernel.CLONE_NEWPID)
    try:
        pid = os.fork()
    except OSError:
        kernel.enter_namespace(server.own_processes, kernel.CLONE_NEWPID)
        raise
    if pid:
        kernel.enter_namespace(server.own_processes, kernel.CLONE_NEWPID)
    return pid


def _reap(server: _Server) -> None:
    """Tells the client of each program that has ended, once everything of it has."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        name = next((name for name, running in server.running.items() if running.pid == pid), None)
        if name is None:
            continue
        ended = server.running.pop(name)
        if server.settings["jail"] == "bubblewrap":
            final: dict[str, Any] = {}  # its init has reported
        else:
            final = {"code": os.waitstatus_to_exitcode(status)}
            _end_group(pid)
            if server.settings["jail"] == "none":
                _end_orphans(server)
        if ended.over:
            final = {"limit": ended.over}
        if ended.folder:
            _clean_up(ended.folder)
        report(ended.status, {**final, "gone": True})
        os.close(ended.status)


def _clean_up(folder: str) -> None:
    """At once when little was left there; else in a process of its own, so that no other program waits for it."""
    child = -1
    if space_used(folder, most_entries=_FEW_ENTRIES) is None:
        with contextlib.suppress(OSError):  # no process to be had: then it is done here
            child = os.fork()
    if child <= 0:
        with contextlib.suppress(OSError):  # the client tries again when it closes this server
            remove_tree(folder)
        if child == 0:
            os._exit(0)


def _kill(pid: int, jail: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if jail == "none":
        _end_group(pid)


def _end_group(pid: int) -> None:
    """What a program without a jail has started: its session's group, and what became ours when its parents died."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _look(server: _Server) -> None:
    """Ends programs over their threads or their space, where no namespace bounds them."""
    for running in server.running.values():
        if running.over or running.folder is None:
            continue
        limits = running.limits
        used = space_used(running.folder, most_entries=MOST_ENTRIES)
        if used is None or used + deleted_but_open(running.pid) > limits["disk"]:
            running.over = "disk"
        elif threads_of(running.pid) > limits["processes"]:
            running.over = "processes"
        if running.over:
            _kill(running.pid, server.settings["jail"])
    if server.settings["jail"] == "none":
        _end_orphans(server)


def _end_orphans(server: _Server) -> None:
    """Without a jail, a program's processes can leave its group; they become ours when their parents die."""
    known = {running.pid for running in server.running.values()}
    with contextlib.suppress(OSError), open("/proc/thread-self/children", encoding="ascii") as file:
        for orphan in {int(pid) for pid in file.read().split()} - known:
            _kill(orphan, "landlock")


def _leave(server: _Server) -> None:
    for running in server.running.values():
        _kill(running.pid, server.settings["jail"])
    for running in server.running.values():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(running.pid, 0)
        if running.folder:
            with contextlib.suppress(OSError):
                remove_tree(running.folder)
    os._exit(0)
