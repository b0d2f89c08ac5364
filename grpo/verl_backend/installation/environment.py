"""The environment that verl runs in, as the engine and the setup command use it: find it, make it, judge it; and which
engine this machine is for. Imports no torch; looking takes milliseconds.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable

from grpo.engine import EngineError
from grpo.verl_backend.installation.nvidia import Gpu, Machine, attention_for, driver_problem, look, visible_gpus
from grpo.verl_backend.installation.places import NAMED, REPO, VerlEnvironment, find_environment, made_here
from grpo.verl_backend.installation.soundness import environment_problems, import_problems

__all__ = [
    "NAMED",
    "Gpu",
    "Machine",
    "VerlEnvironment",
    "attention_for",
    "automatic_engine",
    "cannot_install",
    "environment_problems",
    "find_environment",
    "import_problems",
    "install_environment",
    "look",
    "visible_gpus",
]

PYTHONS = {"cuda": ("3.11", "3.12", "3.10"), "cpu": ("3.11", "3.12")}  # the best first
OLDEST_CARD = (7, 5)  # CUDA 13 has left Volta and older behind
FREE_GB = 20  # on disk, to make the CUDA environment


def install_environment(device: str, say: Callable[[str], None], *, extra: str | None = None) -> VerlEnvironment:
    """Make the environment from requirements/verl-DEVICE.txt (minutes, gigabytes); say: takes one line for the user.

    extra: a further list, "flash-attn". Raises EngineError.
    """
    sets = [f"verl-{device}", *([extra] if extra else [])]
    command = [_python_for(device), str(REPO / "requirements" / "install.py"), *sets]
    last = ""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            last = line.rstrip()
            if not last.startswith("error: "):
                say(last)
    if child.returncode != 0:
        raise EngineError(last.removeprefix("error: "))
    made = made_here(device)
    assert made is not None, "install.py has left no environment"
    return made


def automatic_engine(device: str = "auto") -> tuple[str, str]:
    """What `--engine auto` means on this machine, "verl" or "embedded", and why in one line. device: trainer.device."""
    if device not in ("auto", "cuda"):
        return "embedded", f"engine embedded: device {device} was asked for"
    machine = look()
    if not machine.gpus:
        return "embedded", f"engine embedded: {machine.problem}"
    count = f"{len(machine.gpus)} GPU" + "s" * (len(machine.gpus) > 1)
    found = find_environment("cuda")
    if found is not None:
        return "verl", f"engine verl: {count}, and verl {found.versions.get('verl', '')} in {found.python}"
    hindrance = cannot_install(machine)
    if hindrance:
        return "embedded", f"engine embedded: verl cannot be installed here: {hindrance}"
    return "verl", f"engine verl: {count}; its environment will be made first (./train.sh setup --engine verl)"


def cannot_install(machine: Machine) -> str | None:
    """Why the CUDA environment cannot be made on this machine; None when it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"its packages are for Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
    free = shutil.disk_usage(REPO).free / 1e9
    if free < FREE_GB:
        return f"it takes {FREE_GB} GB, and {REPO} has {free:.0f} GB left"
    oldest = min(machine.gpus, key=lambda gpu: gpu.capability)
    if oldest.capability < OLDEST_CARD:
        return f"its packages are for compute capability 7.5 and newer, and {oldest.name} has {oldest.shown}"
    return driver_problem(machine.driver, 13)


def _python_for(device: str) -> str:
    """The best Python for the list of this device, the launcher's own among equals. Raises EngineError."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    named = (shutil.which(f"python{version}") for version in PYTHONS[device])
    program = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    usable = {}
    for python in filter(None, (own, *named, shutil.which("python3"))):
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            usable.setdefault(done.stdout.strip(), python)
    for version in PYTHONS[device]:
        if version in usable:
            return usable[version]
    wanted = ", ".join(sorted(PYTHONS[device]))
    raise EngineError(
        f"verl's packages are for Python {wanted}, and none is on PATH with its venv module; install python3.11 "
        f"and python3.11-venv, or name a Python that has verl in {NAMED}"
    )
