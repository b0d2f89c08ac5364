"""Removes what a program left behind, whatever its shape: folders without rights, a million levels, odd names."""

from __future__ import annotations

import contextlib
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Removes the folder `path`, with few descriptors: deep folders are moved up before they are emptied."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    try:
        moved, unique = 0, os.urandom(8).hex()
        while names := os.listdir(top):
            for name in names:
                moved = _remove_entry(top, name, moved, unique)
    finally:
        os.close(top)
    os.rmdir(path)


def _remove_entry(top: int, name: str, moved: int, unique: str) -> int:
    """Removes one entry of the top folder; folders inside it become entries of the top. Returns the count of moves."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return moved
    os.chmod(name, 0o700, dir_fd=top)
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            if stat.S_ISDIR(os.lstat(inner, dir_fd=folder).st_mode):
                os.chmod(inner, 0o700, dir_fd=folder)  # to move a folder, it has to be writable itself
                moved += 1
                os.rename(inner, f"{unique}-{moved}", src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
    return moved


def space_used(path: str, *, most_entries: int, deepest: int = 64) -> int | None:
    """Bytes on disk of everything below `path`; None when it has more entries or levels than allowed, or hides some."""
    try:
        folder = os.open(path, _FOLDER)
    except OSError:
        return None
    found = _Found(most_entries)
    try:
        found.look(folder, deepest)
    except OSError:
        return None  # a folder that we may not read: it hides what is in it
    finally:
        os.close(folder)
    return None if found.entries > most_entries else found.bytes


class _Found:
    def __init__(self, most_entries: int) -> None:
        self.bytes = self.entries = 0
        self.most_entries = most_entries

    def look(self, folder: int, levels: int) -> None:
        """Adds up one folder, and those in it; too many levels count as too many entries."""
        for name in os.listdir(folder):
            self.entries += 1 if levels else self.most_entries
            if self.entries > self.most_entries:
                return
            try:
                status = os.lstat(name, dir_fd=folder)
                self.bytes += status.st_blocks * 512
                if stat.S_ISDIR(status.st_mode):
                    inner = os.open(name, _FOLDER, dir_fd=folder)
                    try:
                        self.look(inner, levels - 1)
                    finally:
                        os.close(inner)
            except FileNotFoundError:
                continue  # it changes under our hands; the next look sees it
