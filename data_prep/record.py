"""One row of a user's data -> one `Record`, or the list of what is wrong with it. Reads no file.

Values never change on the way: a JSON number arrives as a `Number`, which is the text it was written with.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple, TypeGuard

from data_prep.errors import quote

NO_ANSWER = "none"
VERL_COLUMNS = ("reward_model", "ability")  # verl's schema; convert.py writes them anew
BOOLEAN_SOURCE = "classification"  # the only source whose answer may be true or false

# {columns}: the names that the row has; records.py fills them in for the few rows that it shows.
_OTHER_PROMPT = "--prompt_key NAME names another column (there are: {columns})"
_OTHER_ANSWER = (
    "--answer_key NAME names another column (there are: {columns}), "
    "or --answer_key none when your own reward needs no answer"
)

# What LaTeX turns into when JSON holds it with one backslash: \f, \b and \t are escapes of JSON.
_LOST_BACKSLASH = re.compile(r"\x0c(?:rac\{|orall\b)|\x08(?:eta\b|ar\{|inom\{|egin\{|oxed\{)|\t(?:imes\b|heta\b|ext\{)")


class Number(str):
    """A JSON number as it is written: "3.10" stays "3.10"."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Record:
    """One prompt to train on. prompt: chat messages [{"role", "content"}]; ground_truth: text, "" when the reward needs
    none; extra: the other columns, which reach the reward in `extra_info`; number: which row of its file it was, from 1
    (0 = not from a file), for messages."""

    prompt: list[dict[str, str]]
    data_source: str
    ground_truth: str
    extra: dict[str, Any]
    number: int = field(default=0, compare=False)

    @property
    def index(self) -> int:
        """Its row in its file from 0, as `index` counts them in files of responses (0 when not from a file)."""
        return max(0, self.number - 1)


class Columns(NamedTuple):
    """Where a row holds what. answer: None = there is none; data_source: for rows that name none."""

    prompt: str
    answer: str | None
    source: str
    data_source: str | None = None
    system: str | None = None


class Problem(NamedTuple):
    """What is wrong with a row, and what the user can do about it (the same words for the same kind of problem)."""

    what: str
    advice: str = ""


def build(row: object, columns: Columns, number: int = 0) -> Record | list[Problem]:
    """The record that `row` holds, or all that is wrong with it. number: which row it is."""
    if not isinstance(row, Mapping):
        return [Problem(f"is {_kind(row)}, not an object", 'a record looks like {"prompt": "1 + 1 = ?", ...}')]
    problems: list[Problem] = []
    prompt = _prompt(row, columns, problems)
    data_source = _data_source(row, columns, problems)
    ground_truth = _ground_truth(row, columns, data_source, problems)
    extra = _extra(row, columns, problems)
    return problems or Record(prompt, data_source, ground_truth, extra, number)


def prompt_digest(record: Record, *, system: bool = True) -> bytes:
    """32 bytes that depend on nothing but the prompt's text (Python's own hash changes with every process).

    system: with its system message.
    """
    said = [[message["role"], message["content"]] for message in record.prompt]
    text = json.dumps([pair for pair in said if system or pair[0] != "system"])
    return hashlib.sha256(text.encode()).digest()


def _prompt(row: Mapping[str, Any], columns: Columns, problems: list[Problem]) -> list[dict[str, str]]:
    value = row.get(columns.prompt)
    system = [{"role": "system", "content": columns.system}] if columns.system is not None else []
    if _is_text(value):
        if not value.strip():
            problems.append(Problem(f'empty "{columns.prompt}"', "fill such records or leave them out"))
        problems += _text_problems(value, columns.prompt)
        return [*system, {"role": "user", "content": str(value)}]
    if value is None and columns.prompt in row:
        problems.append(Problem(f'"{columns.prompt}" is null', "fill such records or leave them out"))
        return []
    if value is None:
        problems.append(Problem(f'no "{columns.prompt}"', _OTHER_PROMPT))
        return []
    if not isinstance(value, list) or not value:
        chat = 'a prompt is a string or a list [{"role": "user", "content": "..."}]'
        problems.append(Problem(f'"{columns.prompt}" is {_kind(value)}', chat))
        return []
    messages = [_message(message, number, columns.prompt, problems) for number, message in enumerate(value, 1)]
    if system and messages[0]["role"] == "system":
        problems.append(Problem("the prompt has a system message of its own", "leave --system out"))
    return [*system, *messages]


def _message(message: object, number: int, key: str, problems: list[Problem]) -> dict[str, str]:
    """One chat message; what is wrong with it goes to `problems`."""
    where = f'message {number} of "{key}"'
    advice = 'each message is {"role": "user", "content": "..."}'
    if not isinstance(message, Mapping):
        problems.append(Problem(f"{where} is {_kind(message)}", advice))
        return {"role": "", "content": ""}
    for name in ("role", "content"):
        if not _is_text(message.get(name)) or not (message[name] or name == "content"):
            problems.append(Problem(f'{where} has no text "{name}"', advice))
    for name in message:
        if name not in ("role", "content") and message[name] is not None:
            problems.append(Problem(f"{where} has {quote(name)}, which a prompt cannot carry", advice))
    role, content = str(message.get("role")), str(message.get("content"))
    problems += _text_problems(role, where) + _text_problems(content, where)
    return {"role": role, "content": content}


def _data_source(row: Mapping[str, Any], columns: Columns, problems: list[Problem]) -> str:
    value = row.get(columns.source)
    if _is_text(value) and value:
        problems += _text_problems(value, columns.source)
        return str(value)
    if value is not None and value != "":
        advice = 'data_source is the name of a reward, a string such as "math_reasoning"'
        problems.append(Problem(f'"{columns.source}" is {_kind(value)}', advice))
        return ""
    if not columns.data_source:
        what = f'{"no" if value is None else "empty"} "{columns.source}"'
        problems.append(Problem(what, "--data_source NAME fills it, for example --data_source math_reasoning"))
    return columns.data_source or ""


def _ground_truth(row: Mapping[str, Any], columns: Columns, data_source: str, problems: list[Problem]) -> str:
    if columns.answer is None:
        return ""
    key, value = columns.answer, row.get(columns.answer)
    if value is None and isinstance(row.get("reward_model"), Mapping):  # verl's schema
        value = row["reward_model"].get("ground_truth")
    if value is None or value == "":
        problems.append(Problem(f'{"no" if value is None else "empty"} "{key}"', _OTHER_ANSWER))
        return ""
    if isinstance(value, bool) and data_source != BOOLEAN_SOURCE:
        advice = 'write the answer as text, for example "yes" or "true"'
        problems.append(Problem(f'"{key}" is {_kind(value)}', advice))
        return ""
    try:
        text = str(value) if isinstance(value, str) else json_text(value)
    except (TypeError, ValueError, RecursionError):
        problems.append(Problem(f'"{key}" is {_kind(value)}', "write the answer as text or as a finite number"))
        return ""
    problems += _text_problems(text, key)
    return text


def _extra(row: Mapping[str, Any], columns: Columns, problems: list[Problem]) -> dict[str, Any]:
    used = (columns.prompt, columns.answer, columns.source)
    others = {key: value for key, value in row.items() if key not in used}
    if not others:
        return others
    if "reward_model" in others and isinstance(others["reward_model"], Mapping):
        rest = {k: v for k, v in others["reward_model"].items() if k not in ("style", "ground_truth")}
        others = {key: value for key, value in others.items() if key not in VERL_COLUMNS}
        others |= {"reward_model": rest} if rest else {}
    if isinstance(others.get("extra_info"), Mapping):
        inside = _columns_of(others.pop("extra_info"))
        for key in inside.keys() & others.keys():
            problems.append(Problem(f"{quote(key)} stands beside extra_info and inside it", "keep one of the two"))
        others |= inside
    extra: dict[str, Any] = {}
    for key, value in others.items():
        try:
            extra[_plain(str(key))] = _plain(value)
        except (TypeError, ValueError, RecursionError) as error:
            problems.append(Problem(f"column {quote(key)}: {error}", "leave that column out or write it as text"))
    return extra


def _columns_of(extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """The extra columns inside `extra_info`: our own parquet keeps them as JSON text, other files as they are."""
    if extra_info.keys() == {"index", "split", "columns"} and isinstance(extra_info["columns"], str):
        try:
            columns = json.loads(extra_info["columns"])
        except ValueError:
            columns = None
        if isinstance(columns, dict):
            return columns
    return dict(extra_info)


def json_text(value: object) -> str:
    """`value` as JSON, its numbers as they were written. Raises TypeError and ValueError for what JSON cannot hold."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{json.dumps(str(k), ensure_ascii=False)}: {json_text(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(json_text, value)) + "]"
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> Any:
    """An extra column's value as Python has it: Number -> int or float, dates -> ISO text. Raises TypeError, ValueError
    with the reason."""
    if _is_text(value):
        if not _encodable(value):
            raise ValueError("holds half a surrogate pair, which is no character")
        return str(value)
    if isinstance(value, Number):
        return _as_number(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"holds {_kind(value)}, which JSON cannot")


def _as_number(text: Number) -> int | float:
    """The number that JSON text stands for. Raises ValueError for one that Python or a float cannot hold."""
    try:
        number = int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:  # Python reads integers of up to 4300 digits
        raise ValueError(f"a number of {len(text):,} digits is too long") from None
    if number in (math.inf, -math.inf):
        raise ValueError(f"{quote(text)} is too large for a number")
    return number


def _text_problems(text: str, where: str) -> list[Problem]:
    """What a string may not hold."""
    if text.isprintable():  # surrogates and control characters are not
        return []
    if not _encodable(text):
        return [Problem(f'"{where}" holds half a surrogate pair, which is no character', "repair the \\ud... escapes")]
    lost = _LOST_BACKSLASH.search(text)
    if lost:
        letter = {"\x0c": "f", "\x08": "b", "\t": "t"}[lost.group()[0]]
        written = f"\\{letter}{lost.group()[1:]}"
        return [Problem(f'"{where}" holds LaTeX that lost a backslash: {written}', "in JSON write \\\\ for each \\")]
    return []


def _is_text(value: Any) -> TypeGuard[str]:
    """A string, and not a number's text."""
    return isinstance(value, str) and not isinstance(value, Number)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    """What the user wrote, in JSON's words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (Number, int, float, Decimal)):
        return f"the number {quote(value)[1:-1]}" if isinstance(value, (Number, float)) else "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if isinstance(value, Mapping):
        return "an object"
    return "null" if value is None else f"a {type(value).__name__}"
