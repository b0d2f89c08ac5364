"""What is wrong with the prompts as a set: duplicates, evaluation prompts that are trained on, languages, lengths.

Whether a reward can score them is not asked here: data_prep knows no rewards. Nothing is changed; `clean` says which
records would stay.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from data_prep.errors import plural, quote
from data_prep.near import near_pairs, words
from data_prep.record import Record, prompt_digest

SHOWN = 3  # examples of one finding
A_LANGUAGE = 0.01  # share of the prompts from which on a language counts
MANY = 0.01  # share of duplicates that is worth a warning
_STEP = 64  # tokens, for a round number of --max_prompt_length
_SCRIPTS = (
    (re.compile("[\u3040-\u30ff]"), "Japanese"),
    (re.compile("[\uac00-\ud7af]"), "Korean"),
    (re.compile("[\u3400-\u9fff]"), "Chinese"),
    (re.compile("[\u0400-\u04ff]"), "Cyrillic"),
    (re.compile("[\u0600-\u06ff]"), "Arabic"),
    (re.compile("[\u0900-\u097f]"), "Devanagari"),
)
_SURFACES = (  # of ground truths that a reward which compares texts trips over
    ("with thousands separators", re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")),
    ("with a decimal .0", re.compile(r"-?[0-9]+\.0+")),
    (r"inside \boxed{}", re.compile(r"\\f?boxed ?\{.*\}", re.DOTALL)),
    ("inside $...$", re.compile(r"\$[^$]+\$", re.DOTALL)),
    ("with spaces around", re.compile(r"\s.*|.*\s", re.DOTALL)),
    ("with full-width characters", re.compile("[\uff01-\uff5e]+")),
)


class Finding(NamedTuple):
    """level: refuse = nothing could be trained; warn = a number of the run would mislead; note = good to know.

    fix: the change, {check} standing for the command that was run; rows: examples.
    """

    level: Literal["refuse", "warn", "note"]
    text: str
    fix: str = ""
    rows: tuple[str, ...] = ()


@dataclass
class Diagnosis:
    """Places are those of the training records, pairs (place, an earlier one); `leaked` has places in val behind.

    conflicts: duplicates with another answer. lengths: tokens of each prompt, train then val, None when not counted.
    """

    rows: int
    val_rows: int
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    conflicts: list[tuple[int, int]] = field(default_factory=list)
    near: list[tuple[int, int]] = field(default_factory=list)
    leaked: list[tuple[int, int]] = field(default_factory=list)
    near_leaked: list[tuple[int, int]] = field(default_factory=list)
    languages: dict[str, int] = field(default_factory=dict)
    surfaces: dict[str, int] = field(default_factory=dict)
    lengths: list[int] | None = None
    longest: int | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def over_long(self) -> list[int]:
        """Places of training records with a prompt of more tokens than are allowed."""
        if self.lengths is None or self.longest is None:
            return []
        return [place for place, length in enumerate(self.lengths[: self.rows]) if length > self.longest]

    def lines(self) -> list[str]:
        """The set in a few lines."""
        again = f"{len(self.duplicates):,} exact, {len(self.near):,} near, {len(self.conflicts):,} with another answer"
        leaked = f"{len(self.leaked):,} exact, {len(self.near_leaked):,} near"
        counted = [f"{name} {count:,}" for name, count in list(self.languages.items())[: SHOWN + 2]]
        lines = [
            f"records        {self.rows:,} to train on, {self.val_rows:,} to evaluate on",
            f"duplicates     {again}",
            f"in both        {leaked}",
            f"languages      {', '.join(counted)}",
        ]
        if self.lengths:
            ordered = sorted(self.lengths)
            tokens = f"median {ordered[len(ordered) // 2]:,}, longest {ordered[-1]:,} tokens"
            lines.append(f"prompts        {tokens}; {len(self.over_long):,} over --max_prompt_length {self.longest}")
        return lines


def diagnose(
    train: Sequence[Record],
    val: Sequence[Record],
    *,
    lengths: Sequence[int] | None = None,
    longest: int | None = None,
    apart: bool = True,
    compares_text: bool = False,
) -> Diagnosis:
    """Everything about the set. lengths: tokens of the prompts, train then val; longest: tokens that one may have.

    apart: val comes from a file of its own (then what is in both is a mistake, else it is one prompt in both by need).
    compares_text: the reward is the user's, so how a truth is written may matter.
    """
    found = Diagnosis(len(train), len(val), lengths=None if lengths is None else list(lengths), longest=longest)
    _repeated(found, train, val)
    found.languages = dict(Counter(language(_text(record)) for record in (*train, *val)).most_common())
    surfaces = (name for record in train for name, form in _SURFACES if form.fullmatch(record.ground_truth))
    found.surfaces = dict(Counter(surfaces).most_common())
    found.findings = [
        *_leaks(found, train, val, apart),
        *_duplicates(found, train),
        *_over_long(found, train),
        *_mixture(found),
        *(_surfaces(found) if compares_text else ()),
    ]
    return found


def clean(train: Sequence[Record], found: Diagnosis, *, leave_out: Collection[int] = ()) -> list[Record]:
    """The training records without those that come again, contradict each other, are too long, or are in val.

    leave_out: places of more to leave out.
    """
    out = {place for place, _ in (*found.duplicates, *found.near, *found.leaked, *found.near_leaked)}
    out |= {place for pair in found.conflicts for place in pair}
    out |= {*found.over_long, *leave_out}
    return [record for place, record in enumerate(train) if place not in out]


def language(text: str) -> str:
    """The script that most letters of a text have: Chinese, Japanese, Korean, Latin ..., "none" without letters.

    One kana makes it Japanese; Chinese counts from a quarter of the letters on, since each character is a word.
    """
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else "none"
    letters = [c for c in text if c.isalpha()]
    for form, name in _SCRIPTS:
        share = len(form.findall(text)) / max(1, len(letters))
        if share > (0.02 if name == "Japanese" else 0.25):
            return name
    latin = any("LATIN" in unicodedata.name(c, "") for c in letters)
    return "Latin" if latin else "other" if letters else "none"


def _repeated(found: Diagnosis, train: Sequence[Record], val: Sequence[Record]) -> None:
    """Duplicates and leaks. Evaluation prompts come first, so that a training record is found to repeat one."""
    records = [*val, *train]
    digests: dict[bytes, int] = {}
    pairs = near_pairs([words(_text(record)) for record in records])
    for place, record in enumerate(records):
        exact = digests.setdefault(prompt_digest(record), place)
        earlier = exact if exact != place else pairs.get(place)
        if earlier is None or place < len(val):
            continue
        mine = place - len(val)
        if earlier < len(val):
            (found.leaked if exact != place else found.near_leaked).append((mine, earlier))
        elif exact == place:
            found.near.append((mine, earlier - len(val)))
        elif record.ground_truth != records[earlier].ground_truth:
            found.conflicts.append((mine, earlier - len(val)))
        else:
            found.duplicates.append((mine, earlier - len(val)))


def _leaks(found: Diagnosis, train: Sequence[Record], val: Sequence[Record], apart: bool) -> list[Finding]:
    pairs = [*found.leaked, *found.near_leaked] if apart or len(train) > 1 else []
    if not pairs:
        return []
    in_val = len({place for _, place in pairs})
    near = f", {len(found.near_leaked):,} of them only nearly the same" if found.near_leaked else ""
    text = f"{in_val:,} of the {found.val_rows:,} to evaluate on {'is' if in_val == 1 else 'are'} trained on, too "
    text += f"({plural(len(pairs), 'training record')}{near}): val_accuracy would show what was learned by heart"
    rows = tuple(_pair(train[a], val[b], " of the evaluation data" if apart else "") for a, b in pairs[:SHOWN])
    return [Finding("warn", text, "{check} --clean clean.parquet, then train with --data clean.parquet", rows)]


def _duplicates(found: Diagnosis, train: Sequence[Record]) -> list[Finding]:
    findings = []
    fix = "{check} --clean clean.parquet leaves them out"
    if found.conflicts:
        text = f"{plural(len(found.conflicts), 'record')} with the prompt of an earlier one and another answer"
        rows = tuple(
            f"{_pair(train[a], train[b])}: {quote(train[a].ground_truth)} and {quote(train[b].ground_truth)}"
            for a, b in found.conflicts[:SHOWN]
        )
        findings.append(Finding("warn", f"{text}: one of the two is paid for a wrong answer", fix, rows))
    for pairs, what in ((found.duplicates, "the same prompt as"), (found.near, "nearly the same prompt as")):
        if pairs:
            level = "warn" if len(pairs) > MANY * found.rows else "note"
            text = f"{plural(len(pairs), 'record')} with {what} an earlier one"
            rows = tuple(_pair(train[a], train[b]) for a, b in pairs[:SHOWN])
            findings.append(Finding(level, text, fix, rows))
    return findings


def _over_long(found: Diagnosis, train: Sequence[Record]) -> list[Finding]:
    over = found.over_long
    if not over or found.lengths is None:
        return []
    need = -(-max(found.lengths) // _STEP) * _STEP
    text = f"{len(over):,} of {plural(found.rows, 'prompt')} have more than --max_prompt_length {found.longest} tokens "
    text += "and would be left out"
    rows = tuple(f"{_name(train[place])}: {found.lengths[place]:,} tokens" for place in over[:SHOWN])
    level = "refuse" if len(over) == found.rows else "warn"
    return [Finding(level, text, f"--max_prompt_length {need} keeps them all", rows)]


def _mixture(found: Diagnosis) -> list[Finding]:
    total = sum(found.languages.values())
    counted = [(name, n) for name, n in found.languages.items() if n >= A_LANGUAGE * total and name != "none"]
    if len(counted) < 2:
        return []
    shares = ", ".join(f"{name} {n / total:.0%}" for name, n in counted)
    fix = '--system "Answer in the language of the question." if responses should not mix them'
    return [Finding("note", f"prompts in several languages: {shares}", fix)]


def _surfaces(found: Diagnosis) -> list[Finding]:
    if not found.surfaces:
        return []
    kinds = ", ".join(f"{n:,} {name}" for name, n in found.surfaces.items())
    text = f"ground truths that a reward which compares texts does not recognise: {kinds}"
    return [Finding("note", text, "compare numbers in your reward, or add --reward accuracy, which reads all of these")]


def _text(record: Record) -> str:
    return "\n".join(message["content"] for message in record.prompt if message["role"] != "system")


def _name(record: Record) -> str:
    return f"record {record.index}"


def _pair(record: Record, other: Record, of: str = "") -> str:
    return f"{_name(record)} and {_name(other)}{of}, {quote(_text(other).strip())}"
