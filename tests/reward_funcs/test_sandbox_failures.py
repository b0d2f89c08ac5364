"""The sandbox when something breaks: never a zero, nothing left running. Slow: servers are killed and started anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward_funcs.sandbox import SandboxError, client, close_servers, usable_jail
from tests.reward_funcs.attacks.world import descendants
from tests.reward_funcs.test_sandbox import DOUBLE, RIGHT, SLEEPS, score

pytestmark = pytest.mark.slow


def test_a_server_that_is_killed_costs_a_new_attempt_and_no_score(jail: str):
    with ThreadPoolExecutor(1) as pool:
        running = client.server(jail)
        future = pool.submit(score, SLEEPS.replace("1)", "0.3)"), jail)
        time.sleep(0.15)
        running._kill()
        assert future.result() == 1.0


def test_a_jail_that_always_breaks_is_an_error_and_not_a_zero(jail: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no-such-folder")  # Landlock's programs get their folders there
    close_servers()
    interpreter = client.find_interpreter()
    broken = type(interpreter)("/bin/false", interpreter.packages, interpreter.readable)
    monkeypatch.setattr(client, "find_interpreter", lambda: broken)
    with pytest.raises(SandboxError, match=f"{jail} jail's server did not start"):
        score(RIGHT, jail)
    monkeypatch.undo()
    assert score(RIGHT, jail) == 1.0


def test_no_room_for_a_program_s_files_is_an_error(monkeypatch: pytest.MonkeyPatch):
    usable_jail(["landlock"])
    close_servers()
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no-such-folder")
    with pytest.raises(SandboxError, match="could not be made"):
        score(RIGHT, "landlock")
    close_servers()
    monkeypatch.undo()
    with pytest.raises(SandboxError, match="bytes are free"):
        score(RIGHT, "landlock", disk=2**55)


def test_no_descriptors_left_is_an_error(repo: Path):
    program = (
        "import resource, json\n"
        "from reward_funcs.code_score import code_score\n"
        "from reward_funcs.sandbox import SandboxError\n"
        f"truth, right = {DOUBLE!r}, {RIGHT!r}\n"
        "assert code_score(right, truth)['score'] == 1\n"
        "kept = []\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "try:\n"
        "    while True: kept.append(open('/dev/null'))\n"
        "except OSError: pass\n"
        "try: code_score(right, truth)\n"
        "except SandboxError as error: print('error')\n"
        "kept.clear()\n"
        "print(code_score(right, truth)['score'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=repo, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["error", "1.0"], done.stderr


def test_a_jail_ended_from_outside_is_an_error(jail: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reward_funcs.code_score._ATTEMPTS", 1)
    assert score(RIGHT, jail) == 1.0
    with ThreadPoolExecutor(1) as pool:
        before = descendants(os.getpid())
        future = pool.submit(score, SLEEPS, jail)
        time.sleep(0.4)
        for pid in sorted(descendants(os.getpid()) - before):
            os.kill(pid, signal.SIGKILL)
            break  # the outermost process of the program: bubblewrap's init for it, or itself
        with pytest.raises(SandboxError):
            future.result()


def test_a_trainer_that_is_killed_takes_its_server_and_programs_with_it(repo: Path, jail: str):
    program = (
        "import threading, sys, time\nfrom reward_funcs.code_options import read_options\n"
        "from reward_funcs.code_score import code_score\n"
        f"o = read_options({{'jail': {jail!r}, 'timeout': 60}})\n"
        f"assert code_score({RIGHT!r}, {DOUBLE!r}, options=o)['score'] == 1\n"
        f"long = {SLEEPS.replace('1)', '60)')!r}\n"
        f"threading.Thread(target=code_score, args=(long, {DOUBLE!r}), kwargs=dict(options=o)).start()\n"
        "time.sleep(0.3)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], cwd=repo, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    with trainer.stdout:
        trainer.stdout.readline()
    below = descendants(trainer.pid)
    assert len(below) >= 2
    trainer.kill()
    trainer.wait()
    until = time.monotonic() + 5
    while alive := [pid for pid in below if _runs(pid)]:
        assert time.monotonic() < until, alive
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# As Docker's default profile answers: no new namespaces, no mounts. BPF by hand, as (code, if true, if false, operand).
_LIKE_DOCKER = """
import struct, sys
from reward_funcs.sandbox import kernel, usable_jail
from reward_funcs.sandbox.syscalls import numbers
table, refused = numbers(), ["unshare", "setns", "pivot_root", "mount", *sys.argv[1:]]
table["mount"] = {272: 165, 97: 40}[table["unshare"]]
code = [(0x20, 0, 0, 0)]
for name in refused:
    code += [(0x15, 0, 1, table[name]), (0x06, 0, 0, 0x50001)]
code += [(0x15, 0, 1, table["clone3"]), (0x06, 0, 0, 0x50026), (0x15, 0, 4, table["clone"])]
code += [(0x20, 0, 0, 16), (0x54, 0, 0, 0x7E020000), (0x15, 1, 0, 0), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
kernel.no_new_privileges()
kernel.install_filter(b"".join(struct.pack("<HBBI", *op) for op in code))
try:
    print(usable_jail())
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_in_a_container_like_docker_s_it_takes_landlock_and_without_that_it_refuses(repo: Path):
    usable_jail(["landlock"])  # this kernel has it

    def said(*refused: str) -> str:
        command = [sys.executable, "-c", _LIKE_DOCKER, *refused]
        return subprocess.run(command, cwd=repo, capture_output=True, text=True, timeout=60).stdout.strip()

    assert said() == "landlock"
    refusal = said("landlock_create_ruleset")
    assert refusal.startswith("SandboxError: no sandbox for model-written code works on this machine (bubblewrap: ")
    assert "landlock: the landlock jail: PermissionError: [Errno 1] landlock_create_ruleset" in refusal


_AS_NOBODY = """
import os, sys
from reward_funcs.code_options import read_options
from reward_funcs.code_score import code_score
assert os.getuid() == 65534
options = read_options({"jail": sys.argv[1]})
reads = f"def f(x):\\n    open('/proc/{os.getpid()}/environ').read()\\n    return 2 * x\\n"
forks = "import os\\nos.fork()\\n" * 9
print([code_score(p, sys.argv[2], options=options)["score"] for p in (sys.argv[3], reads, forks)])
"""


def test_without_privileges_the_same_jails_hold(repo: Path, jail: str):
    # The rest of this file runs as whoever runs the tests, which in a container is root.
    python = Path("/usr/bin/python3")
    if os.geteuid() != 0 or not python.exists() or not os.stat(repo).st_mode & 0o001:
        pytest.skip("needs root, to become nobody, and a Python and a checkout that nobody may read")
    command = [python, "-B", "-c", _AS_NOBODY, jail, DOUBLE, RIGHT]
    done = subprocess.run(command, cwd=repo, user=65534, group=65534, extra_groups=[], env={"HOME": "/tmp"},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.stdout.strip() == "[1.0, 0.0, 0.0]", done.stderr
