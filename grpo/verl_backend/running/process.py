"""verl as a child process: its log followed, its hangs and deaths noticed, and nothing of it left behind.

Leaves out what the log says (phases.py, failures.py) and which command it is (command.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from grpo.engine import EngineError
from grpo.verl_backend.running import shared_memory, tree
from grpo.verl_backend.running.child_log import Tail
from grpo.verl_backend.running.watch import Watch

TICK = 0.25  # seconds between two looks at the log
GRACE = 30.0  # seconds for verl to end its own tree after SIGTERM (it takes 2 to 8)
AFTERWARDS = 5.0  # seconds for Ray's daemons to follow when verl has ended by itself
DEATH_GRACE = 10.0  # seconds after a worker's death in which verl may still end by itself, and its log become complete

Reason = Literal["finished", "failed", "interrupted", "hung", "worker died"]

# The kernel ends verl when this process is killed so hard that it cannot: PR_SET_PDEATHSIG is 1. What is started is
# then put in this process's place, so that there is one process fewer to look after.
_WITH_US = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit('the launcher is gone')\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


@dataclass(frozen=True)
class Command:
    """What to start. environment: added to this process's own; folder: where it runs."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path


@dataclass(frozen=True)
class Ending:
    """How it ended. code: as a shell has it (128 + signal); traceback: the first one of the log that matters.

    notes: lines for the user, about stacks that were written and processes that would not end.
    """

    code: int
    reason: Reason
    traceback: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def run_watched(
    command: Command,
    log: Path,
    *,
    on_line: Callable[[str], None],
    on_tick: Callable[[], None],
    hang_minutes: float,
    progressed: Callable[[], Any],
    grace: float = GRACE,
    death_grace: float = DEATH_GRACE,
) -> Ending:
    """Run `command` to its end, with all that it writes in `log`; nothing of it runs afterwards.

    on_line: gets each new line of the log, without colours; on_tick: is called a few times per second.
    progressed: what it returns changes when training goes on (a step, a phase). hang_minutes: without that and without
    anything new in the log, the stacks of its processes go to stacks.txt beside the log and it is ended; 0 waits on.
    Ctrl-C and SIGTERM end it, the second one at once. What a callback raises ends it too and is raised again.
    """
    before = shared_memory.segments()
    reason: Reason | None = None
    notes: list[str] = []
    with _signals() as came:
        watch = Watch(Tail(log, _begin(log)), on_line, progressed)
        child = _Child(command, log)
        try:
            reason = _follow(child, watch, on_tick, came, hang_seconds=hang_minutes * 60, death_grace=death_grace)
            if reason == "hung":
                py_spy = Path(command.words[0]).with_name("py-spy")
                notes.append(tree.dump_stacks(child.run_id, py_spy, log.with_name("stacks.txt")))
            _end(child, watch, on_tick, grace if reason == "interrupted" else min(grace, AFTERWARDS))
        except KeyboardInterrupt:
            reason = "interrupted"
        finally:
            came.deaf = True
            notes += child.kill()
            shared_memory.remove_left(before)
    watch.read(ended=True)
    return _ending(child.code, reason, watch, notes)


def _follow(
    child: _Child,
    watch: Watch,
    on_tick: Callable[[], None],
    came: _Signals,
    *,
    hang_seconds: float,
    death_grace: float,
) -> Reason | None:
    """Until there is a reason to end it; None when it ended by itself."""
    while not child.ended:
        watch.read()
        on_tick()
        if came.count:
            return "interrupted"
        if watch.dead_for(death_grace):
            return "worker died"
        if hang_seconds and watch.quiet() > hang_seconds:
            return "hung"
        child.wait(TICK)
    return None


def _end(child: _Child, watch: Watch, on_tick: Callable[[], None], grace: float) -> None:
    """Ask it to end, and wait until all its processes have, or `grace` seconds are over."""
    # To verl alone: it ends its daemons in 2 s; when they get the signal as well, that takes 5 s.
    child.terminate()
    deadline = time.monotonic() + grace
    soon: float | None = None
    while time.monotonic() < deadline:
        watch.read()
        on_tick()
        if not child.ended:
            child.wait(TICK)
            continue
        if not tree.processes_of(child.run_id):
            return
        soon = soon or time.monotonic() + AFTERWARDS
        deadline = min(deadline, soon)
        time.sleep(TICK)


def _ending(code: int, reason: Reason | None, watch: Watch, notes: list[str]) -> Ending:
    if reason is None:
        reason = "finished" if code == 0 else "worker died" if watch.died is not None else "failed"
    traceback = () if reason in ("finished", "interrupted") else watch.tracebacks.first()
    return Ending(code, reason, traceback, tuple(notes))


class _Child:
    """The process started, with a mark that its descendants inherit."""

    def __init__(self, command: Command, log: Path) -> None:
        self.run_id = uuid.uuid4().hex
        environment = _environment(command.environment) | {tree.MARK: self.run_id}
        program = shutil.which(command.words[0], path=environment.get("PATH"))
        if program is None:
            raise EngineError(f"{command.words[0]} cannot be run; `./train.sh setup --engine verl` makes it")
        words = [program, *command.words[1:]]
        if sys.platform == "linux":
            words = [sys.executable, "-I", "-S", "-c", _WITH_US, str(os.getpid()), *words]
        with open(log, "ab") as file:
            # A session of its own: a terminal's Ctrl-C reaches the launcher alone, which then ends all in order.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=command.folder,
                env=environment,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether verl's own process has ended; others may live."""
        return self._process.poll() is not None

    @property
    def code(self) -> int:
        """Its exit code, as a shell gives it."""
        code = self._process.returncode
        return -signal.SIGKILL if code is None else code if code >= 0 else 128 - code

    def wait(self, seconds: float) -> None:
        """Until it ends, at most so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def terminate(self) -> None:
        """Ask verl to end."""
        self._process.terminate()

    def kill(self) -> list[str]:
        """End all of the run's processes; returns a line about those that cannot be ended."""
        # First, and waited for here: psutil would wait for it too and take its exit code.
        self._process.kill()
        self.wait(tree.UNKILLABLE)
        left = tree.kill(self.run_id)
        if not left:
            return []
        pids = " ".join(str(process.pid) for process in left)
        return [f"these processes would not end (waiting for a device or a disk): {pids}"]


class _Signals:
    """count: how many came; the second raises KeyboardInterrupt, unless `deaf`."""

    def __init__(self) -> None:
        self.count = 0
        self.deaf = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self.count += 1
        if self.count == 1:
            with suppress(OSError):  # the terminal is gone
                print(
                    "\nstopping verl and all its processes (once more to end them at once)", file=sys.stderr, flush=True
                )
        elif not self.deaf:
            raise KeyboardInterrupt


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Ctrl-C, SIGTERM and a closed terminal only raise a flag in here, the first time."""
    came, before = _Signals(), {}
    if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                before[number] = signal.signal(number, came.note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    """Ours with what is added; the user's own PYTHONPATH stays behind ours."""
    merged = {**os.environ, "PYTHONUNBUFFERED": "1", **added}
    theirs = os.environ.get("PYTHONPATH")
    if theirs and "PYTHONPATH" in added:
        merged["PYTHONPATH"] = f"{added['PYTHONPATH']}:{theirs}"
    # Else a process that gives itself a title (vLLM's do) overwrites its environment, and with it the run's mark.
    return merged | {"SPT_NOENV": "1"}


def _begin(log: Path) -> int:
    """Head this start's part of the log; returns where its text begins."""
    with open(log, "ab") as file:
        before = b"\n" if file.tell() else b""
        file.write(before + f"===== {time.strftime('%Y-%m-%d %H:%M:%S')} verl started =====\n".encode())
        return file.tell()
