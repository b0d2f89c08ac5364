"""The whole rehearsal: every data_source with every reward of a run, and its short form before every training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from reward_funcs.combined import Combined
from reward_funcs.errors import RewardError
from reward_funcs.rehearsal.calls import Caller
from reward_funcs.rehearsal.cases import Trial
from reward_funcs.rehearsal.findings import Finding, findings, merged
from reward_funcs.rehearsal.reading import is_ours
from reward_funcs.rehearsal.remedies import remedy
from reward_funcs.rehearsal.tried import SHORT, Plan, Row, Tried
from reward_funcs.score import Reward, Sample, record_name

MODELS = ("llm_judge", "reward_model")  # they load one, or ask one that costs
MOST_SOURCES = 50  # tried; the most frequent ones


def try_out(
    reward: Reward | Combined,
    rows: Sequence[Row],
    plan: Plan,
    *,
    has_gold: bool = True,
    timeout: float = 60.0,
    max_errors: float = 0.1,
    before_training: bool = False,
) -> list[tuple[Tried, list[Finding]]]:
    """What came of each reward on each data_source, the most frequent source first, and what there is to say about it.

    has_gold: whether ground truths are right answers. timeout: seconds for a call in training; max_errors: the share of
    a batch that may fail there. before_training: refuse only what training could not go on with. Raises RewardError
    when a reward cannot be called at all.
    """
    sources = _by_source(rows)
    names = reward.names if isinstance(reward, Combined) else (reward.name,)
    end = time.monotonic() + plan.seconds
    left = len(sources) * len(reward.singles)
    judge = partial(findings, max_errors=max_errors, alone=len(names) == 1, before_training=before_training)
    found: dict[tuple[str, int], tuple[Tried, list[Finding]]] = {}
    for place, (name, single) in enumerate(zip(names, reward.singles, strict=True)):
        # one of ours ends by itself: a program has its own deadline, and a slow machine is no reason to give it up
        deadline = timeout if is_ours(single) else min(plan.deadline, timeout)
        with Caller(single, timeout=deadline) as caller:
            for source, records in sources.items():
                now = time.monotonic()
                caller.until(now + max(0.05, (end - now) / left))
                left -= 1
                trial = Trial(single, name, records, caller, plan)
                share = plan.gold * len(records) // max(1, len(rows))
                found[source, place] = _one(trial, caller, records, max(share, 8), has_gold, judge)
    return [found[source, place] for source in sources for place in range(len(names))]


def _one(
    trial: Trial, caller: Caller, records: Sequence[Row], gold: int, has_gold: bool, judge: Callable[..., list[Finding]]
) -> tuple[Tried, list[Finding]]:
    if (skipped := _not_tried(caller.reward)) is not None:
        trial.found.skipped = skipped
        return trial.found, judge(trial.found)
    tried = trial.run(gold, has_gold=has_gold)
    better = ""
    if tried.gold and 2 * tried.right < tried.gold and (tried.correctness or not tried.ours) and not tried.hung:
        caller.until(max(caller.end, time.monotonic() + 0.5))
        better = remedy(caller, [row.sample for row in records])
    return tried, judge(tried, better=better)


def _not_tried(reward: Reward) -> str | None:
    given = reward.recipe is None and reward.name in MODELS
    return "it is a model, which a check neither loads nor asks" if given else None


def short_check(
    reward: Reward | Combined,
    samples: Sequence[Sample],
    *,
    has_gold: bool = True,
    force: bool = False,
    timeout: float = 60.0,
    max_errors: float = 0.1,
    plan: Plan = SHORT,
) -> list[str]:
    """What is odd about a reward before training, a line each; raises RewardError for what makes training pointless.

    That is: a correctness reward of ours that scores no right answer of a data_source, and calls that fail more often
    than max_errors allows, records of code without readable tests among them. force: say it, and go on. samples:
    records with their ground truths; `solution` is not read.
    """
    if not samples:
        return []
    rows = [Row(replace(sample, solution=""), record_name(sample, i)) for i, sample in enumerate(samples)]
    found = try_out(reward, rows, plan, has_gold=has_gold, timeout=timeout, max_errors=max_errors, before_training=True)
    said = merged([finding for _, each in found for finding in each if finding.level != "note"])
    refused = [finding for finding in said if finding.level == "refuse"]
    if refused and not force:
        raise RewardError(f"{line(refused[0])}; look at it with ./train.sh check, or go on with --force")
    return [line(finding) for finding in said]


def line(finding: Finding) -> str:
    """A finding on one line, with its first example."""
    row = f": {finding.rows[0]}" if finding.rows else ""
    fix = f". To do: {finding.fix.replace('{check}', './train.sh check ...')}" if finding.fix else ""
    return " ".join(f"{finding.text}{row}{fix}".split())


def _by_source(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.sample.data_source, []).append(row)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return dict(ordered[:MOST_SOURCES])
