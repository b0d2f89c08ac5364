"""TRL's own environment for the benchmarks, made from requirements/bench-trl.txt in a cache folder when it is missing.

It lies in $GRPO_BENCH_CACHE, or ~/.cache/grpo-bench. A changed list makes a new one. Left out: removing old ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PINS = REPO / "requirements" / "bench-trl.txt"


def python() -> Path:
    """The environment's Python; some minutes the first time. Raises SystemExit when it cannot be made."""
    cache = os.environ.get("GRPO_BENCH_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "grpo-bench"
    key = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = Path(cache).expanduser() / f"trl-{key}"
    done, found = folder / ".done", folder / "bin" / "python"
    if done.exists():
        return found
    print(f"installing {PINS.relative_to(REPO)} into {folder} (once)", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    pip = [str(found), "-m", "pip", "install", "--quiet", "--no-input", *_torch_index(), "-r", str(PINS)]
    for command in ([base, "-m", "venv", str(folder)], pip):
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ran.returncode:
            raise SystemExit(f"{ran.stdout[-4000:]}\nTRL's environment could not be made: {' '.join(command)}")
    done.touch()
    return found


def _torch_index() -> list[str]:
    """The options with which requirements/install.py keeps CUDA packages away from a machine without a GPU."""
    sys.path.append(str(REPO / "requirements"))
    import install

    return install._options("embedded")
