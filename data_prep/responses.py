"""A file of model outputs, each with the record that it answers. Knows no rewards.

A row has `response` (or `completion`, `output`, or `responses`, a list) and `index` (the record's place, from 0) or the
prompt. A row with a ground_truth of its own needs no record: `completions.jsonl` of a run, or GSM8K's file of model
answers, where each model's is {"solution", "is_correct"} under the model's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import DataError, plural
from data_prep.json_rows import json_rows
from data_prep.record import Number, Record, json_text
from data_prep.source import format_of, locate

ONE = ("response", "completion", "output", "generated_text")
SEVERAL = ("responses", "completions", "outputs")
PROMPTS = ("prompt", "question", "problem")
SHOWN = 3
SHORT = 40  # characters of a value that are shown


@dataclass(frozen=True)
class Response:
    """group: the same for all responses to one prompt. who: which model, where the file names several.

    record: place in the data, None where the row has its own truth. verdict: whether it is right, by the file itself.
    """

    text: str
    data_source: str
    ground_truth: str
    extra: Mapping[str, Any]
    prompt: Any
    group: tuple[Any, ...]
    who: str = ""
    record: int | None = None
    verdict: bool | None = None
    length: int | None = None


def read_responses(
    path: str | Path,
    records: Sequence[Record],
    *,
    prompt_key: str = "prompt",
    answer_key: str = "ground_truth",
    data_source: str | None = None,
    step: int | None = None,
) -> list[Response]:
    """All responses of a JSON or JSONL file. records: the data, which may be empty when the rows bring their truths.

    data_source: for rows that name none. step: only that step's, of completions.jsonl; -1 = its last. Raises DataError.
    """
    (file,) = locate(path).files
    if format_of(file) != "json":
        raise DataError(f"{path}: responses are JSON or JSONL, a row for each prompt or response")
    places = {_key(record.prompt): place for place, record in reversed(list(enumerate(records)))}
    found: list[Response] = []
    lost: list[str] = []
    rows = [(f"line {row.line}", row.value, row.problem) for row in json_rows(file)]
    steps = [int(row["step"]) for _, row, _ in rows if isinstance(row, Mapping) and _is_number(row.get("step"))]
    wanted = max(steps) if step == -1 and steps else step
    for where, row, problem in rows:
        if problem or not isinstance(row, Mapping):
            raise DataError(
                f'{path}, {where}: {problem or "is no object"}; a row looks like {{"index": 0, "response": "..."}}'
            )
        if wanted is not None and row.get("step") != str(wanted):
            continue
        answers = list(_answers(row))
        if not answers:
            raise DataError(f"{path}, {where}: {_no_answer(row)}")
        base = _base(row, records, places, (prompt_key, *PROMPTS), answer_key, data_source)
        if base is None:
            lost.append(where)
            continue
        found += [base(text, who, verdict) for text, who, verdict in answers]
    if not found:
        what = f"none of its {plural(len(rows), 'row')}" if rows else "no row"
        hint = "give `index` (from 0) or the prompt as it is in the data, or a ground_truth with a data_source"
        raise DataError(f"{path}: {what} belongs to a record{_lost(lost)}; {hint} (--data_source NAME)")
    if lost:
        raise DataError(
            f"{path}: {len(lost):,} of {plural(len(rows), 'row')} belong to no record of the data{_lost(lost)}; give "
            "the data that they were made from, or leave them out"
        )
    return found


def _lost(lost: Sequence[str]) -> str:
    return f" (first: {', '.join(lost[:SHOWN])})" if lost else ""


def _answers(row: Mapping[str, Any]) -> Iterator[tuple[str, str, bool | None]]:
    """(text, model, verdict) of everything that the row answers."""
    for name in ONE:
        if _is_text(row.get(name)):
            yield str(row[name]), "", _verdict(row)
            return
    for name in SEVERAL:
        if isinstance(row.get(name), list) and all(map(_is_text, row[name])):
            yield from ((str(text), "", None) for text in row[name])
            return
    for name, value in row.items():
        if isinstance(value, Mapping) and _is_text(value.get("solution")):
            yield str(value["solution"]), str(name), _verdict(value)


def _no_answer(row: Mapping[str, Any]) -> str:
    """Why nothing in the row is an answer."""
    for name in (*ONE, *SEVERAL):
        if name in row:
            told, what = json_text(row[name]), "a list of texts" if name in SEVERAL else "text"
            return f"`{name}` is {told[:SHORT] + '...' * (len(told) > SHORT)}; it has to be {what}"
    return f"no `response`; it has {', '.join(map(str, row))[:200]}"


def _verdict(row: Mapping[str, Any]) -> bool | None:
    return row["is_correct"] if isinstance(row.get("is_correct"), bool) else None


def _base(
    row: Mapping[str, Any],
    records: Sequence[Record],
    places: Mapping[str, int],
    prompt_keys: Sequence[str],
    answer_key: str,
    data_source: str | None,
) -> Any:
    """text, model, verdict -> Response; None when the row belongs to no record and has no truth of its own."""
    prompt = next((row[key] for key in prompt_keys if row.get(key) is not None), None)
    place = _place(row, records, places, prompt)
    length = int(row["length"]) if _is_number(row.get("length")) else None
    if place is not None:
        record = records[place]
        own = {"data_source": record.data_source, "ground_truth": record.ground_truth, "extra": record.extra}
        own |= {"prompt": record.prompt, "record": place}
        group: tuple[Any, ...] = (place,)
    else:
        truth = next((row[key] for key in (answer_key, "ground_truth") if row.get(key) is not None), None)
        source = row.get("data_source") or data_source
        if truth is None or not source:
            return None
        text = str(truth) if isinstance(truth, str) else json_text(truth)
        own = {"data_source": str(source), "ground_truth": text, "extra": {}, "prompt": prompt}
        group = (row["uid"],) if row.get("uid") is not None else (_key(prompt), text)
    group = (str(row.get("step", "")), str(row.get("split", "")), *group)
    return lambda text, who, verdict: Response(
        text, **own, group=(who, *group), who=who, verdict=verdict, length=length
    )


def _place(row: Mapping[str, Any], records: Sequence[Record], places: Mapping[str, int], prompt: Any) -> int | None:
    index = row.get("index")
    if records and _is_number(index):
        place = int(str(index))
        return place if 0 <= place < len(records) else None
    return places.get(_key(prompt)) if prompt is not None else None


def _key(prompt: Any) -> str:
    """A prompt as text to find it by: the messages without the system's."""
    if isinstance(prompt, list):
        parts = [message for message in prompt if isinstance(message, Mapping) and message.get("role") != "system"]
        return "\n".join(str(message.get("content", "")).strip() for message in parts)
    return str(prompt).strip()


def _is_number(value: object) -> bool:
    return isinstance(value, Number) and value.isdigit()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, Number)
