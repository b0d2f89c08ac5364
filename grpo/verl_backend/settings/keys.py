"""Every key that verl's trainer knows, with its default. Leaves out what the keys mean and which we set.

A snapshot of the supported verl's composed configuration ships with us, so that planning needs no verl; a test keeps it
equal to the package. `python -m grpo.verl_backend.settings.keys` writes it again from the installed verl. An installed
verl of another version is asked for its own keys.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from grpo.hydra_text import leaves

VERL_VERSION = "0.9.1"
SNAPSHOT = Path(__file__).with_name(f"verl_{VERL_VERSION.replace('.', '_')}.json")
MANDATORY = "???"  # the default of a key that must be given
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,\s*([^${}]*?)\s*)?\}")


@cache
def verl_keys() -> Mapping[str, Any]:
    """Dotted key -> default. References (`${...}`) are as written, `{}` is a mapping that is open for new keys."""
    return json.loads(SNAPSHOT.read_text(encoding="utf-8"))


@cache
def keys_of(folder: Path | None) -> Mapping[str, Any]:
    """The keys of the verl whose YAML is in `folder`; None = of the supported verl."""
    return verl_keys() if folder is None or version_of(folder) == VERL_VERSION else compose(folder, [])


def version_of(folder: Path | None) -> str:
    """The version of the verl whose YAML is in `folder`; where it does not say, the supported one."""
    file = None if folder is None else folder.parents[1] / "version" / "version"
    return file.read_text(encoding="utf-8").strip() if file and file.is_file() else VERL_VERSION


def older(version: str, than: str) -> bool:
    """Whether `version` came before `than`; of "0.9.1.post1" the first three numbers count."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def follow(values: Mapping[str, Any], key: str) -> Any:
    """The value of a key, its references (`${a.b}`, `${.a}`, `${oc.select:a.b,default}`) followed as far as they go."""
    value = values.get(key)
    for _ in range(9):  # longer than any chain that verl has
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            break
        up = len(match[1]) - len(match[1].lstrip("."))
        key = ".".join([*key.split(".")[:-up], match[1].lstrip(".")]) if up else match[1]
        value = values[key] if key in values else _scalar(match[2])
    return value


def _scalar(text: str | None) -> Any:
    words = {"null": None, "true": True, "false": False}
    if text is None or text.lower() in words:
        return words.get((text or "null").lower())
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The key that `key` was most likely meant to be."""
    known = list(known)
    exact = [name for name in known if name.endswith("." + key)]
    # Last names first: long common beginnings make all keys of a group look alike.
    if exact or (near := sibling(key, known)):
        return exact[0] if exact else near
    endings = [name for name in known if name.endswith("." + key.rpartition(".")[2])]
    return _nearest(key, endings) or next(iter(endings), None) or _nearest(key, known)


def sibling(key: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The key of the same group whose last name is most like this one's (1 = the same, 0 = nothing in common)."""
    head, _, tail = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == head]
    near = _nearest(tail, siblings, cutoff)
    return f"{head}.{near}" if near and head else near


def _nearest(word: str, candidates: list[str], cutoff: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff)), None)


def config_folder() -> Path | None:
    """The folder of YAML files of the installed verl, found without importing it; None where verl is not installed."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"


def compose(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """verl's trainer configuration as Hydra composes it from `folder` (about a second), flat, references as written.

    Raises what Hydra raises for an override that does not fit.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(folder.resolve()), version_base=None):
        config = hydra_compose("ppo_trainer", overrides)
    return dict(leaves(OmegaConf.to_container(config, resolve=False)))


def _write_snapshot() -> None:
    folder = config_folder()
    if folder is None:
        raise SystemExit("verl is not installed here")
    rows = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in compose(folder, []).items()]
    SNAPSHOT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _write_snapshot()
