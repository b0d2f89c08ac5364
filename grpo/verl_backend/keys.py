"""Every key that verl's trainer knows, with its default. Leaves out what the keys mean and which we set.

A snapshot of the supported verl's composed configuration ships with us, so that planning needs no verl; a test keeps it
equal to the package. `python -m grpo.verl_backend.keys` writes it again from the installed verl.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from grpo.hydra_text import leaves

VERL_VERSION = "0.9.1"
SNAPSHOT = Path(__file__).with_name(f"verl_{VERL_VERSION.replace('.', '_')}.json")
MANDATORY = "???"  # the default of a key that must be given


@cache
def verl_keys() -> Mapping[str, Any]:
    """Dotted key -> default. References (`${...}`) are as written, `{}` is a mapping that is open for new keys."""
    return json.loads(SNAPSHOT.read_text(encoding="utf-8"))


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
