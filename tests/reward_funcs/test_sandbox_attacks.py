"""Every attack and every honest program, in every jail: what it is paid, what it changed, what it left behind."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reward_funcs.code_options import read_options
from reward_funcs.code_score import code_score
from tests.reward_funcs.attacks import made
from tests.reward_funcs.attacks.world import Case, World, descendants, read_cases, world

REACHING = [*read_cases("escapes"), *read_cases("resources"), *made.RESOURCES]
ATTACKS = [*REACHING, *read_cases("tricks"), *read_cases("more"), *made.TRICKS]
HONEST = [*read_cases("honest"), *read_cases("more_honest"), *made.HONEST]
OVERRUN = 5.0  # seconds beyond the deadline
DISK = 512 * 2**20
TOGETHER = 4  # programs at a time: most of them wait for their deadline
BATCH = 16  # cases of one test; starting each alone would cost as much as running it


def _batches(cases: list[Case]) -> list[Any]:
    """Cases in batches, named by the first of each."""
    parts = [cases[i : i + BATCH] for i in range(0, len(cases), BATCH)]
    return [pytest.param(part, id=f"{part[0].name} and {len(part) - 1} more") for part in parts]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with world(folder) as made_world:
        yield made_world


class _Disk(threading.Thread):
    """The most that the file system of the temporary folder lost while a program ran."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.most, self.over = folder, 0, threading.Event()
        self.before = os.statvfs(folder).f_bavail

    def run(self) -> None:
        while not self.over.wait(0.02):
            status = os.statvfs(self.folder)
            self.most = max(self.most, (self.before - status.f_bavail) * status.f_frsize)


def _score(case: Case, target: World, jail: str) -> tuple[float, float]:
    options = read_options({"jail": jail, "timeout": case.seconds})
    began = time.monotonic()
    result = code_score(target.filled(case.program), target.filled(case.truth), options=options)
    return result["score"], time.monotonic() - began


def _all(cases: list[Case], target: World, jail: str) -> list[str]:
    """What went wrong, a line for each case that was paid wrongly or held too long."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        found = list(pool.map(lambda case: _score(case, target, jail), cases))
    return [
        f"{case.name}: paid {score}, {seconds:.1f} s"
        for case, (score, seconds) in zip(cases, found, strict=True)
        if score != float(case.pays) or seconds > case.seconds + OVERRUN
    ]


@pytest.mark.slow
@pytest.mark.parametrize("cases", _batches(ATTACKS))
def test_an_attack_is_not_paid_and_changes_nothing(cases: list[Case], jail: str, target: World):
    # S4 of RELIABILITY 1.5; the probes (`pays`) are programs that look at their jail and have to find it as promised
    code_score("def f():\n    return 1\n", '{"kind":"call","entry":"f","cases":[{"expected":1}]}')  # servers are up
    before = descendants(os.getpid())
    assert _all(cases, target, jail) == []
    assert target.damage() == []
    end = time.monotonic() + OVERRUN + 3
    while left := descendants(os.getpid()) - before - _servers():  # a folder full of files is removed by a process
        assert time.monotonic() < end, left
        time.sleep(0.02)


def _servers() -> set[int]:
    """The processes of the sandbox itself: a server may have been started, or started anew, meanwhile."""
    mine = set()
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"reward_funcs.sandbox.server" in command or b"bwrap" in command:
            mine.add(pid)
    return mine


@pytest.mark.slow
@pytest.mark.parametrize("cases", _batches(HONEST))
def test_an_honest_program_is_paid(cases: list[Case], jail: str, target: World):
    patient = [replace(case, seconds=60.0) for case in cases]  # a slow machine is no reason to lose one
    assert _all(patient, target, jail) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["disk_fill", "disk_fill_without_names", "disk_fill_by_fallocate"])
def test_a_program_that_fills_the_disk_takes_half_a_gigabyte_at_most_and_gives_it_back(name, jail, target, tmp_path):
    case = next(case for case in ATTACKS if case.name == name)
    disk = _Disk(tmp_path)
    disk.start()
    _score(case, target, jail)
    disk.over.set()
    disk.join()
    assert disk.most < DISK


def test_there_are_enough_attacks_and_controls_and_no_name_twice():
    names = [case.name for case in [*ATTACKS, *HONEST]]
    assert len(ATTACKS) >= 150
    assert len(HONEST) >= 33
    assert len(names) == len(set(names))


def test_every_attack_class_has_its_cases():
    titles = {
        title
        for file in Path(__file__).parent.joinpath("attacks").glob("*.txt")
        for title in re.findall(r"^##### (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    assert titles == {
        *("read secrets", "network", "write outside", "kill and freeze", "guard bypass and privilege", "time"),
        *("memory and disk", "processes", "output", "early exit", "lying objects", "tamper in process"),
        *("steal expected", "forge result", "loose compare", "no or odd code", "trusted parser", "honest controls"),
    }
