"""Which system calls a program under test may make, as a seccomp program: a list of what is allowed, all else refused.

Two filters. `isolated`: it lives in namespaces of its own, so it may fork and signal what it sees. Else (Landlock):
one process with threads, signals to itself only, and nothing that changes a file's owner, mode or times, which Landlock
does not guard. Pointers cannot be looked at here: paths are the business of the mount namespace or of Landlock.
"""

from __future__ import annotations

import functools
import platform
import struct
from dataclasses import dataclass

from reward_funcs.sandbox.syscalls import AUDIT_ARCH, numbers

_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close close_range
stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat lseek mmap munmap
mremap mprotect madvise brk msync fadvise64 fsync fdatasync ftruncate flock dup dup2 dup3 pipe pipe2 poll ppoll select
pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 timerfd_create
timerfd_settime timerfd_gettime signalfd signalfd4 rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending
rt_sigtimedwait rt_sigsuspend sigaltstack alarm setitimer getitimer pause nanosleep clock_nanosleep clock_gettime
clock_getres gettimeofday time times getrusage sysinfo uname getrandom getcpu getpid getppid gettid getuid geteuid
getgid getegid getresuid getresgid getgroups getpgid getpgrp getsid setsid setpgid getpriority getrlimit setrlimit
sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min futex
futex_waitv set_robust_list set_tid_address rseq membarrier restart_syscall exit exit_group wait4 waitid getcwd chdir
fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat getdents getdents64
umask copy_file_range sendfile recvfrom recvmsg sendto sendmsg shutdown getsockopt getsockname getpeername prctl
arch_prctl capget set_thread_area
"""
_METADATA = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
"""
_ATTRIBUTES = """
getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr setxattr lsetxattr fsetxattr
"""
_ISOLATED_ONLY = "fork vfork execve execveat kill tgkill tkill pidfd_open pidfd_send_signal truncate fallocate"

_EPERM, _ENOTTY, _ENOSYS, _EOPNOTSUPP = 1, 25, 38, 95
_RET_ALLOW, _RET_ERRNO, _RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _JEQ, _JGE, _JGT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x25, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_NEWEST_COMMON = 424  # from here on, a libc falls back when a call is answered ENOSYS, and not when it is EPERM
_X32 = 0x40000000

_CLONE_NEW_ANYTHING = 0x7E020080
_CLONE_THREAD = 0x10000
_SIGKILL = 9
_OWN_PID = 0x7ABCDEF1  # stands for the number that only the new process knows
_SIMPLE_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)  # no F_SETOWN, F_SETSIG, leases, notes, pipe sizes
_SIMPLE_IOCTL = (0x5401, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal; FIONREAD, FIONBIO, CLOEXEC


@dataclass(frozen=True)
class _If:
    """One condition on an argument's low 32 bits: after `mask` it is one of `values` (or, negated, none of them)."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    negated: bool = False


@functools.cache
def filter_program(*, isolated: bool, machine: str | None = None) -> bytes | None:
    """The program; `for_process` makes it fit a process. None on a processor whose numbers we do not know."""
    machine = (machine or platform.machine()).lower()
    table = numbers(machine)
    if table is None:
        return None
    allowed = _ALLOWED.split() + (_ISOLATED_ONLY + _METADATA).split() * isolated
    code = [_op(_LOAD, _ARCH), _op(_JEQ, AUDIT_ARCH[machine], 1, 0), _op(_RETURN, _RET_KILL_PROCESS)]
    code += [_op(_LOAD, _NUMBER)]
    if machine in ("x86_64", "amd64"):
        code += [_op(_JGE, _X32, 0, 1), _error(_ENOSYS)]
    for first, last in _ranges({table[name] for name in allowed if name in table}):
        code += [_op(_JGE, first, 0, 2), _op(_JGT, last, 1, 0), _op(_RETURN, _RET_ALLOW)]
    for name, (conditions, error) in _conditional(isolated).items():
        if name in table:
            block = _block(conditions, error)
            code += [_op(_JEQ, table[name], 0, len(block)), *block]
    if not isolated:
        # As if done: honest programs go on. Landlock guards neither owners nor modes nor times, of any file at all.
        code += _answers(table, _METADATA, _error(0)) + _answers(table, "fallocate", _error(_EOPNOTSUPP))
    code += _answers(table, _ATTRIBUTES, _error(_EOPNOTSUPP)) + _answers(table, "clone3", _error(_ENOSYS))
    code += [_op(_JGE, _NEWEST_COMMON, 0, 1), _error(_ENOSYS), _error(_EPERM)]
    return b"".join(code)


def for_process(program: bytes, pid: int) -> bytes:
    """The program for the process `pid`: it may signal itself."""
    return program.replace(struct.pack("<I", _OWN_PID), struct.pack("<I", pid))


def _conditional(isolated: bool) -> dict[str, tuple[list[_If], int]]:
    """Calls that depend on their arguments, and the errno otherwise."""
    rules = {
        "fcntl": ([_If(1, _SIMPLE_FCNTL)], _EPERM),
        "ioctl": ([_If(1, _SIMPLE_IOCTL)], _ENOTTY),
        # Streams only: a datagram socket of a pair can still be sent to any other address.
        "socketpair": ([_If(0, (1,)), _If(1, (1,), mask=0xF)], _EPERM),
        "prlimit64": ([_If(0, (0,))], _EPERM),
        "sched_setaffinity": ([_If(0, (0,))], _EPERM),
        "clone": ([_If(0, (0,), mask=_CLONE_NEW_ANYTHING)], _EPERM),
    }
    if not isolated:
        rules["clone"] = ([_If(0, (_CLONE_THREAD,), mask=_CLONE_NEW_ANYTHING | _CLONE_THREAD)], _EPERM)
        # Not even itself with SIGKILL: a death by SIGKILL that we did not send is the machine's doing.
        to_itself = _If(0, (_OWN_PID,))
        rules["kill"] = ([to_itself, _If(1, (_SIGKILL,), negated=True)], _EPERM)
        rules["tgkill"] = ([to_itself, _If(2, (_SIGKILL,), negated=True)], _EPERM)
    return rules


def _block(conditions: list[_If], error: int) -> list[bytes]:
    block: list[bytes] = []
    for condition in conditions:
        block.append(_op(_LOAD, _FIRST_ARGUMENT + 8 * condition.argument))
        if condition.mask != 0xFFFFFFFF:
            block.append(_op(_AND, condition.mask))
        block += _refuse_unless(condition, error)
    return [*block, _op(_RETURN, _RET_ALLOW)]


def _refuse_unless(condition: _If, error: int) -> list[bytes]:
    """Compares what is loaded; on to the next instruction after these when the condition holds."""
    count = len(condition.values)
    if condition.negated:
        return [op for value in condition.values for op in (_op(_JEQ, value, 0, 1), _error(error))]
    # a hit jumps over the values still to try and over the refusal
    return [*(_op(_JEQ, value, count - i, 0) for i, value in enumerate(condition.values)), _error(error)]


def _answers(table: dict[str, int], names: str, answer: bytes) -> list[bytes]:
    return [op for name in names.split() if name in table for op in (_op(_JEQ, table[name], 0, 1), answer)]


def _ranges(values: set[int]) -> list[tuple[int, int]]:
    """{0, 1, 2, 5} as (0, 2), (5, 5)."""
    ranges: list[tuple[int, int]] = []
    for value in sorted(values):
        if ranges and ranges[-1][1] == value - 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    return ranges


def _op(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, operand)


def _error(number: int) -> bytes:
    return _op(_RETURN, _RET_ERRNO | number)
