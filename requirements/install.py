"""Makes environments beside this folder and installs pinned sets of packages, once. Leaves out finding a Python.

    python requirements/install.py SET...      train.sh calls this with a Python that it found
    python requirements/install.py --lacks     prints which packages this Python lacks for training

A set is a file of this folder. It goes into .venv, but for verl's (PLACES), which have an environment of their own.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parent.parent
PLACES = {"verl-cpu": ".venv-verl-cpu", "verl-cuda": ".venv-verl-cuda", "flash-attn": ".venv-verl-cuda"}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NEEDED = (
    "torch",
    "transformers",
    "peft",
    "safetensors",
    "omegaconf",
    "hydra",
    "pyarrow",
    "rich",
    "matplotlib",
    "jinja2",
    "psutil",
)
# What a set of verl asks for: Pythons, and GB on disk while it is being installed.
DEMANDS = {"verl-cpu": (((3, 11), (3, 12)), 8), "verl-cuda": (((3, 10), (3, 11), (3, 12)), 20)}


class InstallError(Exception):
    """The environment cannot be made; one line for the user."""


class Environment(NamedTuple):
    """One virtual environment beside train.sh. unfinished: there while an installation runs, which is then begun again
    from nothing when it was interrupted."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder / "install.log"

    @property
    def unfinished(self) -> Path:
        return self.folder / ".unfinished"

    def stamp(self, name: str) -> Path:
        """A copy of requirements/NAME.txt, once it is installed."""
        return self.folder / f".installed-{name}"


def main(words: list[str]) -> int:
    """The command; returns its exit status."""
    if words == ["--lacks"]:
        print(", ".join(_lacking()))
        return 0
    try:
        for name in words:
            environment = Environment(REPO / PLACES.get(name, ".venv"))
            with _locked(environment):
                _make_environment(environment, name)
                _install(environment, name)
    except InstallError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the next start begins the installation again", file=sys.stderr)
        return 130
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _lacking() -> list[str]:
    old = [] if sys.version_info >= (3, 10) else ["Python 3.10 or newer"]
    return old + [name for name in NEEDED if importlib.util.find_spec(name) is None]


@contextlib.contextmanager
def _locked(environment: Environment) -> Iterator[None]:
    """Two first starts at once: the second waits, and then finds all installed."""
    try:
        lock = open(f"{environment.folder}.lock", "a")  # noqa: SIM115 - held until the end
    except OSError as problem:
        raise InstallError(
            f"{REPO} cannot be written ({problem.strerror}); copy it to where you may write, or set GRPO_PYTHON"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another start is installing into {environment.folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            _say("this file system has no locks; do not start twice while packages are being installed")
        yield


def _make_environment(environment: Environment, name: str) -> None:
    folder, unfinished = environment.folder, environment.unfinished
    if not unfinished.exists() and _run(environment.python, "-c", "import pip", log=None):
        return
    if name == "flash-attn":
        raise InstallError("flash-attn is added to verl's environment: ./train.sh setup --engine verl makes it")
    ours = unfinished.exists() or any(folder.glob(".installed-*")) or not folder.exists()
    if not ours:
        variable = "GRPO_PYTHON" if folder.name == ".venv" else "GRPO_VERL_PYTHON"
        raise InstallError(
            f"{folder} has no working pip; remove it, or use it as it is: {variable}={environment.python}"
        )
    _demand(name)
    # The real file behind python3 or a shim: when it goes away with an update, the environment is made again.
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    _say(f"making {folder} with Python {sys.version.split()[0]} ({python})")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        unfinished.touch()
    except OSError as problem:
        raise InstallError(f"{problem.filename}: {problem.strerror}; remove {folder} and start again") from None
    if not _run(Path(python), "-m", "venv", str(folder), log=environment.log):
        raise InstallError(f"no environment could be made with {python}: {_last_lines(environment.log, 1)}")


def _demand(name: str) -> None:
    """Raise InstallError where a set of verl cannot work, before gigabytes are fetched."""
    if name not in DEMANDS:
        return
    pythons, size = DEMANDS[name]
    machine = (sys.platform, platform.machine())
    if machine != ("linux", "x86_64"):
        raise InstallError(f"requirements/{name}.txt is for Linux on x86-64, and this is {machine[0]} on {machine[1]}")
    if sys.version_info[:2] not in pythons:
        wanted = ", ".join(f"{major}.{minor}" for major, minor in pythons)
        raise InstallError(f"requirements/{name}.txt is for Python {wanted}, not {sys.version.split()[0]}; install one")
    free = shutil.disk_usage(REPO).free / 1e9
    if free < size:
        raise InstallError(
            f"requirements/{name}.txt takes up to {size} GB, and {REPO} has {free:.0f} GB left; free some"
        )


def _install(environment: Environment, name: str) -> None:
    """Install requirements/NAME.txt unless a copy of that very file says that it was."""
    file, stamp, log = REPO / "requirements" / f"{name}.txt", environment.stamp(name), environment.log
    if not file.is_file():
        raise InstallError(f"{file}: no such file; --setup takes the names of the files in requirements/")
    if stamp.is_file() and stamp.read_bytes() == file.read_bytes() and not environment.unfinished.exists():
        return
    if name != "flash-attn":  # an extra: what it is added to works without it
        environment.unfinished.touch()
    stamp.unlink(missing_ok=True)
    _say(f"installing requirements/{name}.txt (once{_size(name)}; log: {log})")
    begun = time.monotonic()
    quiet = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
    if not _run(environment.python, "-m", "pip", "install", *quiet, *_options(name), "-r", str(file), log=log):
        _say(_last_lines(log, 6))
        raise InstallError(f"requirements/{name}.txt could not be installed{_guess(log)}; the whole log is {log}")
    shutil.copyfile(file, stamp)
    environment.unfinished.unlink(missing_ok=True)
    _say(f"installed requirements/{name}.txt in {time.monotonic() - begun:.0f} s")


def _size(name: str) -> str:
    return {"verl-cpu": ", 4 GB", "verl-cuda": ", 11 GB", "flash-attn": ", compiling takes up to an hour"}.get(name, "")


def _options(name: str) -> list[str]:
    """pip's options for a set."""
    if name == "embedded":
        return [] if sys.platform != "linux" or _has_nvidia_gpu() else _cpu_index()
    if name == "flash-attn":  # is compiled against the torch that is there
        return ["--no-deps", "--no-build-isolation"]
    # The lists for verl are complete, and hold packages whose declared needs would bring CUDA builds.
    return ["--no-deps", *(_cpu_index() if name == "verl-cpu" else [])] if name.startswith("verl-") else []


def _cpu_index() -> list[str]:
    """pip options that keep gigabytes of CUDA packages away from a machine that has no use for them."""
    if answers(f"{CPU_INDEX}/torch/"):
        return ["--extra-index-url", CPU_INDEX]  # its 2.13.0+cpu goes before the 2.13.0 of other indexes
    _say(f"{CPU_INDEX} does not answer: taking the torch that pip is configured for")
    return []


def _has_nvidia_gpu() -> bool:
    program = shutil.which("nvidia-smi", path=os.environ.get("PATH", "") + ":/usr/lib/wsl/lib")
    return Path("/dev/nvidia0").exists() or (program is not None and _run(Path(program), "-L", log=None))


def answers(url: str, seconds: float = 3.0) -> bool:
    """Whether the address answers in time; in a thread, since looking up a name knows no time limit."""
    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=seconds):
            answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answered.is_set()


def _run(program: Path, *words: str, log: Path | None) -> bool:
    """Run to the end, all output into the log; whether it went well."""
    # A user's own pip settings stay, but for those that would install elsewhere than into the environment.
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PIP_TARGET", "PIP_PREFIX", "PYTHONHOME")
    }
    environment["PIP_USER"] = "0"
    try:
        with open(log or os.devnull, "ab") as output:
            finished = subprocess.run(
                [program, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
    except OSError:
        return False
    return finished.returncode == 0


def _last_lines(log: Path, count: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join([line for line in lines if line.strip()][-count:])


def _guess(log: Path) -> str:
    """A guess at the cause, from pip's own words."""
    signs = {
        "Temporary failure in name resolution": "no package index could be reached",
        "Name or service not known": "no package index could be reached",
        "NewConnectionError": "no package index could be reached",
        "ConnectTimeout": "no package index could be reached",
        "No matching distribution found for torch==": f"torch for CPUs comes from {CPU_INDEX}, which is out of reach",
        "No space left on device": "the disk is full",
    }
    last = _last_lines(log, 200)
    return next((f" ({cause})" for sign, cause in signs.items() if sign in last), "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
