"""`knights_knaves`: who is a knight and who a knave, as Logic-RL and PaddleNLP pose it (requirement S0-04)."""

from __future__ import annotations

import re

from reward_funcs.errors import RewardError
from reward_funcs.markers import last_tag
from reward_funcs.plain_text import spoken
from reward_funcs.score import Sample

_CLAIM = re.compile(r"\b(?P<name>[A-Z][\w'-]{0,40}) is (?P<no>not )?an? (?P<role>knight|knave)\b")


def knights_knaves(sample: Sample) -> dict[str, float]:
    """1.0 when the answer gives every person of the label their role and names nobody else, else 0.0; best value 1.

    The part `people` is the share of the label's persons with the right role, 0 to 1: watch it, it is not paid. The
    label is the ground truth, `(1) Michael is a knight\\n(2) Zoey is a knave`. The answer is the last `<answer>`, or
    what follows `</think>`, or the response from its last `(1)` on. Whom it gives both roles has none. Source: Xie et
    al. 2025, Logic-RL; theirs pays 2, -1.5 and -2, and 1 or -1 for the format, which is `format` here.
    """
    right = roles(str(sample.ground_truth))
    if not right:
        raise RewardError(
            f"knights_knaves needs a label such as '(1) Michael is a knight', and got {str(sample.ground_truth)[:60]!r}"
        )
    said = roles(_answer(sample.solution))
    found = sum(said.get(name) == role for name, role in right.items())
    return {"score": float(said == right), "people": found / len(right)}


def roles(text: str) -> dict[str, str]:
    """Person -> knight, knave, or "" for one who is called both."""
    found: dict[str, str] = {}
    for claim in _CLAIM.finditer(text.replace("**", "")):
        role = claim["role"] if not claim["no"] else {"knight": "knave", "knave": "knight"}[claim["role"]]
        found[claim["name"]] = role if found.get(claim["name"], role) == role else ""
    return found


def _answer(response: str) -> str:
    text = spoken(response)
    tag = last_tag(text)
    if tag:
        return tag[1]
    return text[max(text.rfind("(1)"), 0) :]
