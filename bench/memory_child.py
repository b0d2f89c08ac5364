"""One run of the embedded engine whose phases are measured: peak resident memory and seconds of each; for memory.py.

    python bench/memory_child.py RESULT.json wall|cpu WORDS OF A TRAINING COMMAND

The peak is the kernel's own (VmHWM), set back at the start of each phase, once the allocator has given back what it
kept. Linux only.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
phases: dict[str, list[dict[str, float]]] = {}
clocks = {"wall": time.perf_counter, "cpu": time.process_time}
clock = clocks["wall"]
libc = ctypes.CDLL(None)


def resident(name: str) -> int:
    """Bytes of this process: VmHWM, the peak since it was set back, or VmRSS, now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}")


def measured(phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, with what it took noted under `phase`."""

    @functools.wraps(work)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before, began = resident("VmRSS"), clock()
        try:
            return work(*args, **kwargs)
        finally:
            note = {"before": before, "peak": resident("VmHWM"), "seconds": clock() - began}
            phases.setdefault(phase, []).append(note)

    return watched


def main(result: Path, words: list[str]) -> int:
    """Train as `words` say; writes the phases to `result`."""
    from grpo.embedded import loop, opening
    from grpo.embedded.session import Session

    phases["imports"] = [{"before": 0, "peak": resident("VmHWM"), "seconds": 0.0}]
    opening._open_policy = measured("load", opening._open_policy)
    Session.sample = measured("rollout", Session.sample)
    Session.reference_log_probs = measured("log-prob", Session.reference_log_probs)
    loop.update_policy = measured("update", loop.update_policy)
    Session.save = measured("save", Session.save)
    from grpo.__main__ import main as run

    code = run(words)
    result.write_text(json.dumps(phases), encoding="utf-8")
    return code


if __name__ == "__main__":
    clock = clocks[sys.argv[2]]
    sys.exit(main(Path(sys.argv[1]), sys.argv[3:]))
