"""Any reward function as a `Reward`, and a batch of responses scored by it.

A reward that raises or returns None, NaN or text has failed for that response; it is never scored 0. What may be
returned is in returns.py, the shapes of functions in signature.py. Left out: deadlines, and worker processes that can
be killed at them (scoring.py).
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from reward_funcs.async_calls import run_all
from reward_funcs.errors import Failed, RewardError
from reward_funcs.returns import Attempt, Score, checked, checked_list
from reward_funcs.signature import ARGUMENTS, Shape, accepted, columns, shape_of

_ROOM = Path(__file__).resolve().parent
_LONGEST_TRACEBACK = 4_000  # characters


@dataclass(frozen=True)
class Sample:
    """One response to score. extra_info["index"], when there is one, names the record in error messages.

    prompt: text or messages, None where nobody said. length: tokens of the response, None where nobody counted.
    """

    data_source: str
    solution: str
    ground_truth: Any
    extra_info: Mapping[str, Any] | None = None
    prompt: Any = None
    length: int | None = None


@dataclass(frozen=True)
class Scores:
    """A scored batch, in the order of its samples. scores: None where the call failed, and parts are {} there.

    errors: how many failed. first_error: the traceback of the first, for the user.
    """

    scores: list[float | None]
    parts: list[dict[str, float]]
    errors: int = 0
    first_error: str | None = None


class Scorer(Protocol):
    """What can score a batch: a Reward, several of them (Combined), or either in worker processes (Scoring)."""

    @property
    def place(self) -> str:
        """As error messages show it."""
        ...

    @property
    def file(self) -> Path | None:
        """The user's file, whose lines error messages name."""
        ...

    def attempts(self, samples: Sequence[Sample]) -> list[Attempt]:
        """The score of each sample, or what its call ended in, in order."""
        ...


@dataclass(frozen=True)
class Recipe:
    """How another process makes the same reward again: `reward_funcs.recipes` calls the maker with the values."""

    maker: str
    values: Mapping[str, Any]


class Reward:
    """A reward function that takes what it asks for and gives a checked `Score`.

    file, sha256: where it came from, for the run's manifest; None for a function given from Python.
    shape: of the function, where it is one of this room; else read from its signature.
    recipe: how a worker process makes it; None = it can only be called here.
    notes: what the user should know before training, one line each.
    Raises RewardError when the function asks for an argument that no reward is given.
    """

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        file: Path | None = None,
        sha256: str | None = None,
        name: str | None = None,
        shape: Shape | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        self.function = function
        self.name: str = name or getattr(function, "__name__", type(function).__name__)
        self.file = file
        self.sha256 = sha256
        self.recipe = recipe
        self.shape = shape or shape_of(function, self.place)

    @property
    def place(self) -> str:
        """`file:name`, as error messages show it."""
        return f"{self.file}:{self.name}" if self.file else f"reward {self.name}"

    @property
    def singles(self) -> tuple[Reward, ...]:
        """The functions that are called: one."""
        return (self,)

    def combined(self, attempts: Sequence[list[Attempt]]) -> list[Attempt]:
        """One attempt for each response from those of `singles`: the only one's."""
        return attempts[0]

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> Score:
        """Score one response. An exception of the function passes; a result that is no score raises RewardError."""
        return _must(self.attempts([Sample(data_source, solution_str, ground_truth, extra_info)])[0])

    def attempts(
        self,
        samples: Sequence[Sample],
        *,
        timeout: float | None = None,
        done: Callable[[int, Attempt], None] | None = None,
    ) -> list[Attempt]:
        """The score of each sample, or the exception that its call ended in; KeyboardInterrupt passes.

        timeout: seconds for a call of an `async def`; nothing here stops any other. done: told of each as it ends.
        """
        if not samples:
            return []
        found: list[Attempt] = [RewardError("not called")] * len(samples)

        def ended(i: int, attempt: Attempt) -> None:
            found[i] = attempt
            if done:
                done(i, attempt)

        if self.shape.together:
            for i, attempt in enumerate(self._together(samples, timeout)):
                ended(i, attempt)
        elif self.shape.is_async:
            calls = [partial(self._call, sample) for sample in samples]
            run_all(calls, lambda i, result: ended(i, self._checked(result)), timeout=timeout)
        else:
            for i, sample in enumerate(samples):
                ended(i, self._alone(partial(self._call, sample), self._checked, timeout))
        for attempt in found:
            if isinstance(attempt, KeyboardInterrupt):
                raise attempt
        return found

    def _together(self, samples: Sequence[Sample], timeout: float | None) -> list[Attempt]:
        """One call for all; when it raises, one for each, to find the response that it fails on."""

        def listed(result: Any) -> Any:
            if isinstance(result, BaseException):
                return result
            try:
                return checked_list(result, len(samples), self.place)
            except RewardError as error:
                return [error] * len(samples)  # it would return no list, or the wrong count, for one, too

        result = self._alone(partial(self._call_all, samples), listed, timeout)
        if isinstance(result, list):
            return result
        if len(samples) == 1 or isinstance(result, KeyboardInterrupt):
            return [result] * len(samples)
        return [attempt for sample in samples for attempt in self._together([sample], timeout)]

    def _alone(self, call: Callable[[], Any], check: Callable[[Any], Any], timeout: float | None) -> Any:
        """check(result) of one call; a coroutine is awaited, and the call's exception is a result."""
        try:
            result = call()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - counted and shown
            return error
        if inspect.iscoroutine(result):
            awaited: list[Any] = []
            run_all([lambda: result], lambda _, value: awaited.append(value), timeout=timeout)
            result = awaited[0]
        return check(result)

    def _call(self, sample: Sample) -> Any:
        if self.shape.takes == "sample":
            return self.function(sample)
        values = (sample.data_source, sample.solution, sample.ground_truth, sample.extra_info)
        if self.shape.names is None:
            return self.function(*values)
        given: dict[str, Any] = dict(zip(ARGUMENTS, values, strict=True))
        return self.function(**{name: given[name] for name in self.shape.names})

    def _call_all(self, samples: Sequence[Sample]) -> Any:
        if self.shape.takes == "samples":
            return self.function(samples)
        return self.function(**accepted(self.shape, columns(samples), self.place))

    def _checked(self, result: Any) -> Attempt:
        if isinstance(result, BaseException):
            return result
        try:
            return checked(result, self.place)
        except RewardError as error:
            return error


def _must(attempt: Attempt) -> Score:
    if isinstance(attempt, BaseException):
        raise attempt
    return attempt


def score_batch(reward: Scorer, samples: Sequence[Sample], *, max_errors: float) -> Scores:
    """Score every sample, in order, as `scores_of` says. KeyboardInterrupt passes."""
    return scores_of(reward, samples, reward.attempts(samples), max_errors=max_errors)


def scores_of(reward: Scorer, samples: Sequence[Sample], attempts: Sequence[Attempt], *, max_errors: float) -> Scores:
    """The scores that these attempts are. Failed calls are counted and give None; the first traceback is kept.

    max_errors: share (0 to 1) of the batch that may fail; more raises RewardError.
    """
    failed = [(i, result) for i, result in enumerate(attempts) if isinstance(result, BaseException)]
    if failed and len(failed) > max_errors * len(samples):
        first, error = failed[0]
        raise RewardError(
            f"{reward.place}: {len(failed)} of {len(samples)} reward calls failed, more than --max_reward_errors "
            f"{max_errors:g} allows; the first, {record_name(samples[first], first)}: {last_line(error, reward)}"
        ) from error
    return Scores(
        [result.score if isinstance(result, Score) else None for result in attempts],
        [result.parts if isinstance(result, Score) else {} for result in attempts],
        len(failed),
        shown_traceback(failed[0][1]) if failed else None,
    )


def attempt(reward: Scorer, sample: Sample) -> Attempt:
    """The score of one sample, or the exception that its call ended in. `sys.exit()` in a reward is one, too."""
    return reward.attempts([sample])[0]


def record_name(sample: Sample, position: int) -> str:
    """`record 7` by the data's own index, else `response 3` by its place in the batch (both from 0)."""
    index = (sample.extra_info or {}).get("index")
    return f"response {position}" if index is None else f"record {index}"


def last_line(error: BaseException, reward: Scorer) -> str:
    """What went wrong on one line, with the line of the user's file where it did."""
    if isinstance(error, RewardError):
        return " ".join(str(error).split())[:500].removeprefix(f"{reward.place} ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if reward.file and Path(frame.filename) == reward.file] or list(frames)
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return " ".join(_last_of(error).split())[:500] + where


def shown_traceback(error: BaseException) -> str:
    """The traceback from the user's own code on; of a very long one the beginning and the end."""
    if isinstance(error, Failed):
        return error.traceback
    trace = error.__traceback__
    while trace and trace.tb_next and Path(trace.tb_frame.f_code.co_filename).parent == _ROOM:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    half = _LONGEST_TRACEBACK // 2
    return text if len(text) <= _LONGEST_TRACEBACK else f"{text[:half]}\n  ...\n{text[-half:]}"


def _last_of(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1]
