"""What a fresh fork of the server does before it runs a program: it gives up everything that it could misuse.

With bubblewrap, the fork is the init of the program's own processes, mounts and user, and its child is the program.
With Landlock, and without a jail, the fork is the program. What goes wrong before the program's first line is reported
as an error of the jail, and is never the program's.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reward_funcs.sandbox import kernel, landlock
from reward_funcs.sandbox.bubblewrap import OWN_FOLDER
from reward_funcs.sandbox.interpreter import DEVICES, environment
from reward_funcs.sandbox.seccomp import filter_program, for_process

_CHANNEL, _PEER, _STATUS, _FIRST_FREE = 3, 4, 5, 6
_OPEN_FILES = 256
_STACK = 120 * 2**20  # of the main thread; the kernel leaves a gap of 128 MiB for it
_WATCH_SECONDS = 0.02
_OWN_FACTS = ("status", "stat", "statm", "maps", "limits", "comm")  # of /proc/self, under Landlock


@dataclass
class Job:
    """One program to run. fds: by name; stdin and peer may be absent. folder: its own, when it has no file system."""

    jail: str
    fds: dict[str, int]
    limits: dict[str, Any]
    readable: list[str]
    user: int | None
    role: str
    folder: str | None = None


def report(fd: int, message: dict[str, Any]) -> None:
    """One line to the client. Short enough to be written at once or, when nobody reads any more, not at all."""
    with contextlib.suppress(OSError):
        os.write(fd, json.dumps(message).encode()[:4000] + b"\n")


def enter(job: Job) -> None:
    """Puts this process into its jail and runs the job in it. Does not return."""
    try:
        os.setsid()
        _take_descriptors(job)
        _prefer_for_killing()
        if job.jail == "bubblewrap":
            _be_init(job)
        else:
            _be_program(job)
    except BaseException as error:  # noqa: BLE001 - this process has no caller left; the client is told
        report(_STATUS, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)


def _take_descriptors(job: Job) -> None:
    """The job's own to fixed numbers, everything else closed."""
    high = {name: os.dup2(fd, 200 + i, inheritable=False) for i, (name, fd) in enumerate(job.fds.items())}
    if "stdin" not in high:
        null = os.open("/dev/null", os.O_RDONLY)
        high["stdin"] = os.dup2(null, 199, inheritable=False)
    numbers = {"stdin": 0, "stdout": 1, "stderr": 2, "channel": _CHANNEL, "peer": _PEER, "status": _STATUS}
    for name, fd in high.items():
        os.dup2(fd, numbers[name], inheritable=numbers[name] < 3)
    if "peer" not in high:
        with contextlib.suppress(OSError):
            os.close(_PEER)
    os.closerange(_FIRST_FREE, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _prefer_for_killing() -> None:
    """A machine out of memory kills programs under test before it kills the trainer."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _be_init(job: Job) -> None:
    kernel.die_with_parent()
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    hidden = kernel.MS_NOSUID | kernel.MS_NODEV
    size = f"size={job.limits['disk']},nr_inodes={10_000},mode=0755"
    kernel.mount("tmpfs", OWN_FOLDER, "tmpfs", hidden, size)
    for name in (f"{OWN_FOLDER}/{part}" for part in ("work", "tmp", "shm")):
        os.mkdir(name, 0o700)
        if job.user is not None:
            os.chown(name, job.user, job.user)
    kernel.mount(f"{OWN_FOLDER}/shm", "/dev/shm", flags=kernel.MS_BIND)
    kernel.mount("proc", "/proc", "proc", hidden | kernel.MS_NOEXEC)
    job.folder = f"{OWN_FOLDER}/work"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _be_program(job)
    kernel.set_dumpable(False)  # the program may be of the same user
    for fd in (0, 1, 2, _CHANNEL, _PEER):
        with contextlib.suppress(OSError):
            os.close(fd)
    report(_STATUS, _wait_for(program, job.limits))
    os._exit(0)  # and the kernel ends whatever is left in here


def _wait_for(program: int, limits: dict[str, Any]) -> dict[str, Any]:
    """How the program ended; adopts and reaps its orphans, and ends it when together they use too much."""
    killed_before = _killed_for_memory()
    while True:
        ended = _reaped(program)
        if ended == -signal.SIGKILL and _killed_for_memory() > killed_before:
            return {"error": "the machine ran out of memory and killed a program"}
        if ended is not None:
            return {"code": ended}
        processes = [name for name in os.listdir("/proc") if name.isdecimal() and name != "1"]
        resident = sum(_field(name, "statm", 1) for name in processes) * resource.getpagesize()
        if resident > limits["memory"] < sum(_proportional(name) for name in processes):
            return {"limit": "memory"}
        if sum(_field(name, "stat", 17) for name in processes) > limits["processes"] + 2:
            return {"limit": "processes"}
        signal.sigtimedwait({signal.SIGCHLD}, _WATCH_SECONDS)


def _killed_for_memory() -> int:
    """How many processes this machine has killed because memory ran out."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, StopIteration):
        return 0


def _reaped(program: int) -> int | None:
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == program:
            return os.waitstatus_to_exitcode(status)


def _field(process: str, file: str, position: int) -> int:
    """A number of /proc/N/statm, or of /proc/N/stat after the name; 0 once the process is gone."""
    try:
        with open(f"/proc/{process}/{file}", encoding="utf-8", errors="replace") as opened:
            return int(opened.read().rpartition(")")[2].split()[position])
    except (OSError, IndexError):
        return 0


def _proportional(process: str) -> int:
    """Resident bytes, with pages that several processes share counted once among them."""
    try:
        with open(f"/proc/{process}/smaps_rollup", encoding="ascii", errors="replace") as opened:
            return next(int(line.split()[1]) * 1024 for line in opened if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def _be_program(job: Job) -> None:
    """Confines this process for good, then runs the job's part: nothing of ours is left to take after this."""
    assert job.folder is not None
    os.environ.clear()
    os.environ.update(environment(job.folder))
    os.chdir(job.folder)
    time.tzset()
    run = _part(job.role)
    if job.jail != "none":
        kernel.bar_capabilities()
    _change_user(job)
    _set_limits(job)
    if job.jail != "none":
        kernel.no_new_privileges()
        if job.jail == "landlock":
            landlock.restrict(
                readable=[*job.readable, *(f"/proc/self/{name}" for name in _OWN_FACTS)],
                writable=[job.folder, *DEVICES],
            )
        kernel.drop_capabilities()
        program = filter_program(isolated=job.jail == "bubblewrap")
        if program is None:
            raise OSError(38, "no system call filter for this processor")
        kernel.install_filter(for_process(program, os.getpid()))
    os.close(_STATUS)
    run(job.limits["result"])


def _part(role: str) -> Callable[[int], None]:
    from reward_funcs.sandbox import run_model, run_tests

    return {"main": run_model.as_main, "calls": run_model.calls, "serve": run_model.serve, "tests": run_tests.run}[role]


def _change_user(job: Job) -> None:
    if job.user is not None:
        os.setgroups([])
        os.setresgid(job.user, job.user, job.user)
        os.setresuid(job.user, job.user, job.user)
    elif job.jail == "bubblewrap":
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.CLONE_NEWUSER)  # its own count of processes
        kernel.map_only(uid, gid)


def _set_limits(job: Job) -> None:
    limits = {
        resource.RLIMIT_AS: job.limits["memory"],
        resource.RLIMIT_CORE: 1,  # not 0: with 1 the kernel also starts no crash reporter
        resource.RLIMIT_FSIZE: job.limits["disk"],
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_STACK: _STACK,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if job.user is not None or (job.jail == "bubblewrap" and _counts_by_namespace()):
        limits[resource.RLIMIT_NPROC] = job.limits["processes"]
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _counts_by_namespace() -> bool:
    """Before Linux 5.14, RLIMIT_NPROC counted every process of the user, ours included."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdecimal, minor)) or 0)) >= (5, 14)
