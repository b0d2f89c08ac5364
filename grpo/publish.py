"""Folders that are whole or absent, whenever the machine stops, each with the hash of every file in manifest.json.

Leaves out what is in them; single files are grpo/atomic.py's.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from grpo.atomic import atomic_write, fsync

MANIFEST = "manifest.json"


class SaveError(Exception):
    """A folder could not be written; nothing of it is left, and the older ones are untouched."""


def publish(folder: Path, name: str, write: Callable[[Path], None], *, needs: int = 0) -> Path:
    """folder/name with what `write` puts into it, whole or not at all. needs: bytes that must be free.

    Raises SaveError for what the disk refuses, and whatever `write` raises.
    """
    building, final = folder / f".{name}.tmp-{os.getpid()}", folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < 1.05 * needs:
            raise OSError(f"{needs / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free")
        building.mkdir()
        write(building)
        files = sorted(path for path in building.rglob("*") if path.is_file())
        manifest = {str(path.relative_to(building)): [path.stat().st_size, _sha256(path)] for path in files}
        atomic_write(building / MANIFEST, json.dumps(manifest, indent=1))
        for path in files:
            fsync(path)
        fsync(building)
        replaced = final.exists()
        if replaced:
            os.rename(final, folder / f".{name}.replaced")
        os.rename(building, final)
        fsync(folder)
        if replaced:
            shutil.rmtree(folder / f".{name}.replaced")
    except BaseException as error:
        shutil.rmtree(building, ignore_errors=True)
        before = folder / f".{name}.replaced"
        if before.exists() and not final.exists():
            os.replace(before, final)
        if isinstance(error, OSError):
            raise SaveError(f"{final} was not written: {error}") from error
        raise
    return final


def clear_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what killed calls of publish() left in `folder`, and put back what one of them was replacing.

    Only for one who knows that no other process publishes `name` there now.
    """
    for leftover in folder.glob(f".{name}.tmp-*"):
        shutil.rmtree(leftover)
    for half in folder.glob(f".{name}.replaced"):  # killed between the two renames, or just before the removal
        whole = folder / half.name[1 : -len(".replaced")]
        shutil.rmtree(half) if whole.exists() else os.rename(half, whole)


def damaged(path: Path) -> str | None:
    """What is wrong with a published folder, naming the file; None when every byte is as written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, digest) in manifest.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size or _sha256(file) != digest:
                return f"{name} has changed"
    except (OSError, ValueError, AttributeError, TypeError):
        return f"{MANIFEST} is missing or unreadable"
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
