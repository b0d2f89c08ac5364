"""Landlock: after `restrict`, this process opens files below the given folders only. Needs no privilege and no package.

What it does not guard (seccomp does): owners, modes and times of files, signals before ABI 6, sockets, other kernel
objects; that a path exists can still be seen.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from reward_funcs.sandbox import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FIRST_ABI = (1 << 13) - 1  # execute, read, write, and every way to make or remove an entry
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # since ABI 2, 3, 5
_TCP = 0b11  # bind and connect, since ABI 4
_SCOPES = 0b11  # abstract sockets and signals stay inside, since ABI 6
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_RULE_PATH_BENEATH = 1


def abi() -> int:
    """The kernel's version of Landlock; OSError where it has none, or where a filter forbids it."""
    return kernel.syscall("landlock_create_ruleset", 0, 0, 1)


def restrict(*, readable: Iterable[str], writable: Iterable[str]) -> None:
    """For this process and what comes from it, for good. A path that does not exist is left out.

    readable: folders or files to read and execute. writable: folders to do anything in, or files to read and write.
    """
    version = abi()
    handled = _FIRST_ABI | (version >= 2) * _REFER | (version >= 3) * _TRUNCATE | (version >= 5) * _IOCTL_DEV
    attributes = [handled] + [_TCP] * (version >= 4) + [_SCOPES] * (version >= 6)
    packed = struct.pack(f"{len(attributes)}Q", *attributes)
    rules = kernel.syscall("landlock_create_ruleset", packed, len(packed), 0)
    try:
        for path in readable:
            _allow(rules, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(rules, path, handled & ~_IOCTL_DEV)
        kernel.syscall("landlock_restrict_self", rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # what this user cannot reach needs no permission
    try:
        if not os.path.isdir(path):
            access &= _ON_FILES
        kernel.syscall("landlock_add_rule", rules, _RULE_PATH_BENEATH, struct.pack("<Qi", access, fd), 0)
    finally:
        os.close(fd)
