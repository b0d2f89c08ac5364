"""`accuracy`: whether the answer is right, by the shipped reward of the record's data_source. And `code`, with options.

Leaves out the rules: reward_func.py, and code_score.py for programs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.reward_func import KNOWN_SOURCES, compute_score
from reward_funcs.score import Sample


def accuracy(sample: Sample, *, data_source: str | None = None) -> Any:
    """1.0 for the right answer, 0.0 for any other; best value 1. reward_func.py has the rules, by data_source.

    The right answer is the record's ground truth; where it has none, its column `solution` (requirement S3-05, as
    ms-swift's `accuracy`), by the rules of `math` when its data_source has none of its own. data_source: rules for all
    records, whatever they say.
    """
    truth, source = sample.ground_truth, data_source or sample.data_source
    if truth is None or truth == "":
        truth = (sample.extra_info or {}).get("solution")
        if truth is None:
            raise RewardError("accuracy needs an answer: the record has neither a ground_truth nor a column `solution`")
        source = source if source in KNOWN_SOURCES else "math"
    return compute_score(source, sample.solution, truth, sample.extra_info)


def is_right(sample: Sample, data_source: str | None = None) -> bool:
    """Whether `accuracy` is 1."""
    result = accuracy(sample, data_source=data_source)
    return (result["score"] if isinstance(result, dict) else result) >= 1.0


def code(
    sample: Sample,
    *,
    partial: str | None = None,
    jail: str | None = None,
    url: str | None = None,
    timeout: str | None = None,
    memory: str | None = None,
    processes: str | None = None,
    output: str | None = None,
    result: str | None = None,
    disk: str | None = None,
) -> Any:
    """1.0 when the program in the response passes all tests of the ground truth, else 0.0; best value 1.

    The part `pass_rate` is the share that passes, which partial=true pays. The other options, and what they are when
    not given here nor in CODE_REWARD, stand in code_options.py and sandbox/limits.py. What could not be judged is a
    failed call.
    """
    from reward_funcs.code_options import code_options
    from reward_funcs.code_score import code_score

    options = _code_options(code_options(), partial, jail, url, timeout, memory, processes, output, result, disk)
    return code_score(sample.solution, sample.ground_truth, sample.extra_info, options=options)


_CODE_OPTIONS = ("partial", "jail", "url", "timeout", "memory", "processes", "output", "result", "disk")


@lru_cache(maxsize=8)
def _code_options(base: Any, *values: str | None) -> Any:
    from reward_funcs.code_options import read_options

    given = zip(_CODE_OPTIONS, values, strict=True)
    return read_options({name: value for name, value in given if value is not None}, base)


def _check_code(**given: str) -> None:
    """Refuse before training what cannot be run: a wrong option, or no jail on this machine."""
    from reward_funcs.code_options import code_options
    from reward_funcs.code_score import refuse_without_jail

    refuse_without_jail(_code_options(code_options(), *map(given.get, _CODE_OPTIONS)))


def _algebra(**_: Any) -> list[str]:
    from reward_funcs import symbolic

    return symbolic.notes()


CHECKS = {"code": _check_code}
NOTES = {"accuracy": _algebra}
