"""What a program under test may use. Defaults stand here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from reward_funcs.errors import RewardError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_LEAST = {"timeout": 0.1, "memory": 64 * 2**20, "processes": 1, "output": 1, "result": 1024, "disk": 2**16}


@dataclass(frozen=True)
class Limits:
    """For one response, all its test cases together; memory, output, result and disk in bytes.

    timeout: seconds of wall time, counted from the moment the jail stands; enforced from outside with SIGKILL.
    memory: address space of one process, and resident memory of all of them. processes: threads count too.
    output: what it may print. result: what one call may return. disk: all that it writes.
    """

    timeout: float = 5.0
    memory: int = 2**30
    processes: int = 64
    output: int = 2**20
    result: int = 8 * 2**20
    disk: int = 128 * 2**20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not _LEAST[field.name] <= value < 2**60
            ):
                raise RewardError(
                    f"code: {field.name}={value!r}: a number of at least {_LEAST[field.name]} is needed, such as "
                    f"{field.default}"
                )


def as_limit(name: str, value: Any) -> float:
    """`512m` as bytes, `10` as seconds or a count."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", value.strip().lower())
        if match is None:
            raise RewardError(f"code: {name}={value[:40]!r} is not a number, nor a size such as 512m or 1g")
        value = float(match[1]) * _UNITS[match[2]]
    return value if name == "timeout" or isinstance(value, bool) else int(value)
