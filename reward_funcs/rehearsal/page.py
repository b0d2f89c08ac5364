"""What was tried on a reward, as lines for a terminal. Judges nothing (findings.py does)."""

from __future__ import annotations

from collections.abc import Iterator

from reward_funcs.rehearsal.answers import BARE, SPELLINGS
from reward_funcs.rehearsal.cases import DECIMAL
from reward_funcs.rehearsal.tried import Tried

WIDE = 15  # columns of a line's name


def lines(tried: Tried) -> list[str]:
    """One reward on one data_source."""
    head = f"{tried.source}  {tried.rows:,} records, scored by {tried.scorer}"
    if tried.skipped:
        return [head, *_line("not tried", tried.skipped)]
    if len(tried.broken_rows) == tried.rows:
        return [head, *_line("not tried", "no record has tests that can be read")]
    return [
        head,
        *_line("right answers", _gold(tried)),
        *_line("spelled as", _spellings(tried)),
        *_line("bad answers", _bad(tried)),
        *_line("a call", _calls(tried)),
    ]


def _line(name: str, text: str) -> Iterator[str]:
    if text:
        yield f"  {name:<{WIDE}}{text}"


def _gold(tried: Tried) -> str:
    if not tried.gold:
        if tried.known:
            return f"none has a score: {tried.ended}"
        return "unknown: none was tried" if tried.unknown else "there are none (--answer_key none)"
    mean = "no score" if tried.gold_mean is None else f"mean {tried.gold_mean:.3g}"
    how = "" if tried.best == BARE else f", written as {' '.join(_spelled(tried.best, tried.sample_answer).split())}"
    failed = f"; {tried.gold_errors:,} failed" if tried.gold_errors else ""
    some = "" if tried.gold + tried.unknown + len(tried.broken_rows) >= tried.rows else f" ({tried.gold:,} tried)"
    return f"{mean}; {tried.right:,} of {tried.gold:,} score 1{some}{how}{failed}"


def _spellings(tried: Tried) -> str:
    if len(tried.spellings) < 2:
        return ""
    shown = [(_spelled(name, tried.sample_answer), mean) for name, mean in tried.spellings.items()]
    return "   ".join(f"{' '.join(text.split())} {mean:.3g}" for text, mean in shown)


def _spelled(name: str, answer: str) -> str:
    if name == BARE:
        return answer
    return f"{answer}.0" if name == DECIMAL else SPELLINGS[name][0].format(answer)


def _bad(tried: Tried) -> str:
    kinds = [(name, kind) for name, kind in tried.bad.items() if kind.tried]
    said = [f"{name} {'failed' if kind.mean is None else f'{kind.mean:.3g}'}" for name, kind in kinds]
    if tried.untried:
        said.append(
            f"{', '.join(tried.untried) if kinds else 'none was'}{' not' if kinds else ''} tried: {tried.ended}"
        )
    return "   ".join(said)


def _calls(tried: Tried) -> str:
    said = []
    if tried.p50 is not None and tried.p99 is not None:
        said.append(f"{_time(tried.p50)}, p99 {_time(tried.p99)}")
    huge = tried.bad.get("huge")
    if huge and huge.tried:
        said.append(f"huge {_time(huge.slowest)}")
    if tried.low_score is not None and tried.high_score is not None:
        said.append(f"scores {tried.low_score:g} to {tried.high_score:g}")
    said.append(f"{tried.errors:,} of {tried.calls:,} failed" if tried.errors else "none failed")
    if tried.twice:
        said.append(
            "the same twice" if not tried.differ else f"{tried.differ} of {tried.twice} differ when called twice"
        )
    return " · ".join(said)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"
