"""The socket between a program and its tests; both ends are given away and closed here."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def peer_sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """One for the program, one for the tests."""
    first, second = socket.socketpair()
    with first, second:
        yield first, second
