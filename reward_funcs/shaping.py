"""Rewards of form and length: `format`, `cosine`, `repetition`, `soft_overlong`. None says that an answer is right.

Lengths are tokens of the response, as the engine counted them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from reward_funcs.accuracy import is_right
from reward_funcs.errors import RewardError
from reward_funcs.score import Sample
from reward_funcs.tokens import response_length, words

_FORMAT = re.compile(r"\s*<think>(?P<thought>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
LEAST_BUFFER_SHARE = 5  # soft_overlong's buffer is at most max_len over this, unless said otherwise
BUFFER = 256


def format_reward(sample: Sample, *, think_opened: bool = False) -> float:
    """1.0 when the response is `<think>...</think><answer>...</answer>` and nothing else, else 0.0; best value 1.

    Each tag once, white space around them allowed. Requirement S3-06, as in ms-swift and DeepSeek-R1; the system prompt
    that asks for it is reward_funcs/prompts/think_answer.txt (`--system`). think_opened: the prompt ends with
    `<think>`, so that the response begins inside.
    """
    text = ("<think>" if think_opened else "") + sample.solution
    return float(bool(_FORMAT.fullmatch(text)) and all(text.count(tag) == 1 for tag in _TAGS))


def cosine(
    sample: Sample,
    *,
    max_len: int | None = None,
    min_len_value_wrong: float = 0.0,
    max_len_value_wrong: float = -0.5,
    min_len_value_correct: float = 1.0,
    max_len_value_correct: float = 0.5,
    data_source: str | None = None,
) -> float:
    """From one value at length 0 to another at max_len and beyond, along half a cosine; other values when wrong.

    Range: that of the four values, by default -0.5 to 1. Best value: 1.0, a right answer of no length. max_len: tokens;
    the run's longest response when not given. Requirement S3-07, as `cosine` in ms-swift; after Yeo et al. 2025,
    "Demystifying Long Chain-of-Thought Reasoning in LLMs".
    """
    assert max_len is not None
    right = is_right(sample, data_source)
    begin = min_len_value_correct if right else min_len_value_wrong
    end = max_len_value_correct if right else max_len_value_wrong
    share = min(response_length(sample) / max_len, 1.0)
    return end + (begin - end) * (1 + math.cos(math.pi * share)) / 2


def repetition(sample: Sample, *, n_grams: int = 3, max_penalty: float = -1.0) -> float:
    """(1 - distinct / all runs of n_grams words) * max_penalty; 0.0 for fewer words than that.

    Range: max_penalty to 0, by default -1 to 0. Best value: 0, nothing is said twice. A Chinese character is a word, so
    that Chinese repetition counts too. Requirement S3-09, as `repetition` in ms-swift; after Yeo et al. 2025.
    """
    said = words(sample.solution)
    runs = [tuple(said[i : i + n_grams]) for i in range(len(said) - n_grams + 1)]
    return (len(runs) - len(set(runs))) / len(runs) * max_penalty + 0.0 if runs else 0.0  # + 0.0: no -0.0


def soft_overlong(
    sample: Sample, *, max_len: int | None = None, buffer: int | None = None, penalty: float = 1.0
) -> float:
    """0.0 up to max_len - buffer tokens, from there straight down to -penalty at max_len, and -penalty beyond.

    Range: -penalty to 0. Best value: 0. max_len: the run's longest response when not given; buffer: 256 tokens, or a
    fifth of max_len where that is less. Yu et al. 2025, DAPO, equation 13; `overlong_buffer` in verl.
    """
    assert max_len is not None
    room = _buffer(max_len, buffer)
    over = response_length(sample) - (max_len - room)
    return 0.0 - penalty * min(max(over / room, 0.0), 1.0)


def _buffer(max_len: int, buffer: int | None) -> int:
    return max(1, min(BUFFER, max_len // LEAST_BUFFER_SHARE)) if buffer is None else buffer


def _check_cosine(*, max_len: int | None = None, **_: Any) -> None:
    if max_len is not None and max_len < 1:
        raise RewardError(f"cosine:max_len={max_len} has to be at least 1 token")


def _cosine_notes(*, min_len_value_wrong: float = 0.0, max_len_value_wrong: float = -0.5, **_: Any) -> list[str]:
    """S3-08: the published numbers and the sentence beside them contradict each other."""
    if (min_len_value_wrong, max_len_value_wrong) != (0.0, -0.5):
        return []
    return [
        "cosine: the longer a wrong answer, the less it gets (0 down to -0.5), by ms-swift's first numbers; its text "
        "says the opposite, and later versions do that: cosine:min_len_value_wrong=-0.5:max_len_value_wrong=0"
    ]


def _check_repetition(*, n_grams: int = 3, max_penalty: float = -1.0) -> None:
    if n_grams < 1:
        raise RewardError(f"repetition:n_grams={n_grams} has to be at least 1 word")
    if max_penalty > 0:
        raise RewardError(f"repetition:max_penalty={max_penalty:g} would pay for repeating; give a negative number")


def _check_soft_overlong(*, max_len: int | None = None, buffer: int | None = None, penalty: float = 1.0) -> None:
    if max_len is not None and max_len < 1:
        raise RewardError(f"soft_overlong:max_len={max_len} has to be at least 1 token")
    if buffer is not None and max_len is not None and not 1 <= buffer <= max_len:
        raise RewardError(f"soft_overlong:buffer={buffer} has to be between 1 and max_len={max_len} tokens")
    if penalty < 0:
        raise RewardError(f"soft_overlong:penalty={penalty:g} would pay for length; give a positive number")


CHECKS: dict[str, Callable[..., None]] = {
    "cosine": _check_cosine,
    "repetition": _check_repetition,
    "soft_overlong": _check_soft_overlong,
}
NOTES: dict[str, Callable[..., list[str]]] = {"cosine": _cosine_notes}
