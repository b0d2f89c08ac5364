"""The answer that most responses to a prompt give, for maj@k. What right is, the reward says.

Leaves out programs and free text, whose answers cannot be compared, and where there is no majority to speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reward_funcs.markers import last_box, last_tag
from reward_funcs.math_answer import final_answer
from reward_funcs.math_match import same_answer
from reward_funcs.reward_func import rules_of
from reward_funcs.text_match import normalised, readings


def answers(data_source: str, responses: Sequence[str]) -> list[str] | None:
    r"""What each response answers, "" where it gives no answer; None where answers cannot be compared.

    A data_source with rules of ours is read by them; another one only where a response marks its answer, with
    `\boxed{}` or `<answer>`.
    """
    rules = rules_of(data_source)
    if rules == "code":
        return None
    if rules in ("text", "label"):
        return [normalised(_first(readings(response, labels=rules == "label"))) for response in responses]
    if rules == "math" or any(_is_marked(response) for response in responses):
        return [final_answer(response) for response in responses]
    return None


def majority(data_source: str, given: Sequence[str]) -> list[int]:
    """Which of `answers` are the one that most give, the earliest of equals; [] when none is given.

    Mathematical answers are the same as the reward has it: 1/2 and 0.5 vote together.
    """
    same = _same if rules_of(data_source) in ("math", None) else str.__eq__
    groups: list[list[int]] = []
    for number, answer in enumerate(given):
        if not answer:
            continue
        mine = next((group for group in groups if same(answer, given[group[0]])), None)
        if mine is None:
            groups.append([number])
        else:
            mine.append(number)
    return max(groups, key=len, default=[])


def _same(answer: str, other: str) -> bool:
    return answer == other or same_answer(answer, other)


def _is_marked(response: str) -> bool:
    marks: tuple[Callable[[str], object], ...] = (last_box, last_tag)
    return any(mark(response) is not None for mark in marks)


def _first(texts: Sequence[str]) -> str:
    return texts[0] if texts else ""
