"""`--init_from`: which model, and which adapter, a folder stands for. Reads the folder's JSON files, loads nothing.

A run's folder is its newest result; a model folder becomes the model; a LoRA adapter becomes the adapter to go on with
and, where nobody names one, the model that it was trained on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo.config import ConfigError, Draft, ours
from grpo.model_rules import ADAPTER, ALPHA, MODEL, RANK, is_local

INIT, OUTPUT = "launcher.init_from", "launcher.output_dir"
STEP = "global_step_"


def start_from(draft: Draft) -> list[str]:
    """Set the keys that launcher.init_from and lora_adapter_path stand for; lines for the user. Raises ConfigError."""
    notes = []
    if (given := draft.raw[INIT]) is not None:
        origin = draft.origins[INIT]
        folder = weights_in(str(given), f"{INIT}={given} ({origin})")
        if isinstance(folder, Path) and not (folder / "config.json").is_file():
            draft.put(ADAPTER, str(folder), origin)
        else:
            if not ours(draft.origins[MODEL]) and draft.raw[MODEL] not in (None, str(folder)):
                raise ConfigError(
                    f"{INIT}={given} ({origin}) is a whole model, and so is {MODEL}={draft.raw[MODEL]} "
                    f"({draft.origins[MODEL]}): leave one of them out"
                )
            draft.put(MODEL, str(folder), origin)
        _check_stays(draft, folder)
        if str(folder) != str(given):
            notes.append(f"starting from {folder}")
    if draft.raw[ADAPTER] is not None:
        _take_adapter(draft)
    return notes


def weights_in(given: str, said: str) -> Path | str:
    """The folder with a model or an adapter; a Hub id as it is. said: where it was named. Raises ConfigError."""
    if not is_local(given):
        return given
    folder = Path(given).expanduser()
    inside = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    steps = [path for path in inside.glob(f"{STEP}*") if path.name[len(STEP) :].isdigit()]
    newest = sorted(steps, key=lambda path: int(path.name[len(STEP) :]))[-1:]
    for found in (folder, inside / "final", *newest):
        if any((found / name).is_file() for name in ("config.json", "adapter_config.json")):
            return found
        if (found / "actor").is_dir():
            raise ConfigError(f"{said}: {found} holds verl's shards; first ./train.sh export --from {found} --to DIR")
    what = "no model, no adapter and no checkpoint in it" if folder.is_dir() else "no such folder"
    raise ConfigError(f"{said}: {what}; name a run's folder, a checkpoint, a model folder or an adapter")


def _check_stays(draft: Draft, folder: Path | str) -> None:
    """A finished run in the output folder is moved aside, and with it what lies inside."""
    output = Path(str(draft.raw[OUTPUT])).expanduser()
    if isinstance(folder, Path) and output.absolute() in folder.absolute().parents:
        raise ConfigError(
            f"{INIT}={draft.raw[INIT]} ({draft.origins[INIT]}) lies in the output folder {output}, where the new run "
            "goes; name another one with --output_dir"
        )


def _take_adapter(draft: Draft) -> None:
    """Rank and alpha are the adapter's; the model is the one it was trained on, unless another is named."""
    folder, origin = Path(draft.raw[ADAPTER]).expanduser(), draft.origins[ADAPTER]
    file = folder / "adapter_config.json"
    if not file.is_file():
        return  # model_rules.py says so
    try:
        adapter: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"{ADAPTER}={draft.raw[ADAPTER]} ({origin}): {file.name} is no JSON file") from None
    for key, name in ((RANK, "r"), (ALPHA, "lora_alpha")):
        if isinstance(adapter.get(name), int):
            if not ours(draft.origins[key]) and draft.raw[key] not in (0, adapter[name]):
                raise ConfigError(
                    f"{key}={draft.raw[key]} ({draft.origins[key]}): the adapter {folder} has {adapter[name]}; leave "
                    "it out, or start a new adapter"
                )
            if draft.raw[key] != adapter[name] and not (key == RANK and not ours(draft.origins[key])):
                draft.put(key, adapter[name], origin)
    if draft.raw[MODEL] is None:
        if not adapter.get("base_model_name_or_path"):
            raise ConfigError(f"{ADAPTER}={draft.raw[ADAPTER]} ({origin}) does not name its model: give --model")
        draft.put(MODEL, adapter["base_model_name_or_path"], origin)
