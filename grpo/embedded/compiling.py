"""Functions of tensors as one call that does not hold Python's lock.

A decoding step of a small model is some two hundred operations of microseconds each, and in Python every one of them
takes the interpreter's lock, for which the lanes (lanes.py) wait for each other. TorchScript runs them one after the
other as they are written, with no lock and to the same last digit. torch.compile would make faster ones, once a C++
compiler has worked for half a minute for each size.
"""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable)
_one_at_a_time = threading.Lock()  # lanes ask at the same moment, and Python 3.11 parses in one thread at a time


def compiled(function: F) -> F:
    """The same function; as it is, and said so, where this torch does not compile it."""
    with _one_at_a_time:
        return _compiled(function)


@functools.cache
def _compiled(function: F) -> F:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # in favour of torch.compile
            script = torch.jit.script(function)
    except Exception as error:  # noqa: BLE001 - torch has many words for it, and all mean the same here
        logging.getLogger(__name__).warning(
            "torch %s does not compile %s, so sampling on a CPU is slower: %s",
            torch.__version__,
            function.__name__,
            (str(error).strip().splitlines() or [type(error).__name__])[0],
        )
        return function

    @functools.wraps(function)
    def run(*given: Any) -> Any:
        with torch.jit.optimized_execution(False):  # nothing is fused, or made for the sizes that were seen first
            return script(*given)

    return run  # type: ignore[return-value]
