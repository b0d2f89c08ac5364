"""The shipped reward: `compute_score` looks up the function for a data_source. Your own file may replace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reward_funcs.errors import RewardError


# The functions are imported at the first response: their patterns take 30 ms to compile, and --help needs none.
def _math(response: str, truth: str) -> float:
    from reward_funcs.math_match import math_score

    return math_score(response, truth)


def _text(response: str, truth: str) -> float:
    from reward_funcs.text_match import text_score

    return text_score(response, truth)


def _label(response: str, truth: str) -> float:
    from reward_funcs.text_match import label_score

    return label_score(response, truth)


def _code(response: str, truth: Any, extra_info: Any) -> dict[str, float]:
    from reward_funcs.code_score import code_score

    if not isinstance(response, str):
        raise RewardError(_no_text(response))
    return code_score(response, truth, extra_info)


_SCORES: dict[str, Callable[[str, str], float]] = {
    "math_reasoning": _math,
    "gsm8k": _math,
    "math": _math,
    "qa": _text,
    "trivia": _text,
    "classification": _label,
    # the names that verl's own data sets carry
    "openai/gsm8k": _math,
    "lighteval/MATH": _math,
    "DigitalLearningGmbH/MATH-lighteval": _math,
    "HuggingFaceH4/MATH-500": _math,
    "math_dapo": _math,
    "math_dapo_reasoning": _math,
    "aime": _math,
    "numina_aops_forum": _math,
    "numina_synthetic_math": _math,
    "numina_amc_aime": _math,
    "numina_synthetic_amc": _math,
    "numina_cn_k12": _math,
    "numina_olympiads": _math,
}
# Programs, run in a sandbox and paid for passing the record's tests; all but the first two are data sets' own names.
CODE_SOURCES = (
    *("code", "code_generation", "codecontests", "apps", "codeforces", "taco", "livecodebench"),
    *("humaneval", "openai_humaneval", "openai/openai_humaneval", "mbpp", "google-research-datasets/mbpp"),
)

AIME = "aime"  # and every name that begins so (aime2024, aime_25), as in verl


class _Known(tuple[str, ...]):
    """The names, for messages; `in` knows those of AIME, too."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.startswith(AIME))


KNOWN_SOURCES: tuple[str, ...] = _Known((*_SCORES, *CODE_SOURCES))


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None
) -> float | dict[str, float]:
    """1.0 when the answer in `solution_str` (the model's response) is `ground_truth`, else 0.0.

    ground_truth: text, or a number; for qa, trivia and classification also a list of accepted answers, as JSON text or
    as a list. The policies stand in numerals.py, math_match.py and text_match.py. For code: the tests, as code_truth.py
    reads them; the result is {"score", "pass_rate"}, and only there extra_info is read (entry_point).
    Raises RewardError for a data_source that has no reward and for a missing ground_truth, and its kind SandboxError
    for a program that could not be judged.
    """
    if isinstance(data_source, str) and data_source in CODE_SOURCES:
        return _code(solution_str, ground_truth, extra_info)
    score = _rules(data_source)
    if score is None:
        raise RewardError(_why_not(data_source))
    if not isinstance(solution_str, str):
        raise RewardError(_no_text(solution_str))
    return score(solution_str, _as_text(ground_truth, data_source))


def _rules(data_source: object) -> Callable[[str, str], float] | None:
    if not isinstance(data_source, str):
        return None
    return _math if data_source.startswith(AIME) else _SCORES.get(data_source)


def rules_of(data_source: str) -> str | None:
    """Which rules score a data_source: math, text, label or code; None = it has no reward."""
    if data_source in CODE_SOURCES:
        return "code"
    names: dict[Any, str] = {_math: "math", _text: "text", _label: "label"}
    return names.get(_rules(data_source))


def _no_text(response: object) -> str:
    return f"solution_str is {type(response).__name__}; compute_score reads the response's text"


def _why_not(data_source: object) -> str:
    known = ", ".join(KNOWN_SOURCES)
    return f"no reward for data_source {str(data_source)[:80]!r}; known: {known}. Or use --reward_func FILE."


def _as_text(ground_truth: object, data_source: str) -> str:
    if isinstance(ground_truth, str):
        return ground_truth
    if isinstance(ground_truth, (int, float)):
        return str(ground_truth)
    if isinstance(ground_truth, (list, tuple)) and _rules(data_source) is not _math:
        import json  # only here: most truths are text

        return json.dumps([str(entry) for entry in ground_truth], ensure_ascii=False)
    raise RewardError(
        f"ground_truth is {type(ground_truth).__name__} for data_source '{data_source}'; it has to be text or a number"
    )
