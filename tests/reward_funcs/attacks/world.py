"""What the attacks aim at: secrets, a victim, listeners, files; and the check that none of it was touched."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOKEN = "tok" + "en-7391-that-must-not-come-back"


@dataclass(frozen=True)
class Case:
    """One program and what has to come of it. pays: whether it passes its tests. seconds: of its deadline."""

    name: str
    program: str
    truth: str
    pays: bool = False
    seconds: float = 2.0


def read_cases(name: str) -> list[Case]:
    """The cases of a text file beside this one: name, what it has to come to, its deadline; the tests; the program."""
    cases = []
    for block in re.split(r"^=== ", (HERE / f"{name}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        head, truth, _, program = re.sub(r"^##### .*\n", "", block, flags=re.MULTILINE).split("\n", 3)
        title, outcome, seconds = head.split(" | ")
        assert outcome in ("pays", "fails"), head
        cases.append(Case(title, program.rstrip("\n") + "\n", truth, outcome == "pays", float(seconds.split()[0])))
    return cases


class World:
    """A folder with secrets and a canary, a process, and three listeners. `filled` puts their places into a program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_text(TOKEN, encoding="ascii")
        os.chmod(folder, 0o755)
        os.chmod(self.secret, 0o644)  # its mode is no protection: the jail has to be
        self.home = folder / "home"
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / ".ssh" / "id_rsa").write_text(TOKEN, encoding="ascii")
        self.open_secret = os.open(self.secret, os.O_RDWR)
        os.set_inheritable(self.open_secret, True)
        os.environ["SANDBOX_TEST_SECRET"] = TOKEN
        self.victim = subprocess.Popen([sys.executable, "-S", "-c", "import time\nwhile 1: time.sleep(1)", TOKEN])
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.abstract.bind(f"\0sandbox-test-{os.getpid()}")
        self.abstract.listen()
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagrams.bind(f"\0sandbox-datagrams-{os.getpid()}")

    def filled(self, program: str) -> str:
        """The program with this world's places in it."""
        places = {
            "@FOLDER@": self.folder, "@SECRET@": self.secret, "@HOME@": self.home, "@GRADER@": os.getpid(),
            "@VICTIM@": self.victim.pid, "@TCP@": self.tcp.getsockname()[1], "@UDP@": self.udp.getsockname()[1],
            "@FD@": self.open_secret, "@TOKEN@": TOKEN, "@REPO@": HERE.parent.parent.parent,
        }  # fmt: skip
        for mark, place in places.items():
            program = program.replace(mark, str(place))
        return program

    def damage(self) -> list[str]:
        """What an attack has changed; nothing is the only good answer."""
        found = []
        if self.victim.poll() is not None:
            found.append("the victim was killed")
        elif _state(self.victim.pid) == "T":
            found.append("the victim was stopped")
        if sorted(path.name for path in self.folder.iterdir()) != ["home", "secret"]:
            found.append(f"files in the folder: {sorted(path.name for path in self.folder.iterdir())}")
        if self.secret.read_text(encoding="ascii") != TOKEN or self.secret.stat().st_mode & 0o7777 != 0o644:
            found.append("the secret was changed")
        if self.secret.stat().st_mtime_ns < 10**18:
            found.append("the secret's times were changed")
        listeners = [self.tcp, self.udp, self.abstract, self.datagrams]
        if select.select(listeners, [], [], 0)[0]:
            found.append("a listener heard something")
        return found

    def close(self) -> None:
        """Ends the victim and the listeners."""
        os.environ.pop("SANDBOX_TEST_SECRET", None)
        self.victim.kill()
        self.victim.wait()
        os.close(self.open_secret)
        for listener in (self.tcp, self.udp, self.abstract, self.datagrams):
            listener.close()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def descendants(pid: int) -> set[int]:
    """Every process below `pid` now."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split():
                found |= {int(child)} | descendants(int(child))
    return found


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    """A world that ends with its block."""
    made = World(folder)
    try:
        yield made
    finally:
        made.close()
