"""Makes .venv beside this folder and installs pinned sets of packages into it, once. Leaves out finding a Python.

    python requirements/install.py SET...      train.sh calls this with a Python that it found
    python requirements/install.py --lacks     prints which packages this Python lacks for training

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
VENV = REPO / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
UNFINISHED = VENV / ".unfinished"  # there while an installation runs: an interrupted one is begun again from nothing
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NEEDED = ("torch", "transformers", "safetensors", "omegaconf", "hydra", "pyarrow", "rich", "matplotlib", "jinja2")


class InstallError(Exception):
    """The environment cannot be made; one line for the user."""


def main(words: list[str]) -> int:
    """The command; returns its exit status."""
    if words == ["--lacks"]:
        print(", ".join(_lacking()))
        return 0
    try:
        with _locked():
            _make_environment()
            for name in words:
                _install(name)
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
def _locked() -> Iterator[None]:
    """Two first starts at once: the second waits, and then finds all installed."""
    try:
        lock = open(REPO / ".venv.lock", "a")  # noqa: SIM115 - held until the end
    except OSError as problem:
        raise InstallError(
            f"{REPO} cannot be written ({problem.strerror}); copy it to where you may write, or set GRPO_PYTHON"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another start is installing into {VENV}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            _say("this file system has no locks; do not start twice while packages are being installed")
        yield


def _make_environment() -> None:
    if not UNFINISHED.exists() and _run(PYTHON, "-c", "import pip", log=None):
        return
    ours = UNFINISHED.exists() or any(VENV.glob(".installed-*")) or not VENV.exists()
    if not ours:
        raise InstallError(f"{VENV} has no working pip; remove it, or use it as it is: GRPO_PYTHON={PYTHON}")
    # The real file behind python3 or a shim: when it goes away with an update, the environment is made again.
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    _say(f"making {VENV} with Python {sys.version.split()[0]} ({python})")
    try:
        shutil.rmtree(VENV, ignore_errors=True)
        VENV.mkdir()
        UNFINISHED.touch()
    except OSError as problem:
        raise InstallError(f"{problem.filename}: {problem.strerror}; remove {VENV} and start again") from None
    if not _run(Path(python), "-m", "venv", str(VENV), log=LOG):
        raise InstallError(f"no environment could be made with {python}: {_last_lines(1)}")


def _install(name: str) -> None:
    """Install requirements/NAME.txt unless a copy of that very file says that it was."""
    file, stamp = REPO / "requirements" / f"{name}.txt", VENV / f".installed-{name}"
    if not file.is_file():
        raise InstallError(f"{file}: no such file; --setup takes the names of the files in requirements/")
    if stamp.is_file() and stamp.read_bytes() == file.read_bytes() and not UNFINISHED.exists():
        return
    UNFINISHED.touch()
    stamp.unlink(missing_ok=True)
    # The lists for verl are complete, and hold packages whose declared needs would bring CUDA builds.
    options = ["--no-deps"] if name.startswith("verl-") else _torch_index() if name == "embedded" else []
    _say(f"installing requirements/{name}.txt (once; log: {LOG})")
    begun = time.monotonic()
    quiet = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
    if not _run(PYTHON, "-m", "pip", "install", *quiet, *options, "-r", str(file), log=LOG):
        _say(_last_lines(6))
        raise InstallError(f"requirements/{name}.txt could not be installed{_offline()}; the whole log is {LOG}")
    shutil.copyfile(file, stamp)
    UNFINISHED.unlink()
    _say(f"installed requirements/{name}.txt in {time.monotonic() - begun:.0f} s")


def _torch_index() -> list[str]:
    """pip options that keep gigabytes of CUDA packages away from a Linux machine without an NVIDIA GPU."""
    if sys.platform != "linux" or _has_nvidia_gpu():
        return []
    if _answers(f"{CPU_INDEX}/torch/"):
        return ["--extra-index-url", CPU_INDEX]  # its 2.13.0+cpu goes before the 2.13.0 of other indexes
    _say(f"{CPU_INDEX} does not answer: taking the torch that pip is configured for")
    return []


def _has_nvidia_gpu() -> bool:
    program = shutil.which("nvidia-smi", path=os.environ.get("PATH", "") + ":/usr/lib/wsl/lib")
    return Path("/dev/nvidia0").exists() or (program is not None and _run(Path(program), "-L", log=None))


def _answers(url: str, seconds: float = 3.0) -> bool:
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


def _last_lines(count: int) -> str:
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines() if LOG.exists() else []
    return "\n".join([line for line in lines if line.strip()][-count:])


def _offline() -> str:
    """A guess at the cause, from pip's own words."""
    signs = (
        "Temporary failure in name resolution",
        "Name or service not known",
        "NewConnectionError",
        "ConnectTimeout",
    )
    return " (no package index could be reached)" if any(sign in _last_lines(200) for sign in signs) else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
