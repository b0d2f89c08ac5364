"""Which of the known shapes a reward function has, found in its signature, and the arguments that it is given.

    verl's          compute_score(data_source, solution_str, ground_truth, extra_info=None) -> score of one response
    TRL's, swift's  f(completions, prompts=..., any_column=..., **kwargs) -> list of scores, one for each response
    our own         f(sample) -> score, and f(samples) -> list; only the rewards of this room

The first two take as many of their arguments as they name, and may be `async def`. Leaves out calling them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from reward_funcs.errors import RewardError

if TYPE_CHECKING:
    from reward_funcs.score import Sample

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
COMPLETIONS = "completions"
Takes = Literal["response", "completions", "sample", "samples"]


@dataclass(frozen=True)
class Shape:
    """takes: what one call is given. names: the arguments it accepts, None = any (completions), by position (response).

    needed: those without a default. is_async: written as `async def`.
    """

    takes: Takes
    names: tuple[str, ...] | None = None
    needed: tuple[str, ...] = ()
    is_async: bool = False

    @property
    def together(self) -> bool:
        """Whether one call scores many responses."""
        return self.takes in ("completions", "samples")


def shape_of(function: Callable[..., Any], place: str) -> Shape:
    """The shape of a user's function. Raises RewardError for one that is none, naming what it would have to be."""
    if not callable(function):
        raise RewardError(f"{place} is {type(function).__name__}, not a function")
    called = function if inspect.isroutine(function) or not hasattr(function, "func") else function.func  # a partial
    called = called if inspect.isroutine(called) else getattr(called, "__call__", called)  # noqa: B004 - its kind
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise RewardError(f"{place} uses `yield`; it has to return its score")
    is_async = inspect.iscoroutinefunction(called)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # C code tells nothing: verl's four, by position
        return Shape("response", is_async=is_async)
    if any(p.name == COMPLETIONS and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters):
        return _of_completions(parameters, place, is_async)
    return _of_response(parameters, place, is_async)


def _of_completions(parameters: list[inspect.Parameter], place: str, is_async: bool) -> Shape:
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if positional := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]:
        raise RewardError(f"{place} takes '{positional[0]}' by position only; columns are given by name, drop the `/`")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = tuple(p.name for p in named if p.default is p.empty)
    return Shape("completions", None if takes_any else tuple(p.name for p in named), needed, is_async)


def _of_response(parameters: list[inspect.Parameter], place: str, is_async: bool) -> Shape:
    kinds = {p.kind for p in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        taken = ARGUMENTS
    else:
        by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        taken = tuple(p.name for p in parameters if p.name in ARGUMENTS and p.kind in by_keyword)
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    unknown = [p.name for p in parameters if p.default is p.empty and p.kind not in variable and p.name not in taken]
    if not taken and inspect.Parameter.VAR_POSITIONAL in kinds and not unknown:
        return Shape("response", is_async=is_async)
    if unknown:
        raise RewardError(
            f"{place} needs the argument '{unknown[0]}', which no reward is given; it may take {', '.join(ARGUMENTS)}, "
            "and any other one with a default; or `completions` and the names of columns, for lists"
        )
    return Shape("response", taken, is_async=is_async)


def columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """The columns of a batch for a reward of lists: every column of the records, by its name.

    `completions` are text, `prompts` text or messages. `solution` is the records' own column of that name, or the
    ground truth where they have none.
    """
    extras: list[Mapping[str, Any]] = [sample.extra_info or {} for sample in samples]
    names = {name: None for extra in extras for name in extra}
    found = {name: [extra.get(name) for extra in extras] for name in names}
    return found | {
        "completions": [sample.solution for sample in samples],
        "prompts": [sample.prompt for sample in samples],
        "ground_truth": [sample.ground_truth for sample in samples],
        "solution": [e.get("solution", s.ground_truth) for e, s in zip(extras, samples, strict=True)],
        "data_source": [sample.data_source for sample in samples],
    }


def accepted(shape: Shape, given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The columns that the function takes; raises RewardError when it needs one that the records do not have."""
    lacking = [name for name in shape.needed if name not in given]
    if lacking:
        has = ", ".join(sorted(given))
        raise RewardError(f"{place} needs the column '{lacking[0]}', which the records do not have; they have: {has}")
    return dict(given) if shape.names is None else {name: given[name] for name in shape.names if name in given}
