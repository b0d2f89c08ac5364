"""All processes of one run: Ray's daemons and vLLM's workers leave their parent's group, session and tree.

Each process inherits an environment variable with the run's name, which is how it is found again; its children count
too. Leaves out when to end them (process.py). A Ray cluster that was there before has no such mark and is not touched.
"""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

MARK = "GRPO_RUN_ID"
UNKILLABLE = 10.0  # seconds after which a process that SIGKILL does not end is reported
DUMP_SECONDS = 20.0
MOST_DUMPS = 64
# Ray's own helpers, whose stacks tell nothing.
_HELPERS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE", "/dashboard/", "log_monitor.py", "monitor.py")


def processes_of(run_id: str) -> list[psutil.Process]:
    """The living processes that carry this mark, and their descendants; never this process."""
    parents: dict[int, int] = {}
    alive: dict[int, psutil.Process] = {}
    marked: set[int] = set()
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            parents[process.pid], alive[process.pid] = process.ppid(), process
            if process.environ().get(MARK) == run_id:
                marked.add(process.pid)
        except psutil.Error:  # gone in the meantime, or somebody else's
            continue
    while more := {pid for pid, parent in parents.items() if parent in marked and pid not in marked}:
        marked |= more
    return [alive[pid] for pid in sorted(marked - {os.getpid()}) if pid in alive]


def kill(run_id: str) -> list[psutil.Process]:
    """End all of them at once (SIGKILL), also those born meanwhile; those that live on are returned."""
    deadline = time.monotonic() + UNKILLABLE
    while left := processes_of(run_id):
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=0.5)
        if time.monotonic() > deadline:
            return processes_of(run_id)
    return []


def dump_stacks(run_id: str, py_spy: Path, target: Path) -> str:
    """Write the Python stacks of the run's workers to `target`; the returned line says what is there, or why not."""
    workers = [process for process in processes_of(run_id) if _is_worker(process)]
    if not workers:
        return "no stacks: no Python process of this run is on this machine"
    if not py_spy.is_file():
        return f"no stacks: {py_spy} is missing (pip install py-spy there)"
    with ThreadPoolExecutor(4) as pool:
        dumps = list(pool.map(lambda process: _dump(process, py_spy), workers[:MOST_DUMPS]))
    text = "\n\n".join(f"===== {title}\n{stacks}" for title, stacks, _ in dumps)
    target.write_text(text + "\n", encoding="utf-8")
    failed = [stacks for _, stacks, good in dumps if not good]
    said = f"stacks of {len(dumps) - len(failed)} of {len(workers)} processes: {target}"
    return f"{said} ({failed[0]})" if failed else said


def _is_worker(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
        return "python" in Path(process.exe()).name and not any(name in line for name in _HELPERS)
    except psutil.Error:
        return False


def _dump(process: psutil.Process, py_spy: Path) -> tuple[str, str, bool]:
    """(pid and name, stacks or the reason, whether it worked)."""
    try:
        title = f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        title = str(process.pid)
    words = [str(py_spy), "dump", "--pid", str(process.pid)]
    # A process that is stopped, or that waits in the kernel, cannot be held still: then it is read while it may run.
    for more in ([], ["--nonblocking"]):
        try:
            done = subprocess.run(
                [*words, *more], capture_output=True, text=True, errors="replace", timeout=DUMP_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return title, f"py-spy gave no answer in {DUMP_SECONDS:.0f} s", False
        if done.returncode == 0:
            return title, done.stdout, True
    return title, " ".join(done.stderr.split("Stack backtrace")[0].split()), False
