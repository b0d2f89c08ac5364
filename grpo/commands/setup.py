"""`./train.sh setup --engine verl`: make the environment that verl runs in, and check this machine for it.

Prints what it finds and ends with the one thing to mend, or with the command to go on with. Nothing is trained.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

from grpo.config import ConfigError
from grpo.engine import EngineError
from grpo.verl_backend.installation.environment import (
    NAMED,
    Machine,
    VerlEnvironment,
    attention_for,
    cannot_install,
    environment_problems,
    find_environment,
    import_problems,
    install_environment,
    look,
)

SHOWN = ("verl", "ray", "vllm", "torch", "transformers", "tensordict", "transferqueue", "flash-attn")
CUDA = 13  # what requirements/verl-cuda.txt is built for


def main(argv: list[str]) -> int:
    """Run the command. Raises ConfigError for wrong words, EngineError with the one thing to mend."""
    given = _arguments(argv)
    again = "./train.sh setup --engine verl" + (" --device cpu" if given.device == "cpu" else "")
    machine = look() if given.device == "cuda" else Machine(())
    found = find_environment(given.device)
    if given.device == "cuda":
        _show_gpus(machine, found)
    else:
        _show_processor()
    if found is None and given.check:
        raise EngineError(f"verl's environment is not there yet; `{again}` makes it")
    if given.flash_attn:
        _can_compile_flash_attention(machine, found)
    if found is None or given.flash_attn:
        extra = "flash-attn" if given.flash_attn else None
        found = install_environment(given.device, lambda line: print(line, flush=True), extra=extra)
    _show_packages(found, machine, given.device)
    print(f"all there; train with: ./train.sh --engine verl {_rest(given.device, machine)}--data FILE --model MODEL")
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./train.sh setup",
        description="Make the environment that verl runs in, and check this machine for it.",
        epilog=f"{NAMED}=/path/to/python names a Python of yours that has verl (that of a Docker image, say): it is "
        "checked and used instead, and nothing is installed into it.",
        allow_abbrev=False,
    )
    parser.error = _refuse
    parser.add_argument("--engine", choices=("verl",), required=True, help="the embedded engine needs no setup")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: real verl without a GPU, to debug a run [cuda]"
    )
    parser.add_argument("--check", action="store_true", help="install nothing, only look")
    parser.add_argument(
        "--flash_attn", "--flash-attn", action="store_true", help="compile flash-attn too (up to an hour; needs nvcc)"
    )
    given = parser.parse_args(argv)
    if given.flash_attn and (given.check or given.device == "cpu"):
        _refuse(f"--flash_attn does not go with {'--check' if given.check else '--device cpu'}")
    return given


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"./train.sh setup: {message}; see ./train.sh setup --help")


def _row(label: str, text: str) -> None:
    print(f"{label:<14} {text}", flush=True)


def _show_gpus(machine: Machine, found: VerlEnvironment | None) -> None:
    """GPUs and driver; raises EngineError where verl cannot run on them, or not be installed for them."""
    if not machine.gpus:
        raise EngineError(f"{machine.problem}; --device cpu makes an environment without one, for debugging")
    for gpu in machine.gpus:
        memory = f"{gpu.memory / 2**30:.0f} GiB, " if gpu.memory else ""
        _row(f"GPU {gpu.index}", f"{gpu.name}, {memory}compute capability {gpu.shown}")
    _row("driver", machine.driver)
    hindrance = cannot_install(machine) if found is None else None
    if hindrance:
        raise EngineError(f"{hindrance}; or name a Python that has verl in {NAMED}")


def _show_processor() -> None:
    """Processor and memory; raises EngineError where vLLM's CPU build has no code for the processor."""
    flags = re.search(r"^flags\s*:(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    has = set(flags[1].split()) if flags else set()
    _row(
        "processor",
        f"{os.cpu_count()} cores, {'AVX-512' if 'avx512f' in has else 'AVX2' if 'avx2' in has else 'no AVX2'}",
    )
    if flags and "avx2" not in has:
        raise EngineError("vLLM's CPU build needs a processor with AVX2; --engine embedded runs on this one")
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    if available:
        _row("memory", f"{int(available[1]) / 2**20:.0f} GiB free (verl takes 7 with a tiny model)")


def _show_packages(found: VerlEnvironment, machine: Machine, device: str) -> None:
    """The environment, and whether it works; raises EngineError with the first thing that does not."""
    _row("Python", f"{found.python} ({found.versions['python']})")
    for name in SHOWN:
        if name in found.versions:
            _row(name, found.versions[name])
    problems = environment_problems(found, device)
    if device == "cuda":
        attention, why = attention_for(list(machine.gpus), found.versions)
        _row("attention", f"{attention}{' + use_remove_padding=False' if attention == 'sdpa' else ''} ({why})")
        problems += _cannot_compile(found)
    problems = problems or import_problems(found)
    if problems:
        raise EngineError(problems[0])
    _row("imports", "all work")


def _cannot_compile(found: VerlEnvironment) -> list[str]:
    """Triton compiles its kernels with the C compiler and the Python headers of the machine, in the middle of a run."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return ["there is no C compiler, which Triton calls for its kernels: apt install gcc"]
    _row("C compiler", compiler)
    program = "import sysconfig; print(sysconfig.get_path('include'))"
    folder = subprocess.run([found.python, "-c", program], capture_output=True, text=True).stdout.strip()
    if not Path(folder, "Python.h").is_file():
        minor = ".".join(found.versions["python"].split(".")[:2])
        return [f"{folder} has no Python.h, which Triton needs for its kernels: apt install python{minor}-dev"]
    return []


def _can_compile_flash_attention(machine: Machine, found: VerlEnvironment | None) -> None:
    """Raises EngineError where it would be in vain."""
    if found is not None and not found.ours:
        raise EngineError(f"{NAMED} is yours: {found.python} -m pip install --no-build-isolation flash-attn==2.8.3")
    attention, why = attention_for(list(machine.gpus))
    if attention == "sdpa":
        raise EngineError(f"--flash_attn: {why}")
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc", path=os.pathsep.join([f"{home}/bin", os.environ.get("PATH", "")]))
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout if nvcc else ""
    release = re.search(r"release (\d+)\.", said)
    if release is None or int(release[1]) != CUDA:
        there = f"{nvcc} is of CUDA {release[1]}" if release else "there is no nvcc"
        raise EngineError(
            f"--flash_attn compiles with nvcc of CUDA {CUDA}, and {there}; leave it out, or set CUDA_HOME"
        )
    _row("nvcc", str(nvcc))


def _rest(device: str, machine: Machine) -> str:
    return "--device cpu " if device == "cpu" else f"--n_gpus {len(machine.gpus)} "


def _text(path: str) -> str:
    file = Path(path)
    return file.read_text(encoding="utf-8") if file.is_file() else ""
