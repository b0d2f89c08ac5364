"""train.sh and requirements/install.py: run from anywhere, one environment, installed once, one line when it fails."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

ROOMS = ("train.sh", "requirements", "configs", "recipes", "grpo", "data_prep", "reward_funcs")
RECORD = '[{"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"}]'


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command with the environment as it is, changed by `environment`; an empty value takes a name away."""
    variables = {key: value for key, value in (os.environ | environment).items() if environment.get(key) != ""}
    return subprocess.run([*map(str, words)], capture_output=True, text=True, env=variables, stdin=subprocess.DEVNULL)


@pytest.fixture
def copy(repo: Path, in_folder: Path) -> Path:
    """A copy of the product in a folder whose name has a space and Chinese characters."""
    place = in_folder / "我的 项目"
    place.mkdir()
    for room in ROOMS:
        if (repo / room).is_dir():
            shutil.copytree(repo / room, place / room, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(repo / room, place / room)
    return place


def only_tools(folder: Path) -> str:
    """A PATH with the commands that train.sh calls, and no Python."""
    folder.mkdir()
    for tool in ("bash", "dirname", "readlink", "cmp", "ls", "env", "uname"):
        found = shutil.which(tool)
        assert found
        (folder / tool).symlink_to(found)
    return str(folder)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_it_runs_through_links_from_any_folder_and_reads_paths_from_there(copy: Path, in_folder: Path):
    # S2-03 (Chinese paths), S2-04
    (in_folder / "数 据.json").write_text(RECORD, encoding="utf-8")
    (in_folder / "first link").symlink_to("我的 项目/train.sh")
    (in_folder / "bin").mkdir()
    (in_folder / "bin" / "训练").symlink_to("../first link")
    ran = run("bin/训练", "--dry_run=json", "--data", "数 据.json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["values"]["data.train_files"]["value"].endswith("数 据.json")
    assert ran.stderr == ""


@pytest.mark.slow
def test_modules_in_the_users_folder_are_not_taken_for_ours(copy: Path, in_folder: Path):
    for name in ("grpo", "configs", "yaml", "random", "runpy"):
        (in_folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    ran = run(copy / "train.sh", "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--rollout_n" in ran.stdout


@pytest.mark.slow
def test_a_python_without_the_packages_is_refused_by_name(repo: Path, in_folder: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "bare"], check=True)
    ran = run(repo / "train.sh", "--help", GRPO_PYTHON="bare/bin/python")
    assert ran.returncode == 2
    assert ran.stderr.startswith(
        "error: GRPO_PYTHON=bare/bin/python lacks torch, transformers, peft, safetensors, omegaconf"
    )
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("python", "line"),
    [
        ("nowhere/python", "error: GRPO_PYTHON=nowhere/python: there is no such program\n"),
        ("false", "error: GRPO_PYTHON=false does not run\n"),
    ],
)
def test_a_python_that_is_none_is_refused(repo: Path, python: str, line: str):
    ran = run(repo / "train.sh", "--help", GRPO_PYTHON=python)
    assert (ran.returncode, ran.stderr) == (2, line)


def test_without_a_python_it_says_which_ones_would_do(copy: Path, in_folder: Path):
    # a shim that pyenv left for a Python that is not there, and a Python that is too old
    path = only_tools(in_folder / "bin")
    script(in_folder / "bin" / "python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127\n")
    script(in_folder / "bin" / "python3", "exit 1\n")
    ran = run(copy / "train.sh", GRPO_PYTHON="", PATH=path, HOME=str(in_folder), PYENV_ROOT="")
    assert ran.returncode == 2
    assert ran.stderr == (
        "error: no Python 3.10, 3.11 or 3.12 found; install one (https://www.python.org) "
        "or set GRPO_PYTHON=/path/to/python\n"
    )


@pytest.mark.slow
def test_a_python_without_venv_says_which_package_to_add(copy: Path, in_folder: Path):
    path = only_tools(in_folder / "bin")
    answer = f'case "$2" in *ensurepip*) exit 1 ;; *) exec "{sys.executable}" "$@" ;; esac\n'
    python = script(in_folder / "bin" / "python3.12", answer)
    ran = run(copy / "train.sh", GRPO_PYTHON="", PATH=path, HOME=str(in_folder), PYENV_ROOT="")
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"error: {python} has no venv module (Debian, Ubuntu: apt install python3-venv)")


@pytest.mark.slow
def test_a_shim_that_fails_is_passed_over_and_a_foreign_venv_is_left_alone(copy: Path, in_folder: Path):
    path = only_tools(in_folder / "bin")
    script(in_folder / "bin" / "python3.11", "exit 127\n")
    script(in_folder / "bin" / "python3.10", f'exec "{sys.executable}" "$@"\n')
    (copy / ".venv").mkdir()
    (copy / ".venv" / "mine").write_text("")
    ran = run(copy / "train.sh", GRPO_PYTHON="", PATH=path, HOME=str(in_folder), PYENV_ROOT="")
    assert ran.returncode == 2
    assert "has no working pip; remove it" in ran.stderr
    assert (copy / ".venv" / "mine").exists()


@pytest.fixture
def installed(copy: Path) -> Path:
    """A copy as it is after an installation, with a Python that prints its folder and its arguments."""
    script(copy / ".venv" / "bin" / "python", r"""printf '%s\0' "$PWD" "$PYTHONPATH" "${@:3}" """)
    shutil.copyfile(copy / "requirements" / "embedded.txt", copy / ".venv" / ".installed-embedded")
    return copy


def test_once_installed_every_argument_arrives_as_it_was_typed(installed: Path, in_folder: Path):
    words = ["--data=a b.json", "", "*", "$HOME", "++a.b='c d'", '系统：\n"x"', "-n", "\\"]
    ran = run(installed / "train.sh", *words, GRPO_PYTHON="", PYTHONPATH="mine")
    assert ran.stdout.split("\0") == [str(in_folder), f"{installed}:mine", str(installed), *words, ""]
    assert ran.stderr == ""


@pytest.mark.slow
def test_once_installed_it_adds_less_than_a_tenth_of_a_second(installed: Path):
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        run(installed / "train.sh", "--help", GRPO_PYTHON="")
        took.append(time.perf_counter() - begun)
    assert min(took) < 0.1


def test_a_changed_list_of_packages_is_installed_again(installed: Path, in_folder: Path):
    path = only_tools(in_folder / "bin")
    known = {"GRPO_PYTHON": "", "PATH": path, "HOME": str(in_folder), "PYENV_ROOT": ""}
    assert run(installed / "train.sh", **known).returncode == 0
    with open(installed / "requirements" / "embedded.txt", "a") as file:
        file.write("# one more\n")
    assert "no Python 3.10, 3.11 or 3.12 found" in run(installed / "train.sh", **known).stderr


@pytest.mark.slow
def test_setup_prints_the_python_and_nothing_else(repo: Path):
    ran = run(repo / "train.sh", "--setup", "dev")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{sys.executable}\n", "")


@pytest.fixture
def install(copy: Path) -> ModuleType:
    """requirements/install.py of the copy, as a module."""
    spec = importlib.util.spec_from_file_location("install", copy / "requirements" / "install.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkout_that_cannot_be_written_is_one_line(install: ModuleType, capsys: pytest.CaptureFixture[str]):
    install.REPO = Path("/proc/nowhere")
    assert install.main(["embedded"]) == 2
    assert capsys.readouterr().err == (
        "error: /proc/nowhere cannot be written (No such file or directory); "
        "copy it to where you may write, or set GRPO_PYTHON\n"
    )


@pytest.mark.slow
def test_an_index_that_keeps_silent_is_given_up_in_time(install: ModuleType):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        begun = time.perf_counter()
        assert not install.answers(address, seconds=0.3)
        assert 0.2 < time.perf_counter() - begun < 1
    assert not install.answers(address, seconds=3)


def test_a_list_that_is_not_there_is_named(install: ModuleType):
    with pytest.raises(install.InstallError, match=r"requirements/nosuch\.txt: no such file"):
        install._install(install.Environment(install.REPO / ".venv"), "nosuch")


@pytest.fixture
def offline(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The same, where the index of CPU builds refuses at once, and machine and disk are as large as one likes."""
    monkeypatch.setattr(install, "CPU_INDEX", "http://127.0.0.1:9/whl/cpu")
    monkeypatch.setattr(install, "DEMANDS", {"verl-cpu": ((sys.version_info[:2],), 0)})
    return install


def a_python_that_notes_its_words(environment: Path) -> Path:
    """The environment as `python -m venv` leaves it, as far as install.py looks; answers the file of noted words."""
    environment.mkdir()
    (environment / ".unfinished").touch()
    script(environment / "bin" / "python", f'echo "$*" >>"{environment}/words"\n')
    (environment / ".unfinished").unlink()
    return environment / "words"


def test_each_set_of_verl_goes_into_an_environment_of_its_own(offline: ModuleType, copy: Path):
    words = a_python_that_notes_its_words(copy / ".venv-verl-cpu")
    assert offline.main(["verl-cpu"]) == 0
    listed = copy / "requirements" / "verl-cpu.txt"
    install_line = words.read_text().splitlines()[-1]
    assert install_line.startswith("-m pip install ")
    assert install_line.endswith(f" --no-deps -r {listed}")  # without its flag pip would take CUDA builds along
    assert (copy / ".venv-verl-cpu" / ".installed-verl-cpu").read_text() == listed.read_text()
    assert not (copy / ".venv").exists()
    assert not (copy / ".venv-verl-cpu" / ".unfinished").exists()

    words.unlink()
    assert offline.main(["verl-cpu"]) == 0
    assert words.read_text() == "-c import pip\n"  # nothing is installed twice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("demand", "line"),
    [
        ((((3, 99),), 0), r"error: requirements/verl-cpu\.txt is for Python 3\.99, not 3\.\d+\.\d+; install one"),
        (
            ((sys.version_info[:2],), 10**6),
            r"error: requirements/verl-cpu\.txt takes up to 1000000 GB, and .* GB left; free",
        ),
    ],
)
def test_what_verls_packages_cannot_do_is_said_before_anything_is_made(
    install: ModuleType, copy: Path, capsys: pytest.CaptureFixture[str], demand: object, line: str
):
    install.DEMANDS["verl-cpu"] = demand
    assert install.main(["verl-cpu"]) == 2
    assert re.match(line, capsys.readouterr().err)
    assert not (copy / ".venv-verl-cpu").exists()


@pytest.mark.slow
def test_a_failed_flash_attn_leaves_verls_environment_as_it_was(
    install: ModuleType, copy: Path, capsys: pytest.CaptureFixture[str]
):
    environment = copy / ".venv-verl-cuda"
    a_python_that_notes_its_words(environment)
    script(environment / "bin" / "python", '[ "$1" = -c ] || { echo "RuntimeError: no nvcc"; exit 1; }\n')
    assert install.main(["flash-attn"]) == 2
    said = capsys.readouterr().err
    assert "RuntimeError: no nvcc" in said
    assert "error: requirements/flash-attn.txt could not be installed; the whole log is" in said
    assert not (environment / ".unfinished").exists()


@pytest.mark.slow
def test_the_cpu_build_of_torch_that_is_out_of_reach_is_named(
    offline: ModuleType, copy: Path, capsys: pytest.CaptureFixture[str]
):
    environment = copy / ".venv-verl-cpu"
    a_python_that_notes_its_words(environment)
    pip_says = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    script(environment / "bin" / "python", f'[ "$1" = -c ] || {{ echo "{pip_says}"; exit 1; }}\n')
    assert offline.main(["verl-cpu"]) == 2
    assert "could not be installed (torch for CPUs comes from http://127.0.0.1:9/whl/cpu" in capsys.readouterr().err
    assert (environment / ".unfinished").exists()


@pytest.mark.slow
def test_the_sets_of_verl_are_looked_for_where_they_are(installed: Path, in_folder: Path):
    path = only_tools(in_folder / "bin")
    known = {"GRPO_PYTHON": "", "PATH": path, "HOME": str(in_folder), "PYENV_ROOT": ""}
    script(installed / ".venv-verl-cpu" / "bin" / "python", "exit 1\n")
    stamp = installed / ".venv-verl-cpu" / ".installed-verl-cpu"
    shutil.copyfile(installed / "requirements" / "verl-cpu.txt", stamp)
    ran = run(installed / "train.sh", "--setup", "verl-cpu", **known)
    assert (ran.returncode, ran.stdout) == (0, f"{installed}/.venv/bin/python\n")
    stamp.unlink()
    assert "no Python 3.10, 3.11 or 3.12 found" in run(installed / "train.sh", "--setup", "verl-cpu", **known).stderr


@pytest.mark.slow
def test_a_bare_checkout_installs_once_and_an_interrupted_installation_is_begun_again(
    copy: Path, missing: Callable[[str], NoReturn]
):
    def start(*words: str) -> subprocess.Popen[str]:
        variables = {key: value for key, value in os.environ.items() if key not in ("GRPO_PYTHON", "PYTHONPATH")}
        return subprocess.Popen(
            [copy / "train.sh", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
            start_new_session=True,
        )

    killed = start("--help")
    deadline = time.monotonic() + 60
    while not (copy / ".venv" / ".unfinished").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert (copy / ".venv" / ".unfinished").exists()

    two = [start("--help"), start("--help")]
    outs = [process.communicate(timeout=900) for process in two]
    if any("no package index could be reached" in err for _, err in outs):
        missing("a package index, to try a first start; connect to the network or configure pip")
    assert [process.returncode for process in two] == [0, 0], outs
    assert all("--rollout_n" in out for out, _ in outs)
    # one installed, the other waited; neither printed pip's noise
    said = "".join(err for _, err in outs)
    assert said.count("making ") == 1
    assert said.count("installing requirements/embedded.txt") == 1
    assert said.count("waiting for it") == 1
    assert len(said.splitlines()) <= 5
    assert not (copy / ".venv" / ".unfinished").exists()

    again = start("--help")
    assert again.communicate(timeout=60)[1] == ""
