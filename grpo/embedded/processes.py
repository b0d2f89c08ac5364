"""Starts the processes of a run on this machine, watches them, and ends them all when one ends badly. No torch.

Each one runs rank_main.py in a session of its own, with the reading end of a pipe: when this process dies, however it
does, the pipe closes and they end themselves. Ctrl-C is passed on to the first process alone, which saves and says so,
as one process does; the others are then ended. What they train together: parallel.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from data_prep.errors import DataError
from grpo.engine import EngineError, Interrupted, Result, Run
from reward_funcs.errors import RewardError

REPO = Path(__file__).resolve().parents[2]
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ERRORS = {kind.__name__: kind for kind in (EngineError, DataError, RewardError, Interrupted, KeyboardInterrupt)}
_TICK = 0.05  # seconds between two looks at the processes
_SOON = 0.5  # seconds until those whose partner died have noticed; the first cause is told
_AT_ONCE = 5.0  # seconds after a second Ctrl-C
_LAST_LINES = 20
_SHOW_CURSOR = "\x1b[?25h"  # which the display of a killed process has hidden


def train_in_processes(run: Run, count: int) -> Result:
    """Train in `count` processes; what the first one says of it. Raises what it raised, or EngineError."""
    if run.records is not None or run.reward is not None:
        what = "prompts made during training" if run.reward is None else "a reward given as a function"
        raise EngineError(f"{what} cannot be given to {count} processes: name a file, or leave --n_gpus at 1")
    with tempfile.TemporaryDirectory(prefix="grpo-processes-") as name:
        folder = Path(name)
        children: list[subprocess.Popen[bytes]] = []
        try:
            with _Stop(children) as stop:
                gpus = [] if run.config.trainer.device == "cpu" else visible_gpus()
                for rank in range(count):
                    own = {"CUDA_VISIBLE_DEVICES": gpus[rank]} if gpus else {}
                    children.append(_start(run, rank, count, folder, own))
                return _watch(children, folder, stop)
        finally:
            _end(children)


def run_as_json(run: Run) -> str:
    """A run whose data is in files, on one line."""
    given = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    assert given.pop("records") is None
    assert given.pop("reward") is None
    given["config"] = OmegaConf.to_container(run.config)
    return json.dumps(given, default=lambda value: str(value) if isinstance(value, Path) else dict(value))


def run_from_json(text: str) -> Run:
    """The run of run_as_json."""
    given: dict[str, Any] = json.loads(text)
    config = OmegaConf.create(given.pop("config"))
    assert isinstance(config, DictConfig)
    OmegaConf.set_readonly(config, True)
    paths = {name: Path(given.pop(name)) for name in ("output_dir", "train", "val")}
    return Run(config=config, **paths, **given)


def outcome_file(folder: Path, rank: int) -> Path:
    """Where a process leaves what became of it: {"result": ...} or {"kind": ..., "text": ...}."""
    return folder / f"outcome-{rank}.json"


def places(device: str) -> tuple[int, str]:
    """How many processes this machine has room for on trainer.device, and what is counted. Imports torch."""
    if device in ("auto", "cuda") and (gpus := visible_gpus()):
        return len(gpus), "CUDA devices that this run may use"
    if device == "mps" or (device == "auto" and sys.platform == "darwin" and platform.machine() == "arm64"):
        return 1, "MPS device"
    return processors(), "processors and no CUDA device" if device == "auto" else "processors"


def visible_gpus() -> list[str]:
    """The CUDA devices that a run may use, as CUDA_VISIBLE_DEVICES names them. Imports torch."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def processors() -> int:
    """Logical processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _start(run: Run, rank: int, count: int, folder: Path, own: dict[str, str]) -> subprocess.Popen[bytes]:
    """own: what only this process has in its environment."""
    env = os.environ | own
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPO), env.get("PYTHONPATH")]))
    env.setdefault("OMP_NUM_THREADS", str(max(1, processors() // count)))
    for library in ("GLOO", "NCCL"):
        env.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
    with contextlib.ExitStack() as stack:
        quiet = stack.enter_context(open(folder / f"process-{rank}.log", "wb")) if rank else None
        child = subprocess.Popen(
            [sys.executable, "-m", "grpo.embedded.rank_main", str(rank), str(count), str(folder)],
            stdin=subprocess.PIPE,
            stdout=quiet,
            stderr=quiet,
            env=env,
            start_new_session=True,
        )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is dead already, which _watch tells
        child.stdin.write(run_as_json(run).encode() + b"\n")
        child.stdin.flush()
    return child


def _watch(children: list[subprocess.Popen[bytes]], folder: Path, stop: _Stop) -> Result:
    """Wait for the end of the first process, or of any that ends badly."""
    while True:
        codes = [child.poll() for child in children]
        if any(codes[:1] if stop.asked else codes):  # the first one may be saving still
            time.sleep(0 if stop.asked else _SOON)
            raise _cause([child.poll() for child in children], folder, stop)
        if codes[0] == 0:
            said = json.loads(outcome_file(folder, 0).read_text(encoding="utf-8"))["result"]
            report = said["report"]
            return Result(said["summary"], Path(said["checkpoint"]), None if report is None else Path(report))
        if stop.overdue():
            raise KeyboardInterrupt
        time.sleep(_TICK)


def _cause(codes: list[int | None], folder: Path, stop: _Stop) -> BaseException:
    """What to raise: a kill before an error of ours before one that came of another process's end."""
    count = len(codes)
    told = {}
    for rank in range(count):
        with contextlib.suppress(FileNotFoundError):
            told[rank] = json.loads(outcome_file(folder, rank).read_text(encoding="utf-8"))
    failed = {rank: said for rank, said in told.items() if "kind" in said}
    if stop.asked:
        said = failed.get(0, {})
        return ERRORS.get(said.get("kind", ""), KeyboardInterrupt)(*filter(None, [said.get("text")]))
    go_on = "so all were ended; the same command goes on from the last checkpoint"
    for rank, code in enumerate(codes):
        if code and rank not in told:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            memory = " (out of memory?)" if code == -signal.SIGKILL else ""
            return EngineError(f"process {rank} of {count} {how}{memory}, {go_on}{_last_lines(folder, rank)}")
    for said in failed.values():
        if said["kind"] in ERRORS:
            return ERRORS[said["kind"]](said["text"])
    rank, said = min(failed.items(), key=lambda item: outcome_file(folder, item[0]).stat().st_mtime_ns)
    print(said["text"], file=sys.stderr, flush=True)
    return EngineError(f"process {rank} of {count} ended with the {said['kind']} above, {go_on}")


def _last_lines(folder: Path, rank: int) -> str:
    """What a process without a display said last."""
    log = folder / f"process-{rank}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return "".join(f"\n  {line}" for line in lines[-_LAST_LINES:])


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    """No process is left, nor what it started in its session."""
    for child in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    for child in children:
        child.wait()
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
    if children and children[0].returncode < 0 and sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR)


class _Stop:
    """While entered, SIGINT and SIGTERM go to the first process, as SIGINT. asked: how often they came."""

    def __init__(self, children: list[subprocess.Popen[bytes]]) -> None:
        self.asked = 0
        self._children = children
        self._second = float("inf")
        self._before: dict[int, Any] = {}

    def overdue(self) -> bool:
        """Whether the first process has not ended although it was to end at once."""
        return time.monotonic() > self._second + _AT_ONCE

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        if self.asked == 2:
            self._second = time.monotonic()
        if not self._children:
            raise KeyboardInterrupt
        with contextlib.suppress(ProcessLookupError):
            self._children[0].send_signal(signal.SIGINT)
