"""What the user named -> the files to read and how many rows of them; refuses what cannot be data by saying what it is.

`FILE`, `FILE#500` (a real file whose name holds a # wins) or a data set of the Hub, `ORG/NAME#500`. Reads only the
first bytes of a file.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import NamedTuple

from data_prep.encoding import encoding_error, wide_encoding
from data_prep.errors import DataError

SUFFIXES = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
ACCEPTED = "JSON, JSONL, CSV or parquet"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")
_PICKLE = "is a pickle, which runs code when it is opened, so it is never read; save the records as JSON or parquet"
_NOT_DATA = (  # (first bytes, what to tell the user)
    (re.compile(rb"\x80[\x02-\x05]"), _PICKLE),
    (re.compile(rb"\x1f\x8b"), "is compressed with gzip; unpack it first: gunzip -k FILE"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "is compressed with zstd; unpack it first: zstd -d FILE"),
    (re.compile(rb"\xfd7zXZ|BZh"), "is compressed; unpack it first"),
    (re.compile(rb"PK\x03\x04"), "is a zip archive or a workbook; unpack it, or save the sheet as CSV (UTF-8)"),
    (re.compile(rb"ARROW1|\xff\xff\xff\xff"), "is an Arrow file; save it as parquet"),
    (re.compile(rb"version https://git-lfs"), "is a Git LFS pointer, not the data itself; run git lfs pull"),
    (re.compile(rb"\s*<(!doctype|html)", re.IGNORECASE), "is a web page, not data; download the raw file"),
)


class Source(NamedTuple):
    """files: what to read, in this order; limit: first rows to take, None = all; name: as the user wrote it."""

    name: str
    files: list[Path]
    limit: int | None


def locate(spec: str | Path, limit: int | None = None) -> Source:
    """The files that `spec` names. Raises DataError: no such file, not data, a bad #N, an unreachable Hub."""
    name, rows = _split_limit(str(spec))
    limits = [number for number in (rows, limit) if number is not None]
    limit = min(limits) if limits else None
    path = Path(name)
    if is_hub_name(name):
        from data_prep.hub import download

        return Source(name, download(name, limit), limit)
    _check_file(path)
    return Source(name, [path], limit)


def is_hub_name(name: str) -> bool:
    """Whether `name` can only be a data set of the Hub: ORG/NAME, no such path here, not called like a data file."""
    if not _HUB_NAME.fullmatch(name) or Path(name).suffix.lower() in SUFFIXES:
        return False
    return not os.path.lexists(name)


def format_of(path: Path) -> str:
    """json, csv, tsv or parquet: by the first bytes, else by the name. Raises DataError for anything else."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.startswith(b"PAR1"):
        return "parquet"
    for pattern, what in _NOT_DATA:
        if pattern.match(head):
            raise DataError(f"{path}: {what.replace('FILE', str(path))}")
    suffix = path.suffix.lower()
    if suffix in (".pkl", ".pickle", ".pt", ".pth"):
        raise DataError(f"{path}: {_PICKLE}")
    text = head.removeprefix(b"\xef\xbb\xbf").strip()
    if not text and len(head) < 4096:
        raise DataError(f"{path}: is empty; it should hold records with prompt, ground_truth and data_source")
    if suffix == ".parquet":
        raise DataError(f"{path}: is named .parquet but is no parquet file; rename it, or copy or download it again")
    if wide_encoding(head[:4]):
        raise encoding_error(path)
    if suffix not in SUFFIXES and not text.startswith((b"[", b"{")):
        raise DataError(f"{path}: cannot tell what it is; name it .json, .jsonl, .csv or .parquet")
    return SUFFIXES.get(suffix, "json")


def _split_limit(spec: str) -> tuple[str, int | None]:
    """`FILE#500` -> FILE, 500."""
    name, mark, rows = spec.rpartition("#")
    if not mark or os.path.lexists(spec):
        return spec, None
    if rows.isascii() and rows.isdigit() and int(rows[:18]) > 0:
        return name, int(rows[:18])
    if os.path.lexists(name) or is_hub_name(name):
        raise DataError(f"{spec}: after # stands how many rows to take, 1 or more, for example {name}#500")
    return spec, None


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            inside = sorted(file.name for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            hint = f"name one file, for example {path / inside[0]}" if inside else f"it holds no {ACCEPTED} file"
            raise DataError(f"{path}: is a folder; {hint}")
        if not path.exists():
            raise DataError(f"{path}: no such file{_similar(path)}")
        if not path.is_file():
            raise DataError(f"{path}: is not a regular file; write its content to a .jsonl file first")
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:  # no permission, a name too long, a NUL in the name
        raise DataError(f"{path!s:.200}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error


def _similar(path: Path) -> str:
    """A hint after "no such file": the nearest name beside it, or the folder that is missing."""
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder {folder}"
    names = [file.name for file in folder.iterdir() if file.suffix.lower() in SUFFIXES]
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    if near:
        return f"; did you mean {folder / near[0]}?"
    return f" (looked in {folder.resolve()}); what can be read: {ACCEPTED}"
