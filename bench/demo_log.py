"""The public log of the shipped demo: bench/results/demo_metrics.jsonl, from the folder of a run of `./train.sh`.

    ./train.sh && python -m bench.demo_log outputs

Plain names alone, and no timings: what the same seed gives again. tests/test_demo_log.py holds README.md to it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grpo.metrics.names import BY_NAME, TIMING_NAMES

LOG = Path(__file__).resolve().parent / "results" / "demo_metrics.jsonl"


def lines_of(folder: Path) -> list[dict[str, float | None]]:
    """The steps of a run, less timings and verl's names."""
    steps = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in step.items() if name in BY_NAME.keys() - TIMING_NAMES} for step in steps]


def main() -> None:
    """Write the log of the run in the folder that is named."""
    LOG.write_text("".join(json.dumps(line) + "\n" for line in lines_of(Path(sys.argv[1]))), encoding="utf-8")
    print(f"wrote {LOG}")


if __name__ == "__main__":
    main()
