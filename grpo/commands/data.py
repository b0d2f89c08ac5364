"""`./train.sh data IN [OUT.parquet]`: check a file of prompts, say what it holds, and write it in verl's schema.

Takes the data flags of configs/flags.yaml, with their environment names and defaults. Does not part train from val: a
training run does, by launcher.data.val_share.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, NoReturn

import yaml

from data_prep.convert import convert
from data_prep.errors import DataError, plural
from data_prep.records import iter_records
from data_prep.summary import Summary
from grpo.flags import REPO, load_flags, nearest

FLAGS = ("prompt_key", "answer_key", "data_source", "system")


def main(argv: list[str]) -> int:
    """Run the command. Raises DataError for anything wrong with the arguments or the data."""
    given = _arguments(argv)
    settings = {name: getattr(given, name) for name in FLAGS}
    settings["source_key"] = _defaults()["source_key"]
    began = time.perf_counter()
    summary = Summary()
    records = summary.watch(iter_records(given.input, **settings))
    if given.output is None:
        for _ in records:
            pass
        print(f"{given.input}: {plural(summary.rows, 'record')}, all well-formed")
    else:
        _check_output(given.input, given.output)
        convert(records, given.output)
        seconds = time.perf_counter() - began
        print(f"{given.input}: {plural(summary.rows, 'record')} -> {given.output} in {seconds:.1f} s")
    print("\n".join(f"  {line}" for line in summary.lines()))
    if given.output is not None:
        print(f"train on it: ./train.sh --data {given.output}")
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./train.sh data",
        description="Check a file of prompts and write it as parquet in verl's schema.",
        allow_abbrev=False,
    )
    parser.error = _refuse
    parser.add_argument("input", metavar="IN", help="JSON, JSONL, CSV or parquet; FILE#500; a Hub data set NAME#500")
    parser.add_argument("output", metavar="OUT.parquet", nargs="?", type=Path, help="without it: only check and count")
    defaults = _defaults()
    for flag in load_flags():
        if flag.name in FLAGS:
            assert flag.key
            assert flag.env
            default = os.environ.get(flag.env, "").strip() or defaults[flag.key.rpartition(".")[2]]
            text = f"{flag.help['en']} [{default}, env {flag.env}]".replace("%", "%%")
            parser.add_argument(f"--{flag.name}", default=default, metavar=flag.metavar, help=text)
    given, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        near = nearest(unknown[0].partition("=")[0].lstrip("-").replace("-", "_"), FLAGS)
        hint = f"did you mean --{near}?" if near and unknown[0].startswith("-") else "./train.sh data --help"
        raise DataError(f"./train.sh data: {unknown[0]} is not expected here; {hint}")
    return given


def _defaults() -> dict[str, Any]:
    """The `launcher.data` part of configs/grpo.yaml."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((REPO / "configs" / "grpo.yaml").read_text(encoding="utf-8"), Loader=loader)["launcher"]["data"]


def _check_output(source: str, output: Path) -> None:
    if output.suffix.lower() != ".parquet":
        raise DataError(f"{output}: the result is a parquet file; name it OUT.parquet")
    if output.exists() and Path(source.partition("#")[0]).exists() and output.samefile(source.partition("#")[0]):
        raise DataError(f"{output}: is the input itself; name another file")


def _refuse(message: str) -> NoReturn:
    raise DataError(f"./train.sh data: {message}; see ./train.sh data --help")
