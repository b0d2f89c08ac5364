"""What nvidia-smi says, CUDA_VISIBLE_DEVICES, which attention a card can run, and what `--engine auto` makes of it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo.verl_backend.installation import environment as room
from grpo.verl_backend.installation.environment import NAMED, Gpu, attention_for, automatic_engine, look, visible_gpus
from tests.verl_backend.machines import CUDA, H100, T4, V100, bare_machine, cards, nvidia_smi, python_with


@pytest.fixture(autouse=True)
def _a_bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bare_machine(tmp_path, monkeypatch)


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(2))
    # 81559 MiB
    h100 = {"name": "NVIDIA H100 80GB HBM3", "memory": 85520809984, "capability": (9, 0)}
    assert visible_gpus() == [Gpu(0, **h100), Gpu(1, **h100)]
    assert look().driver == "580.95.05"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("1,0", [1, 0]),
        (" 2 ", [2]),
        ("1,9,0", [1]),  # CUDA stops at the first that is not there
        ("GPU-5a1c3f0e-2b", [2]),
        ("GPU-5a1c3f0e", []),  # the beginning of three
        ("", []),
        ("-1", []),
        ("1,1", [1]),
    ],
)
def test_cuda_visible_devices_chooses_as_cuda_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, seen: list[int]
):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(3))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in visible_gpus()] == seen
    if not seen:
        assert look().problem == f"CUDA_VISIBLE_DEVICES={visible} lets none of this machine's 3 GPUs through; unset it"


@pytest.mark.parametrize(
    ("text", "status", "problem"),
    [
        ("No devices were found", 6, "no NVIDIA GPU found: nvidia-smi lists none"),
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            18,
            "nvidia-smi fails: Failed to initialize NVML",
        ),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "couldn't communicate"),
        ('Field "compute_cap" is not a valid field to query.', 2, "the NVIDIA driver is too old"),
    ],
)
def test_an_nvidia_smi_that_fails_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int, problem: str
):
    nvidia_smi(tmp_path / "bin", monkeypatch, text, status)
    assert visible_gpus() == []
    engine, why = automatic_engine()
    assert engine == "embedded"
    assert problem in why


def test_attention_is_what_the_oldest_card_and_the_packages_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """S0-34: without flash-attention, PyTorch's own"""
    h100, v100 = Gpu(0, "H100", 0, (9, 0)), Gpu(1, "V100", 0, (7, 0))
    assert attention_for([h100]) == ("flash_attention_2", "H100 has compute capability 9.0")
    assert attention_for([Gpu(0, "A100", 0, (8, 0))], {"flash-attn": "2.8.3"})[0] == "flash_attention_2"
    assert attention_for([h100, v100]) == (
        "sdpa",
        "PyTorch's own attention: flash-attn needs compute capability 8.0, and V100 has 7.0",
    )
    assert attention_for([h100], CUDA)[0] == "sdpa"
    assert attention_for([], CUDA)[0] == "sdpa"


@pytest.mark.parametrize(
    ("row", "engine", "why"),
    [
        (H100, "verl", "engine verl: 2 GPUs; its environment will be made first (./train.sh setup --engine verl)"),
        (
            V100,
            "embedded",
            "engine embedded: verl cannot be installed here: its packages are for compute capability 7.5 and newer, "
            "and Tesla V100-SXM2-16GB has 7.0",
        ),
        (
            T4,
            "embedded",
            "engine embedded: verl cannot be installed here: NVIDIA driver 550.163.01 is too old for CUDA 13, which "
            "needs 580 or newer: update the driver",
        ),
    ],
)
def test_auto_takes_verl_where_gpus_can_run_what_would_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, engine: str, why: str
):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(2, row))
    assert automatic_engine() == (engine, why)
    monkeypatch.setattr(room, "FREE_GB", 10**9)
    assert automatic_engine()[1].startswith("engine embedded: verl cannot be installed here: it takes 1000000000 GB")


def test_auto_takes_verl_where_it_is_installed_even_with_an_older_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(1, T4))
    python = python_with(tmp_path, CUDA)
    monkeypatch.setenv(NAMED, str(python))
    assert automatic_engine() == ("verl", f"engine verl: 1 GPU, and verl 0.9.1 in {python}")
    assert automatic_engine("cpu") == ("embedded", "engine embedded: device cpu was asked for")


@pytest.mark.slow
def test_without_gpus_the_answer_is_there_at_once_and_without_torch(tmp_path: Path):
    program = """
import sys, time
begun = time.perf_counter()
from grpo.verl_backend.installation.environment import automatic_engine
answer = automatic_engine()
print(answer[1])
assert "torch" not in sys.modules
assert time.perf_counter() - begun < 0.5, time.perf_counter() - begun
"""
    repo = Path(__file__).resolve().parents[2]
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(repo), "PATH": "/none"},
            capture_output=True,
            text=True,
        )
        took.append(time.perf_counter() - begun)
        assert done.stdout == "engine embedded: no NVIDIA GPU found: there is no nvidia-smi on this machine\n", (
            done.stderr
        )
    begun = time.perf_counter()
    automatic_engine()
    assert time.perf_counter() - begun < 0.1
