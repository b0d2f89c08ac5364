"""What a rehearsal is told, and what it notes: records, how much of them is tried, and what became of a reward.

Only data: it is collected by cases.py, judged by findings.py and shown by page.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reward_funcs.rehearsal.answers import BARE
from reward_funcs.score import Sample


@dataclass(frozen=True)
class Row:
    """A record to try. name: how the user finds it, `record 7`."""

    sample: Sample
    name: str


@dataclass(frozen=True)
class Plan:
    """How much is tried: gold, right answers in all; tried, records of each source with everything; seconds, in all.

    deadline: seconds for one call.
    """

    gold: int
    tried: int
    seconds: float
    deadline: float


FULL = Plan(gold=20_000, tried=200, seconds=30.0, deadline=20.0)
SHORT = Plan(gold=200, tried=16, seconds=4.0, deadline=4.0)


@dataclass(frozen=True)
class Kind:
    """Answers of one kind. paid: how many scored as much as the right answer of the same record, which scored."""

    tried: int = 0
    mean: float | None = None
    paid: int = 0
    errors: int = 0
    first: str = ""  # the first paid or failed row
    slowest: float = 0.0


@dataclass
class Tried:
    """What became of one reward on one data_source.

    low: the first rows whose right answer scores less than 1, one line each; low_rows: the names of all of them.
    best: the spelling that scores highest, in which the other numbers are; asked: whether the prompt asks for it;
    sample_answer: one to show. low_score, high_score: the range of all scores; differ: of `twice` responses
    scored twice how many got two scores. known, unknown: records whose right answer is known, or not.
    broken: code records whose tests cannot be read, which are not tried, the first of them a line each;
    broken_rows: the names of all of them.
    untried: kinds of bad answers that were to be tried and were not; ended: why calls were given up, "" when all were
    made. together: responses given to one call of a reward of lists; together_error: what that call failed with,
    though one for each works. columns: what the records have for the reward to ask for. uneven: not every response
    has the same parts. skipped: why nothing was tried, "" when it was.
    """

    source: str
    reward: str
    rows: int
    scorer: str
    ours: bool
    correctness: bool
    file: str | None = None
    gold: int = 0
    right: int = 0
    zero: int = 0
    gold_mean: float | None = None
    gold_errors: int = 0
    known: int = 0
    unknown: int = 0
    broken: list[str] = field(default_factory=list)
    broken_rows: list[str] = field(default_factory=list)
    low: list[str] = field(default_factory=list)
    low_rows: list[str] = field(default_factory=list)
    spellings: dict[str, float] = field(default_factory=dict)
    best: str = BARE
    sample_answer: str = ""
    asked: bool = False
    bad: dict[str, Kind] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    ended: str = ""
    twice: int = 0
    differ: int = 0
    first_differ: str = ""
    calls: int = 0
    errors: int = 0
    first_error: str = ""
    together: int = 0
    together_error: str = ""
    columns: list[str] = field(default_factory=list)
    p50: float | None = None
    p99: float | None = None
    low_score: float | None = None
    high_score: float | None = None
    parts: list[str] = field(default_factory=list)
    uneven: bool = False
    hung: bool = False
    skipped: str = ""
