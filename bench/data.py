"""How long JSON -> parquet takes and how much memory: ours beside `datasets` and pandas where they are installed.

    python bench/data.py [--rows 100000] [--json]

Each run is a process of its own: seconds are from its start to its end, imports included, and of all cores; memory is
its peak resident set. Two shapes, each an array on one line: `arithmetic`, a short Chinese prompt with two extra
columns, 13 MB; `long`, GSM8K-sized texts, 60 MB. The peers convert less: no record is checked, pandas alters numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = ("Natalia", "sold", "half", "as", "many", "clips", "to", "each", "friend’s", "box", "of", "twelve", "for", "$3")
REPO = Path(__file__).resolve().parent.parent
TARGET = "under 5 s and 300 MB for 100,000 records"
RUNS = {
    "ours": "from grpo.commands.data import main; main([source, out])",
    "pandas": "import pandas; pandas.read_json(source).to_parquet(out)",
    "datasets": (
        "import datasets; datasets.load_dataset('json', data_files=source, split='train', cache_dir=out + '.cache')"
        ".to_parquet(out)"
    ),
}


def main() -> None:
    """Make the files, run everybody on them, print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for shape, row in {"arithmetic": _arithmetic, "long": _long}.items():
            source = Path(folder) / f"{shape}.json"
            _write(source, row, given.rows)
            results[shape] = {who: _measure(code, source) for who, code in RUNS.items() if _installed(who)}
    if given.json:
        print(json.dumps(results))
        return
    print(f"{given.rows:,} records, JSON -> parquet ({TARGET})")
    for shape, runs in results.items():
        for who, run in runs.items():
            took = f"{run['seconds']:6.2f} s ({run['cpu_seconds']:.2f} s of CPU)"
            print(f"  {shape:<11} {who:<9} {took} {run['peak_mb']:6.0f} MB")


def _arithmetic(number: int, make: random.Random) -> dict[str, Any]:
    a, b = make.randrange(10, 100), make.randrange(10, 100)
    row = {"prompt": f"请解答：{a} + {b} = ?", "ground_truth": str(a + b), "data_source": "math_reasoning"}
    return {**row, "level": number % 5, "topic": "sums"}


def _long(number: int, make: random.Random) -> dict[str, Any]:
    prompt = f"{number}: " + " ".join(make.choices(WORDS, k=45))
    answer = " ".join(make.choices(WORDS, k=50)) + f"\n#### {number}"
    return {"prompt": prompt, "ground_truth": answer, "data_source": "gsm8k"}


def _write(path: Path, row: Callable[[int, random.Random], dict[str, Any]], rows: int) -> None:
    """A JSON array on one line. Written row by row: a process inherits the peak memory of the one that starts it."""
    make = random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(rows):
            file.write(("[" if number == 0 else ", ") + json.dumps(row(number, make), ensure_ascii=False))
        file.write("]")


def _installed(who: str) -> bool:
    return who == "ours" or importlib.util.find_spec(who) is not None


def _measure(code: str, source: Path) -> dict[str, Any]:
    """Seconds and peak memory of one process that runs `code`."""
    out = source.with_suffix(".parquet")
    program = f"import sys; source, out = sys.argv[1:]; {code}"
    environment = {**os.environ, "PYTHONPATH": str(REPO), "HF_DATASETS_OFFLINE": "1"}
    environment["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(source), str(out)], env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"{code}: exit status {status}")
    # Linux counts kilobytes, macOS bytes.
    peak = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1) / 1024
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "peak_mb": round(peak)}


if __name__ == "__main__":
    main()
