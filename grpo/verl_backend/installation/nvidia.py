"""What nvidia-smi says about this machine: GPUs, driver, and which attention they can run. Imports no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

FIELDS = ("index", "uuid", "name", "memory.total", "driver_version", "compute_cap")
FLASH_ATTENTION = (8, 0)  # flash-attn 2 needs Ampere or newer
DRIVERS = {13: 580, 12: 525}  # CUDA's major version -> the oldest driver branch for Linux that runs it
SECONDS = 60.0  # without persistence mode each GPU may take seconds to answer


@dataclass(frozen=True)
class Gpu:
    """One GPU. index: nvidia-smi's; memory: bytes; capability: compute capability, (9, 0) on an H100."""

    index: int
    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def shown(self) -> str:
        """The compute capability as NVIDIA writes it: "9.0"."""
        return ".".join(map(str, self.capability))


@dataclass(frozen=True)
class Machine:
    """gpus: that this process may use; driver: "580.95.05" or ""; problem: why there are no GPUs, one line."""

    gpus: tuple[Gpu, ...]
    driver: str = ""
    problem: str = ""


def visible_gpus() -> list[Gpu]:
    """The GPUs that this process may use: nvidia-smi's, as far as CUDA_VISIBLE_DEVICES lets through."""
    return list(look().gpus)


def look(environ: Mapping[str, str] = os.environ) -> Machine:
    """This machine's GPUs and driver. Asks nvidia-smi once; without that program it answers at once."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", "") + os.pathsep + "/usr/lib/wsl/lib")
    if program is None:
        return Machine((), problem="no NVIDIA GPU found: there is no nvidia-smi on this machine")
    rows, problem = _ask(program)
    if problem:
        return Machine((), problem=problem)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = rows if visible is None else _chosen(rows, visible)
    gpus = tuple(_gpu(row) for row in chosen)
    driver = rows[0]["driver_version"] if rows else ""
    if gpus:
        return Machine(gpus, driver)
    if rows:
        hidden = f"CUDA_VISIBLE_DEVICES={visible} lets none of this machine's {len(rows)} GPUs through; unset it"
        return Machine((), driver, hidden)
    return Machine((), driver, "no NVIDIA GPU found: nvidia-smi lists none")


def driver_problem(driver: str, cuda: int) -> str | None:
    """Why this driver cannot run packages built for CUDA `cuda`, one line; None when it can, or when it is unknown."""
    branch, needed = driver.partition(".")[0], DRIVERS[cuda]
    if not branch.isdigit() or int(branch) >= needed:
        return None
    return f"NVIDIA driver {driver} is too old for CUDA {cuda}, which needs {needed} or newer: update the driver"


def attention_for(gpus: list[Gpu], versions: Mapping[str, str] | None = None) -> tuple[str, str]:
    """("flash_attention_2" or "sdpa", why). versions: of the environment; None = flash-attn will be there."""
    if not gpus:
        return "sdpa", "PyTorch's own attention: flash-attn needs a GPU"
    oldest = min(gpus, key=lambda gpu: gpu.capability)
    if oldest.capability < FLASH_ATTENTION:
        return (
            "sdpa",
            f"PyTorch's own attention: flash-attn needs compute capability 8.0, and {oldest.name} has {oldest.shown}",
        )
    if versions is not None and "flash-attn" not in versions:
        return "sdpa", "PyTorch's own attention: flash-attn is not installed (setup --flash_attn compiles it)"
    return "flash_attention_2", f"{oldest.name} has compute capability {oldest.shown}"


@cache
def _ask(program: str) -> tuple[list[dict[str, str]], str]:
    """nvidia-smi's rows, or why there are none."""
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return [], f"{program} has not answered for {SECONDS:.0f} s: the driver hangs; restart the machine"
    except OSError as problem:
        return [], f"{program} does not run: {problem.strerror}"
    said = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode == 6 or "No devices were found" in done.stdout:  # its status for "a device was not found"
        return [], ""
    if "is not a valid field" in done.stdout + done.stderr:
        return (
            [],
            f"the NVIDIA driver is too old ({program}: {said[0]}): CUDA 13 needs {DRIVERS[13]} or newer; update it",
        )
    if done.returncode != 0:
        return [], f"{program} fails: {said[0] if said else f'exit status {done.returncode}'}"
    return [dict(zip(FIELDS, _cells(line), strict=True)) for line in said if line.strip()], ""


def _cells(line: str) -> list[str]:
    """A name may hold commas; the numbers around it do not."""
    cells = [cell.strip() for cell in line.split(",")]
    extra = len(cells) - len(FIELDS)
    return [*cells[:2], ", ".join(cells[2 : 3 + extra]), *cells[3 + extra :]]


def _chosen(rows: list[dict[str, str]], visible: str) -> list[dict[str, str]]:
    """As CUDA reads the variable: numbers or beginnings of UUIDs; the first that fits no GPU ends the list."""
    chosen = []
    for word in (part.strip() for part in visible.split(",")):
        fits = [
            row for row in rows if row["index"] == word or (word.startswith("GPU-") and row["uuid"].startswith(word))
        ]
        if len(fits) != 1 or fits[0] in chosen:
            break
        chosen += fits
    return chosen


def _gpu(row: dict[str, str]) -> Gpu:
    major, _, minor = row["compute_cap"].partition(".")
    memory = row["memory.total"]  # MiB; "[N/A]" where CPU and GPU share it
    return Gpu(
        int(row["index"]), row["name"], int(memory) * 2**20 if memory.isdigit() else 0, (int(major), int(minor or 0))
    )
