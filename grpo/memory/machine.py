"""How much memory there is: what the user says, what nvidia-smi says, or this machine's own; and which card it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from grpo.config import ConfigError
from grpo.memory import constants
from grpo.verl_backend.installation.nvidia import visible_gpus

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def read_bytes(text: str) -> int:
    """`80GB`, `80G`, `74.5GiB`, or plain bytes; raises ConfigError."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]i?)?B?\s*", text, re.IGNORECASE)
    try:
        size = int(float(found[1]) * _UNITS[(found[2] or "").upper()]) if found else 0
    except ValueError:
        size = 0
    if size < 10**6:
        raise ConfigError(f"--memory {text}: not an amount of memory; write --memory 80GB or --memory 74.5GiB")
    return size


def read_card(text: str) -> str:
    """The card of constants.CARDS whose name `text` holds; raises ConfigError."""
    if card := card_of(text):
        return card
    raise ConfigError(f"--gpu {text}: no peak numbers are known of it; known are {', '.join(constants.CARDS)}")


def card_of(name: str) -> str | None:
    """`NVIDIA H100 80GB HBM3` -> H100; None for a card that is not in the list."""
    words = re.split(r"[\s_-]+", name.upper())
    return next((card for card in constants.CARDS if card.upper() in words), None)


def gpu_here() -> tuple[str, int] | None:
    """(name, bytes) of the smallest visible GPU; None without one."""
    gpus = visible_gpus()
    smallest = min(gpus, key=lambda gpu: gpu.memory, default=None)
    return None if smallest is None else (smallest.name, smallest.memory)


def memory_here() -> int:
    """Bytes of this machine, or of the container that this process is in."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(file).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            there = min(there, int(limit))
    return there


def threads_here() -> int:
    """Threads that torch takes on this CPU: as many as OMP_NUM_THREADS says, else the processors for this process."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if said.isdigit() and int(said):
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
