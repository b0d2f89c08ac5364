"""One reward tried on one data_source: the right answers, the same spelled otherwise, bad answers, everything twice.

Collects; what is wrong with it, and what to do, is findings.py's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reward_funcs.rehearsal.answers import (
    ASKED,
    BAD,
    BARE,
    SPELLINGS,
    Bad,
    Right,
    decimal,
    prompt_text,
    right_answer,
    spelled,
    wrong_answer,
)
from reward_funcs.rehearsal.calls import Call, Caller, spread
from reward_funcs.rehearsal.reading import is_correctness, is_ours, read, rules_for, scorer, shown, unreadable
from reward_funcs.rehearsal.tried import Kind, Plan, Row, Tried
from reward_funcs.score import Reward, Sample
from reward_funcs.signature import columns

SHOWN = 5  # failing rows that are shown
NEIGHBOURS = 20  # other records that are looked at for a wrong answer
DECIMAL = "decimal"
TOGETHER = 4  # responses in one call of a reward of lists
CALLS = 16  # that a record costs when everything is tried on it


class Trial:
    """Tries `reward` on the rows of one data_source; `run` gives what came of it."""

    def __init__(self, reward: Reward, name: str, rows: Sequence[Row], caller: Caller, plan: Plan) -> None:
        self._reward, self._rows, self._caller, self._plan = reward, rows, caller, plan
        first = rows[0].sample
        self._rules = rules_for(reward, first)
        self.found = Tried(
            source=first.data_source,
            reward=name,
            rows=len(rows),
            scorer=scorer(reward, first),
            ours=is_ours(reward),
            correctness=is_correctness(reward),
            columns=_columns(reward, rows),
            file=str(reward.file) if reward.file else None,
        )
        self._calls: list[Call] = []
        self._leave_out_broken()

    def _leave_out_broken(self) -> None:
        """Every record's tests are read: training would fail on those that cannot be, whatever the response."""
        whys = [unreadable(self._rules, row.sample) for row in self._rows]
        broken = [(row.name, why) for row, why in zip(self._rows, whys, strict=True) if why]
        self.found.broken = [f"{name}: {why}" for name, why in broken[:SHOWN]]
        self.found.broken_rows = [name for name, _ in broken]
        self._rows = [row for row, why in zip(self._rows, whys, strict=True) if not why]

    def run(self, gold: int, *, has_gold: bool = True) -> Tried:
        """gold: right answers to try. has_gold: whether the records have any."""
        if not self._rows:
            return self.found
        rights = [right_answer(row.sample, self._rules) if has_gold else None for row in self._rows]
        known = [i for i, right in enumerate(rights) if right is not None]
        self.found.known = len(known)
        self.found.unknown = len(rights) - len(known) if has_gold else 0
        chosen = [known[place] for place in spread(len(known), gold)]
        one = next((right for i in chosen if (right := rights[i])), Right("", None))
        first = self._sample(chosen[0] if chosen else 0, one.whole)
        probe = self._timed([first, first])
        self._together([self._sample(i, _in(rights[i] or one, BARE)) for i in chosen[:TOGETHER]] or [first], probe)
        tried = self._caller.affordable(CALLS * (probe[-1].seconds or 0.0) if probe else 0.0, self._plan.tried)
        front = [chosen[place] for place in spread(len(chosen), tried)]
        calls = self._spellings(front, rights)
        self._note_gold(calls)
        best = {i: call.score for i, (_, call) in calls.items() if call.score is not None}
        if known:
            self._bad(front, rights, best)
        else:
            self._bad(spread(len(self._rows), tried), rights, {})
        self._rest([i for i in chosen if i not in set(front)], rights)
        self._sum_up()
        return self.found

    def _together(self, samples: list[Sample], alone: Sequence[Call]) -> None:
        """A reward of lists is called with several responses, as in training: there it may fail though it never did."""
        if not self._reward.shape.together or not alone or any(call.error for call in alone):
            return
        samples += [replace(samples[0], solution="")] if len(samples) == 1 else []
        calls = self._caller.together(samples)
        self._calls += calls
        if calls and calls[0].error is not None:
            self.found.together, self.found.together_error = len(calls), calls[0].error

    def _sample(self, i: int, text: str) -> Sample:
        return replace(self._rows[i].sample, solution=text)

    def _rest(self, places: list[int], rights: Sequence[Right | None]) -> None:
        samples = [self._sample(i, _in(right, self.found.best)) for i in places if (right := rights[i])]
        calls = self._caller.together(samples)
        self._calls += calls
        self._note_gold({i: (s, call) for i, s, call in zip(places, samples, calls, strict=False)})

    def _note_gold(self, calls: Mapping[int, tuple[Sample, Call]]) -> None:
        found = self.found
        for i, (sample, call) in calls.items():
            found.gold += 1
            found.gold_errors += call.error is not None
            found.right += call.score is not None and call.score >= 1
            found.zero += call.score is not None and call.score <= 0
            if call.score is not None:
                found.gold_mean = (found.gold_mean or 0.0) + call.score
            if call.score is None or call.score < 1:
                found.low_rows.append(self._rows[i].name)
                if len(found.low) < SHOWN:
                    found.low.append(f"{self._rows[i].name}: {self._told(sample, call)}")

    def _told(self, sample: Sample, call: Call) -> str:
        said = shown(sample.solution)
        if call.error is not None:
            return f"{said} fails: {call.error}"
        if call.score is None:
            return f"{said}: the reward does not apply"
        taken = read(self._rules, sample)
        parts = ", ".join(f"{name} {value:g}" for name, value in call.parts.items())
        return f"{said} scores {call.score:g}" + (f"; {taken}" if taken else f"; {parts}" if parts else "")

    def _spellings(self, places: list[int], rights: Sequence[Right | None]) -> dict[int, tuple[Sample, Call]]:
        """The right answers in every spelling; what came of the one that scores highest, by row."""
        found: dict[str, dict[int, tuple[Sample, Call]]] = {}
        tried: dict[str, int] = {}
        for name in [*SPELLINGS, DECIMAL]:
            texts = {i: text for i in places if (right := rights[i]) and (text := _other(right, name)) is not None}
            samples = [self._sample(i, text) for i, text in texts.items()]
            calls = self._timed(samples)
            tried[name] = len(samples)
            found[name] = {i: (s, call) for i, s, call in zip(texts, samples, calls, strict=False)}
            if name == BARE:
                self._compare(list(texts), samples, calls, self._timed(samples[: len(calls)]))
        # of two spellings that were tried on different records neither is the better one
        found = {name: calls if len(calls) == tried[name] or name == BARE else {} for name, calls in found.items()}
        scored = {name: [c.score for _, c in calls.values() if c.score is not None] for name, calls in found.items()}
        self.found.spellings = {name: statistics.fmean(scores) for name, scores in scored.items() if scores}
        # A reward of ours reads a bare answer; a truth that it does not find equal to itself is one it cannot read.
        whole = (
            []
            if self.found.correctness
            else [n for n in SPELLINGS if n in self.found.spellings and len(scored[n]) >= len(scored[BARE])]
        )
        self.found.best = max(whole, key=lambda n: self.found.spellings[n], default=BARE)  # the first of equals: bare
        shorts = [(i, right.short) for i in places if (right := rights[i]) and right.short]
        if shorts:
            self.found.sample_answer = shorts[0][1]
            self.found.asked = ASKED[self.found.best] in prompt_text(self._rows[shorts[0][0]].sample)
        return found[self.found.best]

    def _bad(self, places: list[int], rights: Sequence[Right | None], best: dict[int, float]) -> None:
        for bad in BAD:
            made = {i: text for i in places[: bad.most] if (text := self._bad_text(bad, i, rights)) is not None}
            samples = [self._sample(i, text) for i, text in made.items()]
            calls = self._timed(samples, counts=bad.name != "huge")
            if samples and not calls:
                self.found.untried.append(bad.name)
            if bad.name == "wrong":
                self._compare(list(made), samples, calls, self._timed(samples[: len(calls)]))
            self.found.bad[bad.name] = self._kind(list(made), samples, calls, best)

    def _bad_text(self, bad: Bad, i: int, rights: Sequence[Right | None]) -> str | None:
        right = rights[i] or Right("", None)
        if not right.whole and bad.name in ("wrong", "two answers", "cut off"):
            return None
        count = len(rights)
        near = [other for step in range(1, min(NEIGHBOURS, count)) if (other := rights[(i + step) % count])]
        wrong = wrong_answer(right, near) if bad.name in ("wrong", "two answers") else ""
        return bad.make(right, wrong, self.found.best, prompt_text(self._rows[i].sample))

    def _kind(
        self, places: Sequence[int], samples: Sequence[Sample], calls: Sequence[Call], best: dict[int, float]
    ) -> Kind:
        rows = list(zip(places, samples, calls, strict=False))
        scores = [call.score for call in calls if call.score is not None]
        paid = [row for row in rows if (s := row[2].score) is not None and s >= best.get(row[0], math.inf) > 0]
        failed = [row for row in rows if row[2].error is not None]
        first = (paid or failed or [None])[0]
        return Kind(
            tried=len(calls),
            mean=statistics.fmean(scores) if scores else None,
            paid=len(paid),
            errors=len(failed),
            first=f"{self._rows[first[0]].name}: {self._told(first[1], first[2])}" if first else "",
            slowest=max((call.seconds or 0.0 for call in calls), default=0.0),
        )

    def _timed(self, samples: Sequence[Sample], *, counts: bool = True) -> list[Call]:
        calls = self._caller.alone(samples)
        self._calls += calls if counts else [replace(call, seconds=None) for call in calls]
        return calls

    def _compare(
        self, places: Sequence[int], samples: Sequence[Sample], first: Sequence[Call], second: Sequence[Call]
    ) -> None:
        for i, sample, one, two in zip(places, samples, first, second, strict=False):
            self.found.twice += 1
            if one.score != two.score:
                if not self.found.differ:
                    scores = " then ".join("failed" if c.score is None else f"{c.score:g}" for c in (one, two))
                    self.found.first_differ = f"{self._rows[i].name}: {shown(sample.solution)} scores {scores}"
                self.found.differ += 1

    def _sum_up(self) -> None:
        found = self.found
        scores = [call.score for call in self._calls if call.score is not None]
        seconds = sorted(call.seconds for call in self._calls if call.seconds is not None)
        failed = [call.error for call in self._calls if call.error is not None]
        scored = found.gold - found.gold_errors
        found.gold_mean = None if found.gold_mean is None else found.gold_mean / max(1, scored)
        found.calls, found.errors, found.first_error = len(self._calls), len(failed), failed[0] if failed else ""
        if scores:
            found.low_score, found.high_score = min(scores), max(scores)
        if seconds:
            found.p50, found.p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
        names = {frozenset(call.parts) for call in self._calls if call.score is not None}
        found.parts, found.uneven = sorted(frozenset[str]().union(*names)), len(names) > 1
        found.hung = self._caller.hung
        found.ended = self._caller.ended if found.untried or found.gold < min(1, found.known) else ""


def _columns(reward: Reward, rows: Sequence[Row]) -> list[str]:
    """What a reward may ask for: lists by name, or `extra_info` and what stands beside it."""
    given = set(columns([row.sample for row in rows])) - {"split"}
    beside = {"data_source", "ground_truth"} | {str(name) for row in rows for name in row.sample.extra_info or {}}
    return sorted(given if reward.shape.together else given & beside)


def _in(right: Right, name: str) -> str:
    return spelled(right, name) or right.whole


def _other(right: Right, name: str) -> str | None:
    return decimal(right) if name == DECIMAL else spelled(right, name)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of an ordered list does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
