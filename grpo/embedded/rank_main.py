"""One process of several that train as one: `python -m grpo.embedded.rank_main RANK COUNT FOLDER`, the run on stdin.

Started by processes.py. It meets the others through a file in FOLDER, and leaves there what became of it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

from grpo.embedded.processes import ERRORS, outcome_file, run_from_json
from grpo.engine import Run

LONG = timedelta(days=30)  # waiting is no error: processes.py watches who lives, and one may score or save for long


def main() -> None:
    """Train, and end with code 0, or 1 where `outcome_file` says why."""
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    # Who ends a whole job sends this to all; the launcher passes it on once, to the first process alone.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        run = run_from_json(sys.stdin.readline())
        threading.Thread(target=_end_with_the_parent, args=(folder,), daemon=True).start()
        said: dict[str, Any] = {"result": _train(run, rank, count, folder)}
    except BaseException as error:  # noqa: BLE001 - told to processes.py, which raises it
        kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), type(error).__name__)
        said = {"kind": kind, "text": str(error) if kind in ERRORS else traceback.format_exc()}
    part = folder / f"{rank}.part"
    part.write_text(json.dumps(said), encoding="utf-8")
    os.replace(part, outcome_file(folder, rank))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if "result" in said else 1)  # libraries that still wait for a process that died would not end


def _train(run: Run, rank: int, count: int, folder: Path) -> dict[str, Any]:
    import torch.distributed as dist

    from grpo.embedded.loop import train
    from grpo.embedded.parallel import World
    from grpo.embedded.policy import choose_device

    backend = "cpu:gloo,cuda:nccl" if choose_device(run.config.trainer.device).type == "cuda" else "gloo"
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=count, timeout=LONG)
    result = train(run, World(rank, count))
    report = None if result.report is None else str(result.report)
    return {"summary": dict(result.summary), "checkpoint": str(result.checkpoint), "report": report}


def _end_with_the_parent(folder: Path) -> None:
    """The pipe closes when the process that watches us is gone; then this one and all that it started end."""
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
