"""The sandbox as its callers meet it: from threads, loops and forks, when it breaks, and when there is none."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reward_funcs import RewardError
from reward_funcs.code_options import read_options
from reward_funcs.code_score import code_score
from reward_funcs.sandbox import SandboxError, client, close_servers, probe, usable_jail
from reward_funcs.sandbox.cleanup import remove_tree, space_used
from reward_funcs.sandbox.limits import Limits, as_limit
from tests.reward_funcs.attacks.world import descendants

pytestmark = pytest.mark.slow  # processes of its own

DOUBLE = json.dumps({"kind": "call", "entry": "f", "cases": [{"args": [n], "expected": 2 * n} for n in range(3)]})
RIGHT, WRONG = "def f(x):\n    return 2 * x\n", "def f(x):\n    return x\n"
THREADS = "import threading, time\nfor _ in range(9):\n    threading.Thread(target=time.sleep, args=(0.2,)).start()\n"
SLEEPS = "import time\ndef f(x):\n    time.sleep(1)\n    return 2 * x\n"


def score(program: str, jail: str, truth: str = DOUBLE, **options: object) -> float:
    return code_score(program, truth, options=read_options({"jail": jail, **options}))["score"]


def test_a_right_program_is_paid_and_a_wrong_one_is_not(jail: str):
    assert score(RIGHT, jail) == 1.0
    assert score(WRONG, jail) == 0.0


def test_calls_from_many_threads_at_once_come_out_as_from_one(jail: str):
    with ThreadPoolExecutor(8) as pool:
        scores = list(pool.map(lambda n: score(RIGHT if n % 3 else WRONG, jail), range(24)))
    assert scores == [float(bool(n % 3)) for n in range(24)]


def test_inside_a_running_event_loop(jail: str):
    async def both() -> list[float]:
        return [score(RIGHT, jail), await asyncio.to_thread(score, WRONG, jail)]

    assert asyncio.run(both()) == [1.0, 0.0]


def test_in_a_forked_child_of_a_process_that_uses_it(jail: str):
    assert score(RIGHT, jail) == 1.0
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps([score(RIGHT, jail), score(WRONG, jail)]).encode())
            close_servers()
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="ascii") as answers:
        assert json.load(answers) == [1.0, 0.0]
    os.waitpid(child, 0)
    assert score(RIGHT, jail) == 1.0  # the parent's own still stands


def test_a_deadline_ends_everything_and_soon(jail: str):
    began = time.monotonic()
    assert score("def f(x):\n    while True:\n        pass\n", jail, timeout=0.5) == 0.0
    assert time.monotonic() - began < 1.5


def test_the_time_until_a_jail_stands_is_not_the_program_s(jail: str):
    close_servers()
    assert score(RIGHT, jail, timeout=1.0) == 1.0


def test_nothing_is_left_when_the_servers_are_closed(jail: str):
    others = {path.name for path in Path(tempfile.gettempdir()).glob("code-sandbox-*")}
    score(RIGHT, jail)
    before = len(os.listdir("/proc/self/fd"))
    for program in (RIGHT, WRONG, "import os\nos.mkdir('d')\n" + RIGHT, "raise SystemExit"):
        score(program, jail)
    assert len(os.listdir("/proc/self/fd")) == before
    close_servers()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())]
    assert not [command for command in commands if b"reward_funcs" in command]
    assert {path.name for path in Path(tempfile.gettempdir()).glob("code-sandbox-*")} <= others


# --- no jail ----------------------------------------------------------------------------------------------------------


def test_without_a_usable_jail_it_refuses_and_names_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    close_servers()  # one that runs would be probed, bubblewrap or not
    monkeypatch.setattr(probe, "_found", {})
    monkeypatch.setattr(client, "find_bubblewrap", lambda: None)
    monkeypatch.setattr(
        probe, "_why_not", lambda jail, real=probe._why_not: real(jail) if jail == "bubblewrap" else "no"
    )
    with pytest.raises(SandboxError) as error:
        code_score(RIGHT, DOUBLE)
    said = str(error.value)
    assert "bubblewrap (the program bwrap) is not installed" in said
    assert "landlock: no" in said
    assert "--unsafe_code_exec" in said
    assert "\n" not in said
    assert isinstance(error.value, RewardError)


def test_macos_refuses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "_found", {})
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match=r"needs Linux, and this is darwin.*code:url"):
        code_score(RIGHT, DOUBLE)


def test_a_jail_that_lets_something_through_is_not_used(monkeypatch: pytest.MonkeyPatch):
    # without its lock-down, the probing program reads, writes, signals and connects where it must not
    monkeypatch.setattr(probe, "_found", {})
    monkeypatch.setattr(probe, "server", lambda jail: client.server("none"))
    with pytest.raises(SandboxError, match="does not hold here: read, append, write, delete, signal"):
        usable_jail(["bubblewrap"])
    close_servers()


def test_unsafe_is_the_only_way_round_and_still_ends_what_hangs():
    options = replace(read_options({"timeout": 0.5}), unsafe=True)
    assert code_score(RIGHT, DOUBLE, options=options)["score"] == 1.0
    assert code_score(WRONG, DOUBLE, options=options)["score"] == 0.0
    forks = "import os\nif os.fork() == 0:\n    os.setsid()\nwhile True:\n    pass\n"
    before = descendants(os.getpid())
    assert code_score(forks, DOUBLE, options=options)["score"] == 0.0
    time.sleep(0.2)
    assert descendants(os.getpid()) - before == set()
    close_servers()


# --- limits and cleaning up -------------------------------------------------------------------------------------------


def test_limits_have_the_documented_defaults_and_read_sizes():
    assert Limits() == Limits(5.0, 2**30, 64, 2**20, 8 * 2**20, 128 * 2**20)
    assert [as_limit("memory", text) for text in ("512m", "1g", "1.5 GiB", "65536")] == [2**29, 2**30, 3 * 2**29, 65536]
    for name, value in (("timeout", 0), ("memory", "1k"), ("processes", 0), ("output", -1), ("disk", True)):
        with pytest.raises(RewardError, match=f"code: {name}="):
            read_options({name: value})
    with pytest.raises(RewardError, match="is not a number, nor a size"):
        read_options({"memory": "much"})


@pytest.mark.parametrize(
    ("limit", "program"),
    [
        ({"memory": "128m"}, "x = bytearray(200 * 2**20)\n" + RIGHT),
        ({"output": 1000}, "print('x' * 2000)\n" + RIGHT),
        ({"result": 2000}, "def f(x):\n    return 2 * x if x else 'x' * 4000\n"),
        ({"disk": "100k"}, "open('a', 'wb').write(bytes(300_000))\n" + RIGHT),
        ({"processes": 4}, THREADS + RIGHT),
    ],
)  # fmt: skip
def test_each_limit_holds_and_does_so_because_it_was_set(limit: dict[str, Any], program: str, jail: str):
    assert score(program, jail, **limit) == 0.0
    if "result" not in limit:
        assert score(program, jail) == 1.0


def test_what_a_program_left_is_removed_whatever_its_shape(tmp_path: Path):
    folder = tmp_path / "left"
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/file").write_text("x")
    (folder / "link").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    os.mkdir(bytes(folder) + b"/\xff\n")
    os.chmod(folder / "a/b", 0)
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(100):  # deeper than a path may be long
        os.mkdir("d" * 50, dir_fd=inner)
        deeper = os.open("d" * 50, os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = deeper
    os.close(inner)
    assert space_used(str(folder), most_entries=10_000) is None
    remove_tree(str(folder))
    assert not folder.exists()
    assert tmp_path.exists()
    remove_tree(str(folder))  # gone already: nothing to do


def test_space_is_counted_by_blocks_and_too_many_entries_are_too_many(tmp_path: Path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(bytes(100_000))
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(2**30)
    used = space_used(str(tmp_path), most_entries=3)
    assert used is not None
    assert 100_000 <= used < 200_000
    assert space_used(str(tmp_path), most_entries=2) is None
