"""All the rows of what the user named -> records, or one DataError that counts every bad one. Writes nothing."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from data_prep.encoding import encoding_error
from data_prep.errors import DataError, plural, quote
from data_prep.json_rows import Row, json_rows
from data_prep.record import NO_ANSWER, Columns, Problem, Record, build
from data_prep.source import format_of, locate
from data_prep.table_rows import csv_rows, parquet_rows

__all__ = ["Record", "check_sources", "from_rows", "iter_records", "read_records"]

SHOWN = 5  # bad records named in a message; the rest are counted
SHOWN_COLUMNS = 8  # column names listed in advice
LONGEST_PATH = 255  # characters; a longer system prompt is text


def read_records(spec: str | Path, **settings: Any) -> list[Record]:
    """All records of `spec`; settings and errors as `iter_records`."""
    return list(iter_records(spec, **settings))


def iter_records(
    spec: str | Path,
    *,
    prompt_key: str = "prompt",
    answer_key: str = "ground_truth",
    source_key: str = "data_source",
    data_source: str | None = None,
    system: str | None = None,
    limit: int | None = None,
) -> Iterator[Record]:
    """The records of `spec`, one at a time: FILE, FILE#500 or a Hub data set ORG/NAME#500.

    prompt_key, answer_key, source_key: the columns' names; answer_key "none" = the reward needs no answer.
    data_source: for records that name none. system: text, or a file with it, put before every prompt. limit: rows.
    Raises DataError; for bad records only when all are counted, so a writer must not keep what came before.
    """
    columns = _columns(prompt_key, answer_key, source_key, data_source, system)
    source = locate(spec, limit)
    rows = (row for path in source.files for row in _rows(path))
    yield from _records(islice(rows, source.limit), columns, source.name)


def from_rows(
    rows: Iterable[Mapping[str, Any]], *, name: str = "rows", columns: Columns | None = None
) -> Iterator[Record]:
    """Records from Python objects (data made during training), with the same rules as a file. Raises DataError."""
    numbered = (Row(None, row) for row in rows)
    return _records(numbered, columns or Columns("prompt", "ground_truth", "data_source"), name)


def check_sources(records: Iterable[Record], known: Collection[str], *, name: str = "the data") -> None:
    """Raise DataError when a record's data_source is not in `known`, naming rows, the nearest and all known ones."""
    where: dict[str, int] = {}
    count: Counter[str] = Counter()
    total = 0
    for total, record in enumerate(records, 1):
        if record.data_source not in known:
            where.setdefault(record.data_source, record.number or total)
            count[record.data_source] += 1
    if not count:
        return
    shown = []
    for source, times in count.most_common(SHOWN):
        near = difflib.get_close_matches(source, known, n=1)
        more = f" and {times - 1:,} more" if times > 1 else ""
        hint = f", did you mean {near[0]}?" if near else ""
        shown.append(f"{quote(source)} (record {where[source]}{more}{hint})")
    if len(count) > SHOWN:
        shown.append(f"and {len(count) - SHOWN} other names")
    raise DataError(
        f"{name}: {count.total():,} of {plural(total, 'record')} have a data_source without a shipped reward: "
        f"{'; '.join(shown)}. Known: {', '.join(sorted(known))}; for any other give your reward: --reward_func FILE"
    )


def _columns(prompt: str, answer: str, source: str, data_source: str | None, system: str | None) -> Columns:
    return Columns(prompt, None if answer == NO_ANSWER else answer, source, data_source, _system(system))


def _system(system: str | None) -> str | None:
    """The system prompt: the text of the file `system` names, else `system` itself."""
    if system is None or not system.strip() or len(system) > LONGEST_PATH or "\n" in system or "\0" in system:
        return system if system and system.strip() else None
    path = Path(system)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise encoding_error(path) from None
    except OSError as error:
        raise DataError(f"--system {system}: cannot be read: {error.strerror}") from error
    if path.suffix.lower() in (".txt", ".md") and " " not in system:
        raise DataError(f"--system {system}: no such file")
    return system


def _rows(path: Path) -> Iterator[Row]:
    """The rows of one file. Raises DataError."""
    kind = format_of(path)
    try:
        if kind == "json":
            yield from json_rows(path)
        elif kind == "parquet":
            yield from parquet_rows(path)
        else:
            yield from csv_rows(path, "\t" if kind == "tsv" else ",")
    except UnicodeDecodeError:
        raise encoding_error(path) from None


def _records(rows: Iterable[Row], columns: Columns, name: str) -> Iterator[Record]:
    """Records from rows. Bad ones are counted to the end, then raised as one DataError."""
    bad = 0
    number = 0
    shown: list[tuple[str, list[Problem], str]] = []
    for number, row in enumerate(rows, 1):
        made = [Problem(row.problem)] if row.problem else build(row.value, columns, number)
        if isinstance(made, Record):
            yield made
            continue
        bad += 1
        if len(shown) < SHOWN:
            names = list(row.value)[:SHOWN_COLUMNS] if isinstance(row.value, Mapping) else []
            where = f"record {number}" + (f" (line {row.line})" if row.line else "")
            shown.append((where, made, ", ".join(quote(key)[1:-1] for key in names) or "none"))
    if bad:
        raise DataError(_bad_records(name, bad, number, shown))
    if not number:
        raise DataError(f"{name}: holds no records")


def _bad_records(name: str, bad: int, total: int, shown: list[tuple[str, list[Problem], str]]) -> str:
    """One line: how many, the first five, what to do about each kind of problem among them."""
    first = "; ".join(f"{where}: {', '.join(problem.what for problem in problems)}" for where, problems, _ in shown)
    more = f"; and {bad - len(shown):,} more" if bad > len(shown) else ""
    advice: dict[str, str] = {}
    for _, problems, columns in shown:
        for problem in problems:
            advice.setdefault(problem.advice, problem.advice.replace("{columns}", columns))
    todo = "; ".join(text for text in advice.values() if text)
    end = f". What to do: {todo}" if todo else ""
    return f"{name}: {bad:,} of {plural(total, 'record')} cannot be used; first: {first}{more}{end}"
