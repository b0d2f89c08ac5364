"""What a reward returns, checked: any reward function as a `Reward`, and a batch of responses scored by it.

A reward that raises or returns None, NaN or text has failed for that response; it is never scored 0. Left out:
deadlines. A reward that hangs hangs the caller until rewards run in workers that can be killed.
"""

from __future__ import annotations

import inspect
import math
import numbers
import reprlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reward_funcs.errors import RewardError

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_LONGEST_TRACEBACK = 4_000  # characters


@dataclass(frozen=True)
class Score:
    """score: what training maximises. parts: what it is made of, by name, for the curves."""

    score: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One response to score. extra_info["index"], when there is one, names the record in error messages."""

    data_source: str
    solution: str
    ground_truth: Any
    extra_info: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Scores:
    """A scored batch, in the order of its samples. scores: None where the call failed, and parts are {} there.

    errors: how many failed. first_error: the traceback of the first, for the user.
    """

    scores: list[float | None]
    parts: list[dict[str, float]]
    errors: int = 0
    first_error: str | None = None


class Reward:
    """A reward function that takes what it asks for and gives a checked `Score`.

    file, sha256: where it came from, for the run's manifest; None for a function given from Python.
    Raises RewardError when the function asks for an argument that no reward is given.
    """

    def __init__(self, function: Callable[..., Any], *, file: Path | None = None, sha256: str | None = None) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.file = file
        self.sha256 = sha256
        self._keywords = _accepted(function, self.place)

    @property
    def place(self) -> str:
        """`file:name`, as error messages show it."""
        return f"{self.file}:{self.name}" if self.file else f"reward {self.name}"

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> Score:
        """Score one response. An exception of the function passes; a result that is no score raises RewardError."""
        given: dict[str, Any] = dict(zip(ARGUMENTS, (data_source, solution_str, ground_truth, extra_info), strict=True))
        if self._keywords is None:
            result = self.function(*given.values())
        else:
            result = self.function(**{name: given[name] for name in self._keywords})
        return _checked(result, self.place)


def _accepted(function: Callable[..., Any], place: str) -> tuple[str, ...] | None:
    """Which of our arguments the function takes by keyword; None when it takes four by position (`*args`, C code)."""
    if not callable(function):
        raise RewardError(f"{place} is {type(function).__name__}, not a function")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise RewardError(f"{place} is `async def`; write it as a plain `def` that returns its score")
    if inspect.isgeneratorfunction(function):
        raise RewardError(f"{place} uses `yield`; it has to return its score")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        taken = ARGUMENTS
    else:
        by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        taken = tuple(p.name for p in parameters if p.name in ARGUMENTS and p.kind in by_keyword)
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    unknown = [p.name for p in parameters if p.default is p.empty and p.kind not in variable and p.name not in taken]
    if not taken and inspect.Parameter.VAR_POSITIONAL in kinds and not unknown:
        return None
    if unknown:
        raise RewardError(
            f"{place} needs the argument '{unknown[0]}', which no reward is given; it may take {', '.join(ARGUMENTS)}, "
            "and any other one with a default"
        )
    return taken


def _checked(result: Any, place: str) -> Score:
    if isinstance(result, Mapping):
        if "score" not in result:
            raise RewardError(f"{place} returned a dict without 'score': it has {_listed(result)}")
        parts = {str(name): _number(value) for name, value in result.items() if name != "score"}
        for name, value in parts.items():
            if value is not None and not math.isfinite(value):
                raise RewardError(f"{place} returned {value} for the part '{name}'; parts have to be finite numbers")
        score = _number(result["score"])
        named = {name: value for name, value in parts.items() if value is not None}  # text cannot be a curve
        return Score(_finite(score, result["score"], place), named)
    return Score(_finite(_number(result), result, place))


def _listed(names: Mapping[Any, Any]) -> str:
    return ", ".join(repr(str(name)[:40]) for name in list(names)[:8]) or "nothing"


def _number(value: Any) -> float | None:
    """A float for bool, int, float and the scalars of numpy and torch; None for anything else."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _finite(score: float | None, returned: Any, place: str) -> float:
    if score is not None and math.isfinite(score):
        return score
    if inspect.iscoroutine(returned):
        returned.close()  # or Python warns, later and elsewhere, that nobody awaited it
    if returned is None:
        shown = "None (is a `return` missing?)"
    else:
        shown = f"{reprlib.repr(returned)} ({type(returned).__name__})"
    raise RewardError(f"{place} returned {shown}; a reward is a finite number, or a dict with 'score'")


def score_batch(reward: Reward, samples: Sequence[Sample], *, max_errors: float) -> Scores:
    """Score every sample, in order. Failed calls are counted and give None; the first traceback is kept.

    max_errors: share (0 to 1) of the batch that may fail; more raises RewardError. KeyboardInterrupt passes.
    """
    scores: list[float | None] = []
    parts: list[dict[str, float]] = []
    errors = 0
    first: tuple[int, BaseException] | None = None
    for i, sample in enumerate(samples):
        result = attempt(reward, sample)
        if isinstance(result, Score):
            scores.append(result.score)
            parts.append(result.parts)
        else:
            scores.append(None)
            parts.append({})
            errors += 1
            first = first or (i, result)
    if first and errors > max_errors * len(samples):
        record = record_name(samples[first[0]], first[0])
        raise RewardError(
            f"{reward.place}: {errors} of {len(samples)} reward calls failed, more than --max_reward_errors "
            f"{max_errors:g} allows; the first, {record}: {last_line(first[1], reward)}"
        ) from first[1]
    return Scores(scores, parts, errors, shown_traceback(first[1]) if first else None)


def attempt(reward: Reward, sample: Sample) -> Score | BaseException:
    """The score of one sample, or the exception that its call ended in. `sys.exit()` in a reward is one, too."""
    try:
        return reward(sample.data_source, sample.solution, sample.ground_truth, sample.extra_info)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - counted and shown
        return error


def record_name(sample: Sample, position: int) -> str:
    """`record 7` by the data's own index, else `response 3` by its place in the batch (both from 0)."""
    index = (sample.extra_info or {}).get("index")
    return f"response {position}" if index is None else f"record {index}"


def last_line(error: BaseException, reward: Reward) -> str:
    """What went wrong on one line, with the line of the user's file where it did."""
    if isinstance(error, RewardError):
        return " ".join(str(error).split())[:500].removeprefix(f"{reward.place} ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if reward.file and Path(frame.filename) == reward.file] or list(frames)
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return " ".join(traceback.format_exception_only(error)[-1].split())[:500] + where


def shown_traceback(error: BaseException) -> str:
    """The traceback from the user's own code on; of a very long one the beginning and the end."""
    trace = error.__traceback__
    while trace and trace.tb_next and Path(trace.tb_frame.f_code.co_filename) == Path(__file__):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    half = _LONGEST_TRACEBACK // 2
    return text if len(text) <= _LONGEST_TRACEBACK else f"{text[:half]}\n  ...\n{text[-half:]}"
