"""What a run leaves in /dev/shm, where it takes memory until the machine restarts: found and removed.

A file is removed when all of this holds: it was not there before the run, it is ours, it has a name that Python's
shared memory, verl, Ray, torch or NCCL give, and no living process has it open. Anything else there is left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FOLDER = Path("/dev/shm")
# multiprocessing.shared_memory (vLLM too), verl's weight buckets, Ray's object store, torch's tensors, NCCL,
# semaphores, vLLM's tensor parallelism on a CPU
_NAMES = re.compile(r"(psm_|verl_weights_|plasma|torch_\d+_|nccl-|sem\.mp-|vllm_dist_)")
# The inode in a line of /proc/PID/maps. The path there is no help: sem_open maps a file before it gives it its name.
_MAPPED = re.compile(rb" (\d+) +/dev/shm/", re.MULTILINE)


class Segment(NamedTuple):
    """One file in /dev/shm; its inode tells it from another one that gets its name later."""

    name: str
    inode: int


def segments() -> frozenset[Segment]:
    """What is there now under a name that a run may have given."""
    return frozenset(_segments())


def remove_left(before: frozenset[Segment]) -> int:
    """Remove what a run left that began when `before` was there; returns the bytes of memory freed."""
    left = segments() - before
    freed = 0
    if left:
        used = _in_use()
        for name, inode in sorted(left):
            path = FOLDER / name
            if inode not in used:
                with suppress(FileNotFoundError):  # its own process was faster
                    freed += path.stat().st_blocks * 512
                    path.unlink()
    return freed


def _segments() -> Iterator[Segment]:
    if not FOLDER.is_dir():  # macOS
        return
    with os.scandir(FOLDER) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if _NAMES.match(entry.name) and status.st_uid == os.geteuid() and entry.is_file(follow_symlinks=False):
                    yield Segment(entry.name, status.st_ino)


def _in_use() -> set[int]:
    """Inodes in /dev/shm that a living process has mapped or open, as far as we may look."""
    used: set[int] = set()
    device = FOLDER.stat().st_dev
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or another user's: those do not use our files
            used.update(int(inode) for inode in _MAPPED.findall((process / "maps").read_bytes()))
            for handle in (process / "fd").iterdir():
                with suppress(OSError):
                    status = handle.stat()
                    if status.st_dev == device:
                        used.add(status.st_ino)
    return used
