"""Lines of completions.jsonl from a dump of verl's and the reward calls behind it. Pure functions.

verl dumps a response's text, prompt, ground truth, score and uid; what else we keep of it comes from its reward call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.metrics.changes import text_of

Row = Mapping[str, Any]  # of a dump, or a reward call as inside/scoring.py writes it
_OF_THE_DUMP = frozenset({"input", "output", "gts", "score", "step", "uid", "reward"})


def lines_of(rows: Sequence[Row], calls: Sequence[Row], failed: Sequence[Row], split: str) -> list[dict[str, Any]]:
    """Lines of completions.jsonl, groups together in the order of their records; uid counts them from 0."""
    prompts = {_group(row): row["input"] for row in rows}
    found = [(_group(row), call.get("index"), _line(row, call)) for row, call in zip(rows, calls, strict=True)]
    for call in failed:
        group = _group_of_call(call)
        prompt = prompts.get(group, text_of(call["prompt"] or ""))
        line = {"prompt": prompt, "response": call["response"], "reward": None, "parts": {}, "length": call["length"]}
        line |= {"ground_truth": call["ground_truth"], "data_source": call["data_source"]}
        found.append((group, call["index"], line))
    # verl's own order is that of random numbers; a stable one lets two evaluations be compared line by line.
    found.sort(key=lambda one: (math.inf if one[1] is None else one[1], one[2]["prompt"], one[0]))
    number = {group: place for place, group in enumerate(dict.fromkeys(group for group, _, _ in found))}
    return [{"uid": number[group], **line, "split": split} for group, _, line in found]


def lines_of_calls(calls: Sequence[Row]) -> list[dict[str, Any]]:
    """What step_values asks of a line, from the reward calls of a step alone."""
    number: dict[str, int] = {}
    return [
        {
            "uid": number.setdefault(_group_of_call(call), len(number)),
            "reward": call["score"],
            "parts": call["parts"],
        }
        for call in calls
    ]


def _group(row: Row) -> str:
    """verl's uid is PROMPT_SESSION_OUTPUT; its older trainer writes none, and there a prompt is its text."""
    return str(row["uid"]).rsplit("_", 2)[0] if "uid" in row else str(row["input"])


def _group_of_call(call: Row) -> str:
    return str(call["key"]).rpartition("_")[0] if call["key"] else f"record {call['index']}"


def _line(row: Row, call: Row) -> dict[str, Any]:
    # The dump has the reward in float32, and with what a reward manager (dapo) took off it.
    reward, given = row["score"], call.get("score")
    if given is not None and reward is not None and math.isclose(given, reward, rel_tol=1e-6, abs_tol=1e-9):
        reward = given
    beside = {k: v for k, v in row.items() if k not in _OF_THE_DUMP and isinstance(v, (int, float))}
    return {
        "prompt": row["input"],
        "response": row["output"],
        "reward": reward,
        "parts": call.get("parts", beside),
        "length": call.get("length"),
        "ground_truth": row["gts"],
        "data_source": call.get("data_source"),
    }
