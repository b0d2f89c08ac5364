"""`./train.sh score --responses r.jsonl [--data d.json]`: what model outputs earn, with pass@1 and pass@k per source.

Takes the words of a training command. With several responses to a prompt it also says how many groups of each size
would differ in training, and so which --rollout_n is worth its time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.commands.prints_aside import prints_aside
from grpo.commands.training_words import Asked, read
from grpo.config import ConfigError
from grpo.metrics.safe_text import visible

if TYPE_CHECKING:
    from data_prep.records import Record
    from data_prep.responses import Response
    from reward_funcs.returns import Attempt
    from reward_funcs.score import Scorer

ABOUT = "Score a file of model outputs by the reward of a run."
KS = (1, 2, 4, 8, 16, 32, 64)
SHOWN = 5
TRAIN, SETTING = "data.train_files", "launcher.data."


@dataclass
class Line:
    """A source, and a model where the file names several. counts: (right, responses) of each prompt.

    right: score of at least --pass_at. differ: responses on whose verdict the file says otherwise, of `judged`.
    """

    source: str
    model: str
    responses: int = 0
    failed: int = 0
    mean: float | None = None
    counts: list[tuple[int, int]] = field(default_factory=list)
    judged: int = 0
    differ: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def main(argv: list[str]) -> int:
    """Run the command. Raises the rooms' errors."""
    from reward_funcs import Sample
    from reward_funcs.code_ready import refuse_code_without_jail
    from reward_funcs.scoring import Scoring

    began = time.perf_counter()
    asked = read("score", argv, ABOUT, _flags)
    if asked.own.responses is None:
        raise ConfigError("./train.sh score: --responses FILE names the model outputs; see ./train.sh score --help")
    records = _records(asked)
    responses = _responses(asked, records)
    samples = [
        Sample(one.data_source, one.text, one.ground_truth, _extra(one), prompt=one.prompt, length=one.length)
        for one in responses
    ]
    with prints_aside():
        reward = asked.reward()
    refuse_code_without_jail(reward, (sample.data_source for sample in samples))
    timeout = asked.settings["launcher.reward.timeout"]
    with prints_aside(), Scoring(reward, workers=os.cpu_count() or 1, timeout=timeout) as scoring:
        notes = [*reward.notes, *scoring.notes]
        lines = _lines(responses, scoring.attempts(samples), reward, asked.own.pass_at)
    _refuse_without_scores(lines, reward)
    found = _Found(lines, notes, reward.place, len(responses), time.perf_counter() - began)
    print(found.as_json() if asked.own.json else visible(found.as_text()))
    return 0


def _refuse_without_scores(lines: Sequence[Line], reward: Scorer) -> None:
    """Raises RewardError when every call failed: a table of nothing is no answer."""
    from reward_funcs.errors import RewardError

    total = sum(line.responses for line in lines)
    if total and all(line.failed == line.responses for line in lines):
        first = lines[0].errors[0]
        raise RewardError(f"{reward.place}: all {total:,} reward calls failed; the first, {first}; nothing was scored")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--responses", type=Path, metavar="FILE", help="JSONL with `response` and `index` or the prompt"
    )
    parser.add_argument(
        "--pass_at", type=float, default=1.0, metavar="SCORE", help="[1] from which score on it is right"
    )
    parser.add_argument("--step", type=_step, metavar="N|last", help="only this step of a completions.jsonl")
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")


def _step(text: str) -> int:
    return -1 if text == "last" else int(text)


def _records(asked: Asked) -> list[Record]:
    """The records of --data, as they stand in the file; none without it."""
    from data_prep.records import read_records
    from grpo.launch import columns_of

    if not asked.settings.by_user(TRAIN):
        return []  # nobody named data: the rows bring their truths
    return read_records(asked.settings[TRAIN], **(columns_of(asked.settings) | {"system": None}))


def _responses(asked: Asked, records: Sequence[Record]) -> list[Response]:
    from data_prep.responses import read_responses

    names = {key: asked.settings[f"{SETTING}{key}"] for key in ("prompt_key", "answer_key", "data_source")}
    return read_responses(asked.own.responses, records, step=asked.own.step, **names)


def _extra(one: Response) -> dict[str, Any]:
    return dict(one.extra) if one.record is None else {"index": one.record, **one.extra}


def _lines(responses: Sequence[Response], attempts: Sequence[Attempt], reward: Scorer, pass_at: float) -> list[Line]:
    from reward_funcs.returns import Score
    from reward_funcs.score import last_line

    lines: dict[tuple[str, str], Line] = {}
    groups: dict[tuple[str, str], dict[tuple[Any, ...], list[int]]] = defaultdict(dict)
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for number, (one, attempt) in enumerate(zip(responses, attempts, strict=True), 1):
        key = (one.data_source, one.who)
        line = lines.setdefault(key, Line(*key))
        line.responses += 1
        if not isinstance(attempt, Score):
            line.failed += 1
            line.errors += [f"response {number}: {last_line(attempt, reward)}"] if not line.errors else []
            continue
        right = attempt.score >= pass_at
        sums[key] += attempt.score
        count = groups[key].setdefault(one.group, [0, 0])
        count[0], count[1] = count[0] + right, count[1] + 1
        if one.verdict is not None:
            line.judged += 1
            if one.verdict != right:
                said = "right" if one.verdict else "wrong"
                line.differ.append(f"response {number}: the file says {said}, the reward {attempt.score:g}")
    for key, line in lines.items():
        line.counts = [(c, m) for c, m in groups[key].values()]
        scored = line.responses - line.failed
        line.mean = sums[key] / scored if scored else None
    return list(lines.values())


@dataclass
class _Found:
    """Everything that was scored, as text or as JSON."""

    lines: list[Line]
    notes: list[str]
    place: str
    responses: int
    seconds: float

    def as_text(self) -> str:
        """The table, and what it means for training."""
        passes = [_passes(line) for line in self.lines]
        ks = sorted({k for one in passes for k in one})
        head = ["data_source", "model", "prompts", "responses", "failed", "mean", *(f"pass@{k}" for k in ks)]
        rows = [head]
        for line, rates in zip(self.lines, passes, strict=True):
            mean = "" if line.mean is None else f"{line.mean:.4f}"
            rates_shown = [f"{rates[k]:.4f}" if k in rates else "" for k in ks]
            counts = [f"{len(line.counts):,}", f"{line.responses:,}", f"{line.failed:,}"]
            rows.append([line.source, line.model, *counts, mean, *rates_shown])
        if not any(line.model for line in self.lines):
            rows = [[row[0], *row[2:]] for row in rows]
        text = [*_table(rows), *self.notes]
        if failed := sum(line.failed for line in self.lines):
            text.append(f"{failed:,} of {self.responses:,} reward calls failed; they count in no mean and no pass@k")
        for line in self.lines:
            text += [f"failed: {error}" for error in line.errors]
            text += _disagreement(line)
        for line in self.lines:
            text += _forecast_lines(line)
        return "\n".join([*text, f"{self.responses:,} responses by {self.place} in {self.seconds:.1f} s"])

    def as_json(self) -> str:
        """The same for machines."""
        from reward_funcs.pass_rates import forecast

        found = []
        for line in self.lines:
            ahead = forecast(line.counts)
            found.append(
                {**asdict(line), "pass_at_k": _passes(line), "forecast": None if ahead is None else asdict(ahead)}
            )
        return json.dumps({"reward": self.place, "notes": self.notes, "sources": found}, ensure_ascii=False, indent=1)


def _passes(line: Line) -> dict[int, float]:
    """k -> pass@k, for every k that half of the prompts or more have responses for."""
    from reward_funcs.pass_rates import mean_pass_at_k

    found = {}
    for k in KS:
        enough = sum(m >= k for _, m in line.counts)
        if enough and 2 * enough >= len(line.counts):
            found[k] = mean_pass_at_k(line.counts, k)
    return {k: value for k, value in found.items() if value is not None}


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(w) if i < 1 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, wide, strict=True)))
        for row in rows
    ]


def _disagreement(line: Line) -> list[str]:
    if not line.judged:
        return []
    name = f"{line.source} {line.model}".strip()
    if not line.differ:
        return [f"{name}: the file's own verdicts agree on all {line.judged:,}"]
    return [f"{name}: the file's own verdict differs on {len(line.differ):,} of {line.judged:,}", *line.differ[:SHOWN]]


def _forecast_lines(line: Line) -> list[str]:
    """How many groups of each size would differ, and what to do."""
    from reward_funcs.pass_rates import forecast

    ahead = forecast(line.counts)
    if ahead is None:
        return []
    name = f"{line.source} {line.model}".strip()
    sizes = [str(n) for n in ahead.equal]
    equal = [f"{'≤ ' if n > ahead.fewest else ''}{share:.1%}" for n, share in ahead.equal.items()]
    at_most = [f"{share:.1%}" for share in ahead.at_most.values()]
    rows = [["rollout_n", *sizes], ["equal groups", *equal], ["p^n + (1-p)^n", *at_most]]
    text = ["", f"{name}: groups in which every response scores the same teach nothing", *_table(rows)]
    differ = 1 - ahead.equal[ahead.advised]
    if differ > 0:
        text.append(f"advice: --rollout_n {ahead.advised}: {differ:.0%} of the groups differ; larger ones add little")
    else:
        text.append("no group of any size would differ: another model, easier or harder prompts, or another reward")
    if ahead.always:
        text.append(f"{ahead.always:.0%} of the prompts were always right: leave them out, they only cost time")
    if ahead.never:
        text.append(f"{ahead.never:.0%} of the prompts were never right: too hard for now, or their truth is wrong")
    return text
