r"""The answers that a rehearsal tries on a record: the right one in several spellings, and bad ones of several kinds.

Only texts. What they should score is the rehearsal's question (cases.py); no reward is called here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reward_funcs.latex import tidy
from reward_funcs.markers import last_box
from reward_funcs.math_answer import announced_answer
from reward_funcs.numerals import read_number, same_number
from reward_funcs.score import Sample

SHORT = 80  # characters; what is longer is a text or a whole solution, and is not spelled in other ways
BARE = "bare"
SOLUTIONS = ("solution", "canonical_solution", "reference_solution")  # columns that hold a right program
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_MARKED = re.compile(r"####|\\boxed|\n")
_HAN = re.compile("[一-鿿]")
_HUGE = "The quick brown fox jumps over the lazy dog. " * 4_000  # 180,000 characters, as a response that never ends

SPELLINGS: dict[str, tuple[str, str]] = {  # name -> (the text, how a system prompt asks for it)
    BARE: ("{}", "Answer with nothing but the answer."),
    "boxed": (r"\boxed{{{}}}", r"Put the final answer in \boxed{}."),
    "sentence": ("The answer is {}.", 'End with a sentence "The answer is ...".'),
    "hashes": ("Let me think.\n#### {}", 'End with a line "#### ANSWER".'),
    "tags": (
        "<think>\nLet me think.\n</think>\n<answer>{}</answer>",
        "Think between <think> and </think>, then answer between <answer> and </answer>.",
    ),
}

ASKED = {BARE: "", "boxed": "boxed", "sentence": "answer is", "hashes": "####", "tags": "<answer>"}  # in such a prompt


@dataclass(frozen=True)
class Right:
    """A record's right answer. whole: as the data has it; short: the answer alone, None for a text or a program.

    others: every accepted answer, so that none of them is taken for a wrong one.
    """

    whole: str
    short: str | None
    others: tuple[str, ...] = ()


def right_answer(sample: Sample, rules: str | None) -> Right | None:
    """The right answer to a record, as a response. None: nobody knows it (tests of a program, with no solution beside).

    rules: those of the shipped reward that scores it (reward_func.rules_of), None for any other reward.
    """
    if rules == "code":
        program = _program(sample)
        return None if program is None else Right(program, None)
    truth = str(sample.ground_truth)
    if truth == "":
        truth = str((sample.extra_info or {}).get("solution") or "")
    listed = _listed(truth) if rules in ("text", "label", None) else ()
    if listed:
        return Right(listed[0], _if_short(listed[0]), listed)
    alone = announced_answer(truth) if _MARKED.search(truth) and rules in ("math", None) else truth.strip()
    return Right(truth, _if_short(alone), (alone,))


def spelled(right: Right, spelling: str) -> str | None:
    """The right answer in a spelling; None where it has none."""
    if spelling == BARE:
        return right.whole
    return None if right.short is None else SPELLINGS[spelling][0].format(right.short)


def decimal(right: Right) -> str | None:
    """42 as 42.0."""
    return f"{right.short}.0" if right.short and _INTEGER.fullmatch(right.short) else None


def wrong_answer(right: Right, candidates: Sequence[Right]) -> str:
    """An answer that is not right: the next number, or what is right for another record, in the same form."""
    own = {_folded(text) for text in (right.whole, right.short or "", *right.others)}
    if right.short and _INTEGER.fullmatch(right.short):
        return str(int(right.short) + 1)
    for other in candidates:
        text = other.whole if right.short is None else other.short
        if text and _folded(text) not in own and not _one_number(text, right.short or right.whole):
            return text
    return "none of these"


@dataclass(frozen=True)
class Bad:
    """A kind of bad answer. make(right, wrong, spelling, asked) -> the response, None where there is none.

    most: records that it is tried on; asked: what the prompt says. hint: what a reward of the user's should do.
    """

    name: str
    make: Callable[[Right, str, str, str], str | None]
    hint: str
    most: int = 1_000_000


def _said(right: Right, text: str, spelling: str) -> str:
    return SPELLINGS[spelling][0].format(text) if right.short is not None else text


def _cut_off(right: Right, wrong: str, spelling: str, asked: str) -> str:
    if right.short is None:
        return right.whole[: len(right.whole) // 3]
    return f"Let me think step by step. The answer is \\boxed{{{right.short[: len(right.short) // 2]}"


def _both(right: Right, wrong: str, spelling: str, asked: str) -> str | None:
    return None if right.short is None else _said(right, f"{wrong} or {right.short}", spelling)


def _foreign(right: Right, wrong: str, spelling: str, asked: str) -> str:
    if _HAN.search(asked):
        return "I am sorry, but I cannot tell what is meant here."
    return "对不起，我看不懂这里的意思，无法回答。"


BAD: tuple[Bad, ...] = (
    Bad("empty", lambda right, wrong, spelling, asked: "", "begin with: if not solution_str.strip(): return 0.0"),
    Bad(
        "wrong",
        lambda right, wrong, spelling, asked: _said(right, wrong, spelling),
        "compare the extracted answer with ground_truth",
    ),
    Bad("two answers", _both, "take one answer out of the response and compare it: ==, not `in`"),
    Bad("cut off", _cut_off, "an answer that was not finished is none"),
    Bad(
        "chatty",
        lambda right, wrong, spelling, asked: (
            "Certainly! That is a great question, and I am happy to help. Let me explain my thinking so that all is "
            "clear. In the end it depends on several things. I hope that this helps!"
        ),
        "pay for the answer, not for talk",
    ),
    Bad("other language", _foreign, "pay for the answer, in whatever language"),
    Bad("huge", lambda right, wrong, spelling, asked: _HUGE, "bound what is paid for length", most=3),
)


def prompt_text(sample: Sample) -> str:
    """What the prompt says, whether it is text or messages."""
    if isinstance(sample.prompt, list):
        return "\n".join(str(message.get("content", "")) for message in sample.prompt)
    return str(sample.prompt or "")


def _listed(truth: str) -> tuple[str, ...]:
    """The entries of a JSON list of texts, as classification and trivia have them."""
    if not truth.lstrip().startswith("["):
        return ()
    try:
        entries = json.loads(truth)
    except (ValueError, RecursionError):
        return ()
    return tuple(entries) if entries and all(isinstance(entry, str) for entry in entries) else ()


def _program(sample: Sample) -> str | None:
    columns = sample.extra_info or {}
    for name in SOLUTIONS:
        text = columns.get(name)
        if isinstance(text, str) and text.strip():
            return text if _compiles(text) else prompt_text(sample) + text  # HumanEval's is a body
    return None


def _compiles(text: str) -> bool:
    if "```" in text:
        return True
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _if_short(text: str) -> str | None:
    box = last_box(text)
    text = (box[1] if box else text).strip()
    return text if text and len(text) <= SHORT and "\n" not in text and text[0] != "{" else None  # no JSON


def _folded(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())


def _one_number(text: str, other: str) -> bool:
    """Whether both are numbers, and the same: 9/2 is no wrong answer where 4.5 is right."""
    ours, theirs = read_number(tidy(text)), read_number(tidy(other))
    return ours is not None and theirs is not None and same_number(ours, theirs)
