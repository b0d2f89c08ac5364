"""`./train.sh setup --engine verl`: what it finds on a machine, and the one thing to mend."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from grpo.commands import setup
from grpo.config import ConfigError
from grpo.engine import EngineError
from grpo.verl_backend.installation.environment import NAMED
from tests.verl_backend.machines import CPU, CUDA, H100, T4, bare_machine, cards, nvidia_smi, python_with

VERL = ["--engine", "verl"]
CHECK = [*VERL, "--check"]


@pytest.fixture(autouse=True)
def _a_bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bare_machine(tmp_path, monkeypatch)


def refused(*words: str) -> str:
    with pytest.raises(EngineError) as caught:
        setup.main([*words])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "the following arguments are required: --engine"),
        (["--engine", "embedded"], "argument --engine: invalid choice: 'embedded'"),
        ([*VERL, "--devise", "cpu"], "unrecognized arguments: --devise cpu"),
        ([*VERL, "--flash_attn", "--device", "cpu"], "--flash_attn does not go with --device cpu"),
        ([*CHECK, "--flash-attn"], "--flash_attn does not go with --check"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], says: str):
    with pytest.raises(ConfigError) as caught:
        setup.main(words)
    assert str(caught.value).startswith(f"./train.sh setup: {says}")
    assert str(caught.value).endswith("; see ./train.sh setup --help")


def test_without_a_gpu_it_says_what_works_without_one():
    assert refused(*VERL) == (
        "no NVIDIA GPU found: there is no nvidia-smi on this machine; --device cpu makes an environment without one, "
        "for debugging"
    )


def test_the_gpus_are_shown_and_an_old_driver_is_the_one_thing_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(2, T4))
    assert refused(*VERL) == (
        "NVIDIA driver 550.163.01 is too old for CUDA 13, which needs 580 or newer: update the driver; or name a "
        f"Python that has verl in {NAMED}"
    )
    assert capsys.readouterr().out == (
        "GPU 0          Tesla T4, 15 GiB, compute capability 7.5\n"
        "GPU 1          Tesla T4, 15 GiB, compute capability 7.5\n"
        "driver         550.163.01\n"
    )


def test_a_check_installs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(8))
    assert refused(*CHECK) == "verl's environment is not there yet; `./train.sh setup --engine verl` makes it"
    cpu = "verl's environment is not there yet; `./train.sh setup --engine verl --device cpu` makes it"
    assert refused(*CHECK, "--device", "cpu") == cpu
    assert [path.name for path in (tmp_path / "checkout").iterdir()] == ["requirements"]


def test_a_sound_environment_ends_with_the_command_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    python = python_with(tmp_path, CPU)
    monkeypatch.setenv(NAMED, str(python))
    assert setup.main([*VERL, "--device", "cpu"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[:3]] == ["processor", "memory", "Python"]
    assert rows[2:] == [
        f"Python         {python} ({sys.version.split()[0]})",
        "verl           0.9.1",
        "ray            2.60.0",
        "vllm           0.31.0",
        "torch          2.13.0+cpu",
        "transformers   5.10.4",
        "tensordict     0.10.0",
        "transferqueue  0.1.11",
        "imports        all work",
        "all there; train with: ./train.sh --engine verl --device cpu --data FILE --model MODEL",
    ]


def test_the_attention_is_told_and_the_first_problem_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(1))
    python = python_with(tmp_path, {name: version for name, version in CUDA.items() if name != "transferqueue"})
    monkeypatch.setenv(NAMED, str(python))
    assert refused(*VERL) == (
        f"transferqueue is missing for {python} (`import transfer_queue` would fail): "
        f"{python} -m pip install transferqueue==0.1.11"
    )
    said = capsys.readouterr().out
    attention = "sdpa + use_remove_padding=False (PyTorch's own attention: flash-attn is not installed"
    assert f"\nattention      {attention}" in said


def test_a_machine_without_a_c_compiler_is_told_before_triton_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(1))
    cat = shutil.which("cat")
    assert cat
    (tmp_path / "bin" / "cat").symlink_to(cat)  # all that the program of that name needs
    monkeypatch.setenv(NAMED, str(python_with(tmp_path, CUDA)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    assert refused(*VERL) == "there is no C compiler, which Triton calls for its kernels: apt install gcc"


@pytest.mark.parametrize(
    ("row", "nvcc", "says"),
    [
        (
            T4.replace("550.163.01", "580.95.05"),
            "13.0",
            "flash-attn needs compute capability 8.0, and Tesla T4 has 7.5",
        ),
        (
            H100,
            None,
            "--flash_attn compiles with nvcc of CUDA 13, and there is no nvcc; leave it out, or set CUDA_HOME",
        ),
        (H100, "12.8", "/nvcc is of CUDA 12; leave it out, or set CUDA_HOME"),
    ],
)
def test_flash_attn_is_not_begun_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, nvcc: str | None, says: str
):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(1, row))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    if nvcc:
        program = tmp_path / "bin" / "nvcc"
        program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {nvcc}, V{nvcc}.88'\n")
        program.chmod(0o755)
    assert refused(*VERL, "--flash_attn").endswith(says)


def test_flash_attn_is_not_put_into_an_environment_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(1))
    python = python_with(tmp_path, CUDA)
    monkeypatch.setenv(NAMED, str(python))
    assert refused(*VERL, "--flash_attn") == (
        f"{NAMED} is yours: {python} -m pip install --no-build-isolation flash-attn==2.8.3"
    )
