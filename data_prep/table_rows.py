"""Reads the rows of CSV and parquet, one at a time. Knows no column names. CSV cells are text: "007" stays "007"."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import DataError, plural, quote
from data_prep.json_rows import Row

BATCH = 2048  # parquet rows decoded at a time
LONGEST_CELL = 2**31 - 1  # characters; csv's own limit, 131072, is shorter than some prompts


def csv_rows(path: Path, delimiter: str = ",") -> Iterator[Row]:
    """The rows of a CSV file whose first line names the columns. Raises DataError, UnicodeDecodeError."""
    csv.field_size_limit(LONGEST_CELL)
    # newline="": line ends inside quotes are the user's.
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        begun = 1
        try:
            header = next(reader, [])
            _check_header(path, header)
            begun = reader.line_num + 1
            for cells in reader:
                if len(cells) == len(header):
                    yield Row(begun, dict(zip(header, cells, strict=True)))
                elif cells:
                    yield Row(begun, None, f"{plural(len(cells), 'cell')} for {plural(len(header), 'column')}")
                begun = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{path}: not CSV in the row that begins on line {begun}: {error}; "
                'a cell with a comma, a quote or a line break stands in double quotes, and " inside it is ""'
            ) from None


def _check_header(path: Path, header: list[str]) -> None:
    """The first line must name every column once."""
    if not header:
        raise DataError(f"{path}: line 1 is blank; the first line names the columns")
    for name in header:
        if not name.strip():
            raise DataError(f"{path}: line 1: a column has no name; the first line names the columns")
        if header.count(name) > 1:
            raise DataError(f"{path}: line 1: two columns are called {quote(name)}; rename one")


def parquet_rows(path: Path) -> Iterator[Row]:
    """The rows of a parquet file. Raises DataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for name in names:
                if names.count(name) > 1:
                    raise DataError(f"{path}: two columns are called {quote(name)}; rename one")
            for batch in file.iter_batches(batch_size=BATCH):
                for value in batch.to_pylist():
                    yield Row(None, value)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: a damaged parquet file ({reason:.150}); copy or download it again") from error
