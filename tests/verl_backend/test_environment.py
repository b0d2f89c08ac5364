"""Where verl's environment is found, and how it is made."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from grpo.engine import EngineError
from grpo.verl_backend.installation import environment as room
from grpo.verl_backend.installation import places
from grpo.verl_backend.installation.environment import (
    NAMED,
    environment_problems,
    find_environment,
    install_environment,
)
from grpo.verl_backend.installation.places import VerlEnvironment
from tests.verl_backend.machines import CUDA, T4, bare_machine, cards, nvidia_smi, python_with


@pytest.fixture(autouse=True)
def _a_bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bare_machine(tmp_path, monkeypatch)


def test_a_named_python_that_is_none_or_has_no_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(NAMED, "nowhere/python")
    with pytest.raises(EngineError, match=f"^{NAMED}=nowhere/python: there is no such program$"):
        find_environment("cuda")
    monkeypatch.setenv(NAMED, "false")
    with pytest.raises(EngineError, match=f"^{NAMED}=false does not run: "):
        find_environment("cuda")
    python = python_with(tmp_path, {})
    monkeypatch.setenv(NAMED, str(python))
    with pytest.raises(EngineError) as caught:
        find_environment("cuda")
    assert str(caught.value) == (
        f"{NAMED}={python} has no verl: {python} -m pip install verl==0.9.1 vllm==0.24.0 torch==2.11.0 "
        "transformers==5.9.0 transferqueue==0.1.11"
    )


def made(device: str, versions: dict[str, str]) -> Path:
    """An environment as install.py leaves it."""
    folder = places.REPO / f".venv-verl-{device}"
    site = python_with(folder, versions).parent / "site"
    (folder / "lib" / "python3.11").mkdir(parents=True)
    site.rename(folder / "lib" / "python3.11" / "site-packages")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    shutil.copyfile(places.REPO / "requirements" / f"verl-{device}.txt", folder / f".installed-verl-{device}")
    return folder


def test_a_path_with_a_space_has_a_name_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ray's workers start through `bash -c "exec PYTHON"`, torch.compile's through g++ -I; neither is quoted there."""
    plain = VerlEnvironment(tmp_path / "环境" / "bin" / "python", tmp_path, {})
    assert plain.program == str(plain.python)
    python = tmp_path / "环境 1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = VerlEnvironment(python, tmp_path, {}).program
    assert " " not in program
    assert program == VerlEnvironment(python, tmp_path, {}).program
    assert Path(program).parent.parent.samefile(tmp_path / "环境 1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    with pytest.raises(EngineError, match="环境 1: verl does not run from a folder with such a name"):
        VerlEnvironment(python, tmp_path, {}).program  # noqa: B018


def test_ours_is_found_once_it_is_finished_from_the_list_as_it_is():
    assert find_environment("cuda") is None
    folder = made("cuda", CUDA)
    found = find_environment("cuda")
    assert found
    assert found.ours
    assert (found.python, found.versions["python"]) == (folder / "bin" / "python", "3.11.7")
    assert found.packages == folder / "lib" / "python3.11" / "site-packages"
    assert find_environment("cpu") is None

    (folder / ".unfinished").touch()
    assert find_environment("cuda") is None
    (folder / ".unfinished").unlink()
    with open(places.REPO / "requirements" / "verl-cuda.txt", "a") as listed:
        listed.write("# changed\n")
    assert find_environment("cuda") is None


def test_ours_needs_a_driver_for_cuda_13_and_mends_from_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nvidia_smi(tmp_path / "bin", monkeypatch, cards(1, T4))
    folder = made("cuda", CUDA)
    shutil.rmtree(folder / "lib" / "python3.11" / "site-packages" / "ray")
    found = find_environment("cuda")
    assert found
    python = folder / "bin" / "python"
    assert environment_problems(found, "cuda") == [
        f"ray is missing for {python} (`import ray` would fail): {python} -m pip install --no-deps ray==2.60.0",
        "NVIDIA driver 550.163.01 is too old for CUDA 13, which needs 580 or newer: update the driver, or name a "
        f"Python with verl for an older CUDA in {NAMED}",
    ]


@pytest.mark.slow
def test_an_installation_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    said: list[str] = []
    with pytest.raises(EngineError, match=r"^the disk is full$"):
        install_environment("cpu", said.append)
    assert said == ["making it"]


@pytest.mark.slow
def test_no_python_for_the_packages_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(room.PYTHONS, "cpu", ("3.99",))
    with pytest.raises(EngineError, match=r"^verl's packages are for Python 3\.99, and none is on PATH"):
        install_environment("cpu", print)
