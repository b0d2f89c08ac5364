"""The reward of both sides of bench/compare.py: the share of vowels, which is cheap and differs within a group.

It also keeps the time: with BENCH_CLOCK=FILE, every response scored in training leaves a line with the process's wall
and CPU seconds so far and its peak memory in MiB.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None) -> float:
    """0 to 1."""
    clock = os.environ.get("BENCH_CLOCK")
    if (
        clock and ground_truth == "train" and solution_str != ground_truth
    ):  # no evaluation, no rehearsal on gold answers
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)
        with open(clock, "a", encoding="utf-8") as file:
            file.write(json.dumps([time.perf_counter(), time.process_time(), peak]) + "\n")
    return sum(letter in "aeiouAEIOU" for letter in solution_str) / max(1, len(solution_str))
