"""Records -> parquet in verl's schema, and back: what both engines read. Checks no user input (records.py does).

    prompt        list<struct<role, content>>
    data_source   string
    ability       string
    reward_model  struct<style, ground_truth>
    extra_info    struct<index: int64, split: string, columns: string>

`columns` is a JSON object with the record's other columns: one text field, so that rows with different keys or types
never conflict. Whoever calls a reward decodes it: extra_info = {"index": ..., "split": ..., **json.loads(columns)}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from data_prep.errors import DataError
from data_prep.record import Record, prompt_digest

if TYPE_CHECKING:  # pyarrow takes 0.2 s to import: only where a file is read or written
    import pyarrow as pa

BATCH = 2048  # rows held in memory while writing
_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
ABILITIES = {
    "math_reasoning": "math",
    "gsm8k": "math",
    "math": "math",
    "code": "code",
    "code_generation": "code",
    "qa": "qa",
    "trivia": "qa",
    "classification": "classification",
}


def schema() -> pa.Schema:
    """The Arrow schema of every file that `convert` writes."""
    import pyarrow as pa

    text = pa.string()
    message = pa.struct([("role", text), ("content", text)])
    return pa.schema(
        [
            ("prompt", pa.list_(message)),
            ("data_source", text),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", text), ("columns", text)])),
        ]
    )


def convert(records: Iterable[Record], out: Path, *, ability: str | None = None, split: str = "train") -> int:
    """Write `records` to `out` and return how many; `out` is whole or, after any error, as it was before.

    ability: verl's column of that name; None = by data_source. split: goes to extra_info. Raises DataError.
    """
    if out.is_dir():
        raise DataError(f"{out}: is a folder; name the .parquet file to write")
    unfinished = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(unfinished, "wb") as file:
                count = _write(records, file, ability, split)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, out)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _fsync_folder(out.parent)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}; nothing was changed") from error
    return count


def load_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that `convert` wrote: prompt (chat list), data_source, ground_truth, extra_info (a dict that
    always has "index" and "split"; the record's other columns beside them, and in place of them where one has that
    name). Raises DataError for a file that `convert` did not write."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema()):
                raise DataError(f"{path}: not in the schema that ./train.sh data writes; convert it with that command")
            return [_row(row) for batch in file.iter_batches(BATCH) for row in batch.to_pylist()]
    except (pa.ArrowException, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path}: cannot be read ({reason:.150}); convert the data again") from error


def split(records: Sequence[Record], share: float) -> tuple[list[Record], list[Record]]:
    """(train, val): `share` of the distinct prompts, chosen by a hash of the prompt's text, in the records' order.

    The same prompt falls on the same side in every run, order and larger file, and whatever system prompt stands before
    it, so that runs with different ones are compared on the same prompts; equal prompts fall on one side. With two
    or more distinct prompts neither side is empty. With one there is nothing to part: train is all, val its first
    record.
    """
    places = [_place(record) for record in records]
    distinct = sorted(set(places))
    if len(distinct) < 2:
        return list(records), list(records[:1])
    # At least the lowest prompt is kept for evaluation and at least the highest is trained on.
    in_val = {place for place in distinct[:-1] if place < share} | {distinct[0]}
    train = [record for record, place in zip(records, places, strict=True) if place not in in_val]
    val = [record for record, place in zip(records, places, strict=True) if place in in_val]
    return train, val


def _place(record: Record) -> float:
    """A number in [0, 1), evenly spread, that stands for the prompt's text without its system message."""
    return int.from_bytes(prompt_digest(record, system=False)[:8], "big") / 2**64


def _write(records: Iterable[Record], file: BinaryIO, ability: str | None, split: str) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = schema()
    count = 0
    with pq.ParquetWriter(file, columns) as writer:
        for batch in _batches(records):
            rows = [_verl_row(record, index, ability, split) for index, record in enumerate(batch, count)]
            writer.write_table(pa.Table.from_pylist(rows, schema=columns))
            count += len(batch)
    if not count:
        raise DataError("there are no records to write")
    return count


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    rest = iter(records)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _verl_row(record: Record, index: int, ability: str | None, split: str) -> dict[str, Any]:
    return {
        "prompt": record.prompt,
        "data_source": record.data_source,
        "ability": ability or ABILITIES.get(record.data_source, record.data_source),
        "reward_model": {"style": "rule", "ground_truth": record.ground_truth},
        "extra_info": {"index": index, "split": split, "columns": _ENCODE(record.extra)},
    }


def _row(stored: dict[str, Any]) -> dict[str, Any]:
    info = stored["extra_info"]
    return {
        "prompt": stored["prompt"],
        "data_source": stored["data_source"],
        "ground_truth": stored["reward_model"]["ground_truth"],
        "extra_info": {"index": info["index"], "split": info["split"], **json.loads(info["columns"])},
    }


def _fsync_folder(folder: Path) -> None:
    """Make the rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
