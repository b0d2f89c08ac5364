"""What is wrong with a reward as it was tried, how bad that is, and the exact change that mends it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Literal

from reward_funcs.rehearsal.answers import BAD, BARE, SPELLINGS
from reward_funcs.rehearsal.tried import Tried
from reward_funcs.reward_func import rules_of

Level = Literal["refuse", "warn", "note"]
ACCIDENTS = 0.05  # share of bad answers that may be right by accident
SLOW = 1.0  # seconds for a call
_LACKING = re.compile(r"needs the column '([^']+)'|KeyError: '([^']+)'")  # ours (signature.py) and Python's own
_SLIP = re.compile(r"\b(?:NameError|UnboundLocalError|AttributeError|ImportError|ModuleNotFoundError): ")
_TRUTH = "write the answer alone into ground_truth, or mark it in its text: `#### 18`"
_PROGRAM = "mend the program in `solution`, or the tests in ground_truth that it does not pass"
_HINTS = {bad.name: bad.hint for bad in BAD}
_SAID = {
    "empty": "an empty response",
    "wrong": "a wrong answer",
    "two answers": "a response of two answers",
    "cut off": "an answer that was cut off",
    "chatty": "talk without an answer",
    "other language": "a refusal in another language",
    "huge": "a response of 180,000 characters",
}


@dataclass(frozen=True)
class Finding:
    """level: refuse = training would learn nothing or stop; warn = it may learn the wrong thing; note = good to know.

    text: what, after the data_source. fix: the change, a command or an edit; {check} in it stands for the command that
    was run. rows: examples.
    """

    level: Level
    text: str
    fix: str = ""
    rows: tuple[str, ...] = ()


def merged(found: list[Finding]) -> list[Finding]:
    """The same finding on several data_sources as one, with the numbers of the first."""
    first: dict[tuple[str, str, str], Finding] = {}
    others: dict[tuple[str, str, str], list[str]] = {}
    for finding in found:
        source, _, text = finding.text.partition(": ")
        key = (finding.level, " ".join(re.sub(r"[0-9.]+", "", text).split()[:5]), finding.fix)
        if key in first:
            others.setdefault(key, []).append(source)
        else:
            first[key] = finding
    return [
        replace(finding, text=finding.text + _also(others[key])) if key in others else finding
        for key, finding in first.items()
    ]


def _also(sources: list[str]) -> str:
    shown = ", ".join(sources[:5]) + (f" and {len(sources) - 5} more" if len(sources) > 5 else "")
    return f"; likewise in {shown}"


def findings(
    tried: Tried, *, max_errors: float, better: str = "", alone: bool = True, before_training: bool = False
) -> list[Finding]:
    """Everything to say about one reward on one data_source, the worst first.

    max_errors: share of a batch that may fail. better: a change that makes the right answers score, tried before.
    alone: no other reward is added to it. before_training: refuse only what training could not go on with.
    """
    if tried.skipped:
        return [Finding("note", f"{tried.reward} was not tried: {tried.skipped}")]
    few = before_training and len(tried.broken_rows) <= max_errors * tried.rows
    found = [
        *_broken(tried, "warn" if few else "refuse"),
        *_failing(tried, max_errors),
        *_gold(tried, better),
        *_bad(tried),
        *_signal(tried, "refuse" if alone and not before_training else "warn"),
        *_time(tried),
    ]
    order = {"refuse": 0, "warn": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _where(tried: Tried) -> str:
    return f"{tried.source}: "


def _edit(tried: Tried) -> str:
    return f"edit {tried.file}: " if tried.file and not tried.ours else ""


def _broken(tried: Tried, level: Level) -> list[Finding]:
    """Code records that fail whatever the response says."""
    if not tried.broken_rows:
        return []
    text = (
        f"{_where(tried)}{len(tried.broken_rows)} of {tried.rows} records have a ground_truth without readable tests; "
    )
    text += "every call on them fails"
    fix = "mend the ground_truth of these records, or leave them out: {check} --clean clean.parquet"
    return [Finding(level, text, fix, tuple(tried.broken))]


def _failing(tried: Tried, max_errors: float) -> list[Finding]:
    if tried.together_error:
        text = f"{_where(tried)}{tried.reward} fails when it is called with {tried.together} responses at once, as in "
        fix = f"{_edit(tried)}return a list with one score for each of `completions`"
        return [Finding("refuse", f"{text}training: {tried.together_error}", fix)]
    if not tried.errors:
        return []
    many = tried.gold_errors > max_errors * tried.gold if tried.gold else tried.errors > max_errors * tried.calls
    empty = tried.bad.get("empty")
    many = many or bool(empty and empty.errors > max_errors * empty.tried)
    what = f"{_where(tried)}{tried.reward} fails on {tried.errors} of {tried.calls} responses: {tried.first_error}"
    if tried.hung:
        return [
            Finding(
                "refuse" if many else "warn",
                f"{what}; the rest was not tried",
                f"{_edit(tried)}end within a deadline of its own, or give it longer: --reward_timeout SECONDS",
            )
        ]
    why = "; training stops when more of a batch fails than --max_reward_errors" if many else ""
    rows = [kind.first for kind in tried.bad.values() if kind.errors and not kind.paid]
    fix = f"{_edit(tried)}{_repair(tried)}"
    return [Finding("refuse" if many else "warn", what + why, fix, tuple(rows[:5]))]


def _repair(tried: Tried) -> str:
    """What mends failing calls: the records, a column, or the user's function."""
    if tried.ours:
        return "the reward is a shipped one: change what the message names, in the records or in its parameters"
    lacking = _LACKING.search(tried.first_error)
    name = (lacking[1] or lacking[2]) if lacking else ""
    if name and name not in tried.columns:
        has = ", ".join(tried.columns)
        return f"the records have no column `{name}`, they have {has}: name one of these, or add it to the data"
    if _SLIP.search(tried.first_error):
        return "mend what the message names; no response can make up for it"
    return "return a number, also for a response that it cannot read: 0.0"


def _gold(tried: Tried, better: str) -> list[Finding]:
    found = []
    if tried.unknown:
        text = (
            f"{_where(tried)}{tried.unknown} of {tried.rows} records have tests and no right program to try them with"
        )
        found.append(Finding("note", text, "a column `solution` with a right program beside them would be tried"))
    form = tried.ours and not tried.correctness
    if tried.best != BARE and not tried.asked and not (form and tried.spellings.get(BARE)):
        text = f"{_where(tried)}{tried.reward} gives a bare right answer {_number(tried.spellings.get(BARE))}, and "
        written = SPELLINGS[tried.best][0].format(tried.sample_answer)
        text += (
            f"{_number(tried.spellings[tried.best])} to {' '.join(written.split())}; the prompts do not ask for that"
        )
        found.append(Finding("warn", text, f"ask for it: --system {shlex.quote(SPELLINGS[tried.best][1])}"))
    if form:
        return found
    found += _spellings(tried)
    scored = tried.gold - tried.gold_errors
    low = scored - tried.right
    if low <= 0:
        return found
    text = f"{_where(tried)}{low} of {scored} right answers score less than 1 by "
    if tried.correctness:
        none = tried.zero == scored
        text += tried.scorer + ("; training would see no reward at all" if none else "; a right response is never paid")
        leave_out = "leave those records out: {check} --clean clean.parquet"
        fix = better or (_TRUTH if none else leave_out)
        if tried.scorer.endswith(": code_score"):
            fix = _PROGRAM if none else f"{_PROGRAM}; or {leave_out}"
        found.append(Finding("refuse" if none else "warn", text, fix, tuple(tried.low)))
    else:
        text += f"{tried.reward} (mean {_number(tried.gold_mean)}); one of length or style owes them nothing"
        fix = better or f"{_edit(tried)}compare what it takes out of the response with the ground_truth shown here"
        found.append(Finding("warn", text, fix, tuple(tried.low)))
    return found


def _spellings(tried: Tried) -> list[Finding]:
    """Neighbours that do not agree: 42 is paid, 42.0 is not."""
    best = tried.spellings.get(tried.best, 0.0)
    other = [
        " ".join(_spelled(name, tried.sample_answer).split())
        for name, mean in tried.spellings.items()
        if mean < best - ACCIDENTS and name != BARE
    ]
    if tried.ours or not other or best <= 0 or tried.best != BARE:
        return []
    text = f"{_where(tried)}{tried.reward} pays {tried.sample_answer} but not the same as {', '.join(other)}"
    by = "--reward accuracy reads all of these" if rules_of(tried.source) == "math" else "let the reward read them"
    return [Finding("note", text, f"where such answers are right, too: {by}")]


def _spelled(name: str, answer: str) -> str:
    return SPELLINGS[name][0].format(answer) if name in SPELLINGS else f"{answer}.0"


def _bad(tried: Tried) -> list[Finding]:
    """Bad answers that are paid like right ones. A reward of ours for form or length owes nobody anything."""
    if tried.ours and not tried.correctness:
        return []
    found = []
    for name, kind in tried.bad.items():
        if kind.paid > ACCIDENTS * kind.tried:
            text = f"{_where(tried)}{tried.reward} pays {_SAID[name]} as much as the right one, "
            text += f"{kind.paid} times of {kind.tried}"
            fix = "look whether the truth is right" if tried.ours else f"{_edit(tried)}{_HINTS[name]}"
            found.append(Finding("warn", text, fix, (kind.first,)))
    return found


def _constant(tried: Tried, level: Level) -> list[Finding]:
    """One score for everything. Says nothing where bad answers were not tried, or a reward of ours met no right one."""
    rights = tried.gold > tried.gold_errors
    bads = [kind for kind in tried.bad.values() if kind.mean is not None]
    if tried.low_score is None or tried.low_score != tried.high_score or tried.untried or not bads:
        return []
    fix = f"{_edit(tried)}let the score depend on it"
    text = f"{_where(tried)}{tried.reward} gives every response {tried.low_score:g}, "
    if rights:
        level = level if tried.correctness or not tried.ours else "warn"
        return [Finding(level, f"{text}right or wrong: a group has no difference to learn from", fix)]
    return [] if tried.ours else [Finding("warn", f"{text}and no right one was tried", fix)]


def _signal(tried: Tried, level: Level) -> list[Finding]:
    found = _constant(tried, level)
    if tried.untried and not tried.hung and tried.errors < tried.calls:
        left = "right and bad answers" if tried.known and not tried.gold else "bad answers"
        names = ", ".join(tried.untried)
        text = f"{_where(tried)}{left} were not all tried on {tried.reward}, {tried.ended}: {names}"
        found.append(Finding("note", f"{text}; nothing is known of these"))
    if tried.differ:
        text = f"{_where(tried)}{tried.reward} scored the same response differently, {tried.differ} times of "
        fix = f"{_edit(tried)}take chance and state out of it; a judge that is a model answers greedily"
        found.append(Finding("warn", f"{text}{tried.twice}", fix, (tried.first_differ,)))
    if tried.uneven:
        text = f"{_where(tried)}the parts differ from response to response ({', '.join(tried.parts)[:120]})"
        found.append(Finding("note", f"{text}; each is a curve over the responses that have it"))
    return found


def _time(tried: Tried) -> list[Finding]:
    huge = tried.bad.get("huge")
    if tried.errors == tried.calls:
        return []
    if tried.p99 is not None and tried.p99 > SLOW:
        text = f"{_where(tried)}{tried.reward} takes {tried.p99:.1f} s a call (p99)"
        fix = f"{_edit(tried)}keep what is slow between calls, or score a batch at once: def f(completions, **columns)"
        return [Finding("warn", text, fix)]
    if huge and huge.slowest > SLOW:
        text = f"{_where(tried)}{tried.reward} takes {huge.slowest:.1f} s for {_SAID['huge']}"
        return [Finding("warn", text, f"{_edit(tried)}read no more than its last 10,000: solution_str[-10_000:]")]
    return []


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.3g}"
