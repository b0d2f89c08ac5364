"""What a running process uses, as /proc tells it, for the server's watch."""

from __future__ import annotations

import contextlib
import os


def threads_of(pid: int) -> int:
    """How many threads it has now; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[17])
    except OSError:
        return 0  # gone


def deleted_but_open(pid: int) -> int:
    """Bytes of files that have no name any more."""
    total = 0
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(f"/proc/{pid}/fd/{fd}")
                total += status.st_blocks * 512 * (status.st_nlink == 0)
    except OSError:
        return 0  # gone, or not ours to look into: then its file sizes and its descriptors bound it
    return total
