"""What a measurement was made on: processor, memory, versions, commit, and how busy it was. Starts nothing heavy."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent


def processors() -> int:
    """Logical processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def machine(threads: int) -> dict[str, Any]:
    """The facts, as JSON values. threads: those that each side is given."""
    commit = subprocess.run(["git", "-C", REPO, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(["git", "-C", REPO, "status", "--short", "grpo"], capture_output=True, text=True)
    return {
        "cpu": _cpu_name(),
        "bf16_units": sorted({"avx512_bf16", "amx_bf16"} & _cpu_flags()),
        "processors": processors(),
        "threads": threads,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "transformers")},
        "commit": commit.stdout.strip() + ("+changes" if changed.stdout.strip() else ""),
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def facts_lines(facts: dict[str, Any]) -> list[str]:
    """The same for a reader, with a warning when something else is running."""
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    lines = [
        f"{facts['cpu']}, {facts['processors']} processors, {facts['threads']} threads for each side, "
        f"{facts['memory_gib']} GiB, {facts['system']}; ours: Python {facts['python']}, {versions}; "
        f"commit {facts['commit'] or 'unknown'}, {facts['when']}; load average {facts['load'][0]} at the start",
    ]
    if facts["load"][0] > 0.5:
        lines.append(f"WARNING: the machine is busy (load {facts['load'][0]}): trust CPU seconds more than seconds")
    return lines


def busy_seconds() -> float | None:
    """CPU seconds that all processes of the machine have used so far; None where it is not told."""
    if sys.platform != "linux":
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def _cpu_flags() -> set[str]:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.split())
    return set()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
