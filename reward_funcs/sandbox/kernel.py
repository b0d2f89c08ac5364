"""The kernel calls that Python's library lacks, through ctypes: prctl, mount, namespaces, capabilities, filters.

Linux only; nothing is loaded until the first call. Every call raises OSError with the kernel's errno when it fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from typing import Any

from reward_funcs.sandbox.syscalls import numbers

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 1, 4, 24, 28
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SECBIT_NOROOT_AND_LOCKED = 0b11
_CAPABILITY_VERSION_3 = 0x20080522
_FILTER_FLAG_SPEC_ALLOW = 4


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _words(*values: Any) -> list[Any]:
    """Arguments of a variadic C function: ctypes would pass a Python int as 32 bits."""
    return [ctypes.c_long(value) if isinstance(value, int) else value for value in values]


def syscall(name: str, *arguments: Any) -> int:
    """A system call by name. Pointers are given as ctypes or bytes."""
    table = numbers()
    if table is None or name not in table:
        raise OSError(38, f"{name}: not known on this processor")
    return _checked(_libc().syscall(*_words(table[name], *arguments)), name)


def _prctl(option: int, *arguments: int) -> int:
    return _checked(_libc().prctl(*_words(option, *arguments, *[0] * (4 - len(arguments)))), f"prctl {option}")


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Processes whose parent below us dies become our children, instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(value: bool) -> None:
    """Without it: no core dump, and no other process of the same user may look inside."""
    _prctl(_PR_SET_DUMPABLE, int(value))


def no_new_privileges() -> None:
    """Setuid programs give nothing from here on."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def bar_capabilities() -> None:
    """No exec gives any capability from here on, also not to uid 0. What is held now stays."""
    with contextlib.suppress(OSError):  # past the last one that this kernel knows; or none are held to drop
        for capability in range(64):
            _prctl(_PR_CAPBSET_DROP, capability)
    with contextlib.suppress(PermissionError):  # without a capability; no_new_privileges keeps it so
        _prctl(_PR_SET_SECUREBITS, _SECBIT_NOROOT_AND_LOCKED)


def drop_capabilities() -> None:
    """What is held now."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    syscall("capset", header, bytes(24))


CAP_SETUID, CAP_SYS_ADMIN = 1 << 7, 1 << 21


def has_capabilities(wanted: int) -> bool:
    """Whether this process has all of `wanted` in its user namespace."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16) & wanted == wanted
    return False


def unshare(flags: int) -> None:
    """New namespaces for this process (CLONE_NEWPID: for its next children)."""
    syscall("unshare", flags)


def enter_namespace(fd: int, kind: int) -> None:
    """Back into the namespace behind `fd`."""
    syscall("setns", fd, kind)


def map_only(uid: int, gid: int) -> None:
    """The maps of a new user namespace: this one user, by the same number, and no supplementary groups."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2). Texts are paths and options as the kernel takes them."""
    texts = [text.encode() if text else None for text in (source, target, kind)]
    result = _libc().mount(*texts, ctypes.c_ulong(flags), options.encode() if options else None)
    _checked(result, f"mount {target}")


def install_filter(program: bytes) -> None:
    """A seccomp program for this process and all that come from it. Needs no_new_privileges first."""
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    syscall("seccomp", 1, _FILTER_FLAG_SPEC_ALLOW, header)
