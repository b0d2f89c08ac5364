"""Writes a complete list of verl's packages again from its first paragraph, or checks it. Leaves out installing.

python requirements/lock.py verl-cuda           after a change of the pins above "# needed by those"; needs uv
python requirements/lock.py --check verl-cuda   whether every declared requirement of every pin is met by the pins
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEEDED = "# needed by those"
PLATFORM = "x86_64-manylinux_2_28"
# Which Pythons a list is for, and packages that are left out of it although others declare them: their only builds
# in the ordinary index are for CUDA, and beside a CPU build of torch they break `import transformers`.
PYTHONS = {"verl-cuda": ("3.10", "3.11", "3.12"), "verl-cpu": ("3.11", "3.12")}
LEFT_OUT = {"verl-cpu": ("torchvision", "torchaudio", "torchcodec")}
PIN = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; python_version (?P<op><|>=|==) \"(?P<python>[\d.]+)\")?$"
)
_TESTS = {"<": lambda a, b: a < b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, None: lambda a, b: True}


def main(words: list[str]) -> int:
    """The command; returns its exit status."""
    check, names = "--check" in words, [word for word in words if word != "--check"]
    try:
        if not check:
            for name in names:
                write(name)
            return 0
        lines = [
            f"requirements/{name}.txt, Python {python}: {line}"
            for name in names
            for python in PYTHONS[name]
            for line in differences(name, python)
        ]
    except FileNotFoundError:
        lines = ["uv is not installed; requirements/dev.txt has it"]
    except subprocess.CalledProcessError as problem:
        lines = [problem.stderr.strip()]
    print("\n".join(lines))
    return 1 if lines else 0


def pins(text: str, python: str) -> dict[str, str]:
    """The versions that a list gives this Python ("3.11"), by canonical name; raises ValueError for a line it lacks."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        pin = PIN.match(line)
        if pin is None:
            raise ValueError(f"not NAME==VERSION, perhaps with one python_version: {line}")
        if _TESTS[pin["op"]](_numbers(python), _numbers(pin["python"] or "0")):
            found[re.sub(r"[-_.]+", "-", pin["name"]).lower()] = pin["version"]
    return found


def resolve(name: str, text: str, python: str) -> dict[str, str]:
    """What uv makes of these requirements for this Python on Linux, x86-64. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, overrides = Path(folder, "wanted.txt"), Path(folder, "overrides.txt")
        wanted.write_text(text)
        overrides.write_text("".join(f'{package} ; python_version < "0"\n' for package in LEFT_OUT.get(name, ())))
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") or "uv"
        options = ("--no-header", "--no-annotate", "--quiet", "--no-config", "--python-platform", PLATFORM)
        command = [uv, "pip", "compile", *options, "--python-version", python, "--overrides", overrides, wanted]
        finished = subprocess.run([*command, *_index(name)], capture_output=True, text=True, check=True)
    return pins(finished.stdout, python)


def differences(name: str, python: str) -> list[str]:
    """What is missing from a list, one line each. Pins that contradict each other raise CalledProcessError."""
    text = (HERE / f"{name}.txt").read_text(encoding="utf-8")
    ours, theirs = pins(text, python), resolve(name, text, python)
    return [f"{package}=={theirs[package]} is missing" for package in sorted(theirs.keys() - ours.keys())]


def write(name: str) -> None:
    """Resolve what stands above NEEDED, and write all that it brings below."""
    file = HERE / f"{name}.txt"
    head = file.read_text(encoding="utf-8").partition(NEEDED)[0].rstrip()
    resolved = {python: resolve(name, head, python) for python in PYTHONS[name]}
    direct = pins(head, PYTHONS[name][-1])
    lines = []
    for package in sorted(set().union(*resolved.values()) - set(direct)):
        versions = {python: found[package] for python, found in resolved.items() if package in found}
        lines += [f"{package}=={version}{marker}" for version, marker in _marked(versions, PYTHONS[name])]
    file.write_text("\n".join([head, "", NEEDED, *lines, ""]), encoding="utf-8")


def _marked(versions: dict[str, str], pythons: tuple[str, ...]) -> list[tuple[str, str]]:
    """Each version with the marker that says which of the Pythons take it."""
    rows = []
    for version in dict.fromkeys(versions.values()):
        takers = [python for python in pythons if versions.get(python) == version]
        if len(takers) == len(pythons):
            rows.append((version, ""))
        elif takers[-1] == pythons[-1]:
            rows.append((version, f' ; python_version >= "{takers[0]}"'))
        elif takers[0] == pythons[0]:
            rows.append((version, f' ; python_version < "{pythons[pythons.index(takers[-1]) + 1]}"'))
        else:
            rows += [(version, f' ; python_version == "{python}"') for python in takers]
    return rows


def _index(name: str) -> list[str]:
    """uv does not read pip's settings: where pip looks, as options for uv; and the CPU builds of torch."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True)
    options = []
    for key, value in re.findall(r"^\S*\.(index-url|find-links)='(.*)'$", listed.stdout, re.MULTILINE):
        options += [word for place in value.split() for word in (f"--{key}", place)]
    if name == "verl-cpu":
        spec = importlib.util.spec_from_file_location("install", HERE / "install.py")
        assert spec
        assert spec.loader
        install = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(install)
        if install.answers(f"{install.CPU_INDEX}/torch/"):
            options += ["--extra-index-url", install.CPU_INDEX, "--index-strategy", "unsafe-best-match"]
    return options


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
