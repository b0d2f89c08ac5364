"""What a reward prints goes to standard error while a command calls it: standard output is the command's own answer."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

OUT, ERR = 1, 2


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """Everything that is printed inside, by this process or by one that it starts there, goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(OUT)
    try:
        os.dup2(ERR, OUT)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, OUT)
        os.close(kept)
