"""verl as a child process: real processes that fork daemons, ignore signals, hang and die as Ray's and vLLM's do."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from grpo.engine import EngineError
from grpo.verl_backend.installation.places import find_environment
from grpo.verl_backend.running import shared_memory, tree
from grpo.verl_backend.running.process import Command, Ending, run_watched

SHM = Path("/dev/shm")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="reads /proc")]

# A daemon as Ray starts them: its own session, no parent, deaf to SIGTERM; it says its pid in a file.
DAEMON = """
import os, signal, sys, time
def daemon(name, ignore=True):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if ignore:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(name + ".part", "w").write(str(os.getpid()))
            os.rename(name + ".part", name)
            time.sleep(60)
        os._exit(0)
    while not os.path.exists(name):
        time.sleep(0.01)
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ending]:
    """`run(program, ...)`: run_watched on a Python program, with lines collected in run.lines."""
    lines: list[str] = []

    def start(program: str, **changes) -> Ending:
        settings = {
            "on_line": lines.append,
            "on_tick": lambda: None,
            "hang_minutes": 0,
            "progressed": lambda: None,
            "grace": 0.4,
            **changes,
        }
        command = Command((sys.executable, "-c", DAEMON + program), {}, tmp_path)
        return run_watched(command, tmp_path / "verl.log", **settings)

    start.lines = lines  # type: ignore[attr-defined]
    return start


def alive(pid_file: Path) -> bool:
    pid = int(pid_file.read_text())
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def when(file: Path, then: Callable[[], None]) -> Callable[[], None]:
    """An on_tick that does something once, as soon as a file is there."""
    done: list[bool] = []

    def tick() -> None:
        if file.exists() and not done:
            done.append(True)
            then()

    return tick


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_run_that_ends_well_leaves_its_whole_output_in_the_log(run, tmp_path: Path):
    ending = run("print('one'); print('two', file=sys.stderr); print('last, no newline', end='')")
    assert ending == Ending(code=0, reason="finished")
    assert run.lines == ["one", "two", "last, no newline"]
    head, *rest = (tmp_path / "verl.log").read_text().splitlines()
    assert head.startswith("===== 20")
    assert rest == run.lines


def test_a_second_start_goes_on_in_the_same_log_and_hands_over_only_its_own_lines(run, tmp_path: Path):
    run("print('first')")
    run.lines.clear()
    run("print('second')")
    assert run.lines == ["second"]
    text = (tmp_path / "verl.log").read_text()
    assert text.index("first") < text.index("second")
    assert text.count("verl started =====") == 2


def test_progress_bars_and_colours_arrive_as_plain_lines_while_the_run_goes_on(run, tmp_path: Path):
    seen_while_running: list[str] = []

    def tick() -> None:
        if len(run.lines) >= 3 and not seen_while_running:
            seen_while_running[:] = list(run.lines)
            (tmp_path / "go").touch()

    program = r"""
sys.stdout.write("\x1b[36m(TaskRunner pid=7)\x1b[0m hello\r\n")
sys.stdout.write("load:  50%|##  | 1/2 [00:01<00:01]\rload: 100%|####| 2/2 [00:02<00:00]\r"); sys.stdout.flush()
while not os.path.exists("go"): time.sleep(0.01)
print("后来")
"""
    run(program, on_tick=tick)
    assert seen_while_running == [
        "(TaskRunner pid=7) hello",
        "load:  50%|##  | 1/2 [00:01<00:01]",
        "load: 100%|####| 2/2 [00:02<00:00]",
    ]
    assert run.lines[3:] == ["后来"]


def test_a_failure_hands_over_its_code_and_traceback(run):
    ending = run("raise ValueError('heads 14 % 4')")
    assert (ending.code, ending.reason) == (1, "failed")
    assert ending.traceback[0] == "Traceback (most recent call last):"
    assert ending.traceback[-1] == "ValueError: heads 14 % 4"


def test_a_killed_run_has_the_code_that_a_shell_would_give(run):
    assert run("os.kill(os.getpid(), 9)").code == 137


def test_daemons_in_their_own_sessions_end_with_the_run(run, tmp_path: Path):
    ending = run("daemon('d', ignore=False)")
    assert ending.reason == "finished"
    assert not alive(tmp_path / "d")


def test_ctrl_c_first_asks_and_then_ends_what_does_not_listen(run, tmp_path: Path):
    program = """
def bye(*_):
    print("asked to end", flush=True); sys.exit(134 - 128)
signal.signal(signal.SIGTERM, bye)
daemon("d")
time.sleep(60)
"""
    began = time.monotonic()
    ending = run(program, on_tick=when(tmp_path / "d", ctrl_c))
    assert (ending.code, ending.reason) == (6, "interrupted")
    assert "asked to end" in run.lines
    assert not alive(tmp_path / "d")
    assert time.monotonic() - began < 4


@pytest.mark.slow
def test_a_second_ctrl_c_ends_everything_at_once(run, tmp_path: Path):
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN); daemon('d'); time.sleep(60)"
    pressed: list[float] = []

    def press_twice() -> None:
        def press() -> None:
            ctrl_c()
            time.sleep(0.5)
            pressed.append(time.monotonic())
            ctrl_c()

        threading.Thread(target=press).start()

    ending = run(program, on_tick=when(tmp_path / "d", press_twice), grace=60)
    assert ending.reason == "interrupted"
    assert time.monotonic() - pressed[0] < 1.5
    assert not alive(tmp_path / "d")


def test_ctrl_c_at_the_terminal_reaches_only_the_launcher(run, tmp_path: Path):
    """The child has its own process group, so the terminal's signal does not kill it before it can end its tree."""
    run("print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())")
    assert run.lines == ["True True"]


def test_our_signal_handlers_are_as_before_afterwards(run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run("pass")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_what_a_callback_raises_ends_the_run_and_is_raised_again(run, tmp_path: Path):
    def stop() -> None:
        raise EngineError("too many reward errors")

    with pytest.raises(EngineError, match="too many reward errors"):
        run("daemon('d'); time.sleep(60)", on_tick=when(tmp_path / "d", stop))
    assert not alive(tmp_path / "d")


def test_the_run_ends_when_the_launcher_is_killed(tmp_path: Path):
    launcher = f"""
from pathlib import Path
from grpo.verl_backend.installation.places import find_environment
from grpo.verl_backend.running.process import Command, run_watched
program = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
run_watched(Command(({sys.executable!r}, "-c", program), {{}}, Path.cwd()), Path("log"), on_line=print,
            on_tick=lambda: None, hang_minutes=0, progressed=lambda: None)
"""
    repo = str(Path(__file__).resolve().parents[2])
    ours = subprocess.Popen([sys.executable, "-c", launcher], cwd=tmp_path, env={**os.environ, "PYTHONPATH": repo})
    pid = tmp_path / "pid"
    assert eventually(lambda: pid.exists() and pid.read_text().isdigit())
    ours.kill()
    ours.wait()
    assert eventually(lambda: not alive(pid))


@pytest.mark.slow
def test_a_run_without_news_is_ended_as_hung_with_the_stacks_of_its_processes(run, tmp_path: Path):
    program = """
def waits_for_a_lost_peer(): time.sleep(60)
daemon("d")
print("step 1", flush=True)
waits_for_a_lost_peer()
"""
    ending = run(program, hang_minutes=0.01)
    assert ending.reason == "hung"
    assert not alive(tmp_path / "d")
    (note,) = ending.notes
    if (Path(sys.executable).with_name("py-spy")).is_file():
        assert "waits_for_a_lost_peer" in (tmp_path / "stacks.txt").read_text()
    else:
        assert "py-spy" in note


@pytest.mark.slow
def test_noise_is_no_sign_of_life_and_a_moving_bar_is(run):
    noise = "\nfor i in range(900): print(f'No available block in {i} seconds', flush=True); time.sleep(0.05)"
    assert run(noise, hang_minutes=0.01).reason == "hung"
    bar = "\nfor i in range(15): print(f'load: {i}/30 [00:{i}<?]', end='\\r', flush=True); time.sleep(0.1)"
    assert run(bar, hang_minutes=0.01).reason == "finished"


@pytest.mark.slow
def test_steps_are_a_sign_of_life_when_the_log_is_silent(run):
    steps = iter(range(1000))
    assert run("time.sleep(1.4)", hang_minutes=0.01, progressed=lambda: next(steps)).reason == "finished"


@pytest.mark.verl
def test_stacks_of_running_and_stopped_processes_are_written(tmp_path: Path, missing: Callable[[str], NoReturn]):
    """With the py-spy of verl's environment; a process that somebody has stopped can only be read as it lies."""
    found = find_environment("cpu")
    py_spy = found.python.with_name("py-spy") if found else missing("verl; ./train.sh setup --engine verl --device cpu")
    mark = f"stacks {os.getpid()}"
    program = "import time\ndef {}(): time.sleep(60)\nprint(1, flush=True)\n{}()"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(name, name)],
            env={**os.environ, tree.MARK: mark},
            stdout=subprocess.PIPE,
        )
        for name in ("waits_for_a_peer", "is_stopped")
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        children[1].send_signal(signal.SIGSTOP)
        note = tree.dump_stacks(mark, py_spy, tmp_path / "stacks.txt")
    finally:
        assert tree.kill(mark) == []
    text = (tmp_path / "stacks.txt").read_text()
    assert note == f"stacks of 2 of 2 processes: {tmp_path / 'stacks.txt'}"
    assert "waits_for_a_peer" in text
    assert "is_stopped" in text


DEATH = r"""
print("(pid=5) INFO starting")
for text in ('WorkerProc hit an exception.', 'Traceback (most recent call last):',
             '  File "worker.py", line 3, in load', "    weights.load()",
             "AttributeError: 'Parameter' object has no attribute 'weight_loader'"):
    print("(vLLMHttpServer pid=5) (EngineCore pid=6) ERROR 11-21 05:53:01 [multiproc_executor.py:822] " + text)
print("(vLLMHttpServer pid=5) Traceback (most recent call last):\n(TaskRunner pid=9) between\n"
      "(vLLMHttpServer pid=5)   File \"shm.py\", line 9, in close\n"
      "(vLLMHttpServer pid=5) BufferError: cannot close exported pointers exist", flush=True)
"""


@pytest.mark.slow
def test_a_worker_that_died_while_verl_waits_for_ever_ends_the_run_with_the_first_traceback(run):
    began = time.monotonic()
    ending = run(DEATH + "time.sleep(60)", death_grace=0.5)
    assert ending.reason == "worker died"
    assert ending.traceback == (
        "Traceback (most recent call last):",
        '  File "worker.py", line 3, in load',
        "    weights.load()",
        "AttributeError: 'Parameter' object has no attribute 'weight_loader'",
    )
    assert time.monotonic() - began < 4


@pytest.mark.slow
def test_a_run_that_goes_on_after_such_a_line_is_left_alone(run):
    """Steps go on after the line, so nothing was lost."""
    steps = iter(range(1000))
    ending = run(DEATH + "time.sleep(1.2)", death_grace=0.5, progressed=lambda: next(steps))
    assert ending.reason == "finished"


def test_a_run_that_ends_by_itself_after_a_workers_death_says_so(run):
    assert run(DEATH + "sys.exit(1)").reason == "worker died"


def test_shared_memory_that_a_run_left_is_removed_and_nothing_else(run):
    theirs = SHM / f"psm_before_{os.getpid()}"
    foreign = SHM / f"dataset_{os.getpid()}.bin"
    mine = [SHM / f"psm_test_{os.getpid()}", SHM / f"verl_weights_test{os.getpid()}"]
    theirs.touch()
    try:
        run(f"for name in {[str(path) for path in (*mine, foreign)]}: open(name, 'w').write('x' * 5000)")
        assert [path.exists() for path in mine] == [False, False]
        assert theirs.exists()  # it was there before
        assert foreign.exists()  # no library names its memory so
    finally:
        for path in (theirs, foreign, *mine):
            path.unlink(missing_ok=True)


def test_shared_memory_that_another_program_has_open_stays(run):
    used = SHM / f"psm_used_{os.getpid()}"
    program = f"import mmap, time; f = open({str(used)!r}, 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); \
f.close(); print('ready', flush=True); time.sleep(60)"
    other: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        other.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE))
        assert other[0].stdout is not None
        other[0].stdout.readline()

    try:
        run("time.sleep(0.6)", on_tick=when(Path("/proc/self"), begin))
        assert used.exists()
    finally:
        other[0].kill()
        other[0].wait()
        used.unlink(missing_ok=True)


def test_a_semaphore_that_another_program_waits_to_hand_over_stays():
    # sem_open maps a file before it gives it its name, so /proc/PID/maps never shows that name.
    before = shared_memory.segments()
    lock = multiprocessing.get_context("spawn").Lock()
    (made,) = shared_memory.segments() - before
    shared_memory.remove_left(before)
    assert (SHM / made.name).exists()
    del lock
    gc.collect()
    (SHM / made.name).unlink(missing_ok=True)


def test_a_process_that_carries_no_mark_or_another_runs_is_not_touched(run, tmp_path: Path):
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, tree.MARK: "another run"})
    try:
        run("pass")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_program_that_is_not_there_is_one_line(tmp_path: Path):
    command = Command(("/no/such/python", "-m", "verl"), {}, tmp_path)
    with pytest.raises(EngineError, match="/no/such/python cannot be run"):
        run_watched(
            command,
            tmp_path / "verl.log",
            on_line=print,
            on_tick=lambda: None,
            hang_minutes=0,
            progressed=lambda: None,
        )


def test_the_users_own_python_path_stays_behind_ours(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    lines: list[str] = []
    command = Command(
        (sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"), {"PYTHONPATH": "/ours"}, tmp_path
    )
    run_watched(
        command,
        tmp_path / "log",
        on_line=lines.append,
        on_tick=lambda: None,
        hang_minutes=0,
        progressed=lambda: None,
    )
    assert lines == ["/ours:/theirs"]


def eventually(true: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return False
