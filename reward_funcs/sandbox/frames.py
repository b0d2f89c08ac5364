"""Messages over a descriptor, on the side of the jail: four bytes of length, then JSON."""

from __future__ import annotations

import os

_LENGTH = 4
LARGEST = 64 * 2**20  # of a message to a program


def send(fd: int, raw: bytes) -> None:
    """Writes one message, whole."""
    view = memoryview(len(raw).to_bytes(_LENGTH, "big") + raw)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int, largest: int = LARGEST) -> bytes | None:
    """The next message; None at the end, or when it is longer than `largest`."""
    header = _exactly(fd, _LENGTH)
    if header is None or int.from_bytes(header, "big") > largest:
        return None
    return _exactly(fd, int.from_bytes(header, "big"))


def _exactly(fd: int, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = os.read(fd, min(count, 2**20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
