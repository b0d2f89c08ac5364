"""Files that are whole or absent, whenever the machine stops. Leaves out folders of many files (checkpoints)."""

from __future__ import annotations

import os
from pathlib import Path


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` (text as UTF-8), safely on disk before this returns. Raises OSError; then `path` is as
    it was and no temporary file is left."""
    unfinished = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Make a file's bytes, or a folder's names (renamed, new, deleted), survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
