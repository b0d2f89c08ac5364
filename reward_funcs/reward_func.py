"""The shipped reward: `compute_score` looks up the function for a data_source. Your own file may replace it.

Left out: rewards that run code. They arrive with the sandbox; until then `code` refuses by name.
"""

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
    "aime": _math,
    "numina_aops_forum": _math,
    "numina_synthetic_math": _math,
    "numina_amc_aime": _math,
    "numina_synthetic_amc": _math,
    "numina_cn_k12": _math,
    "numina_olympiads": _math,
}
_CODE_SOURCES = ("code", "code_generation")

KNOWN_SOURCES: tuple[str, ...] = tuple(_SCORES)


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1.0 when the answer in `solution_str` (the model's response) is `ground_truth`, else 0.0.

    ground_truth: text, or a number; for qa, trivia and classification also a list of accepted answers, as JSON text or
    as a list. extra_info is not read. The policies stand in numerals.py, math_match.py and text_match.py.
    Raises RewardError for a data_source that has no reward and for a missing ground_truth.
    """
    score = _SCORES.get(data_source) if isinstance(data_source, str) else None
    if score is None:
        raise RewardError(_why_not(data_source))
    if not isinstance(solution_str, str):
        raise RewardError(f"solution_str is {type(solution_str).__name__}; compute_score reads the response's text")
    return score(solution_str, _as_text(ground_truth, data_source))


def _why_not(data_source: object) -> str:
    if data_source in _CODE_SOURCES:
        return (
            f"data_source '{data_source}' has no shipped reward yet: code rewards arrive with the sandbox. "
            "Use --reward_func FILE with a reward of your own."
        )
    known = ", ".join(KNOWN_SOURCES)
    return f"no reward for data_source {str(data_source)[:80]!r}; known: {known}. Or use --reward_func FILE."


def _as_text(ground_truth: object, data_source: str) -> str:
    if isinstance(ground_truth, str):
        return ground_truth
    if isinstance(ground_truth, (int, float)):
        return str(ground_truth)
    if isinstance(ground_truth, (list, tuple)) and _SCORES[data_source] is not _math:
        import json  # only here: most truths are text

        return json.dumps([str(entry) for entry in ground_truth], ensure_ascii=False)
    raise RewardError(
        f"ground_truth is {type(ground_truth).__name__} for data_source '{data_source}'; it has to be text or a number"
    )
