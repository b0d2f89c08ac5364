"""Checkpoints that survive a kill at any moment.

A folder is written under a temporary name, every file is hashed into manifest.json and synced, then the folder is
renamed: a folder called global_step_N is whole or absent. Older ones are removed only after that. On load the hashes
are checked; a damaged folder is named and set aside, and the one before it is taken.
Weights and optimizer states are safetensors, the rest is JSON: loading runs no code from the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo.atomic import atomic_write, fsync
from grpo.embedded.policy import Policy

MANIFEST, STATE, OPTIMIZER = "manifest.json", "trainer_state.json", "optimizer.safetensors"
PREFIX = "global_step_"


class SaveError(Exception):
    """A checkpoint could not be written; nothing of it is left, and the older ones are untouched."""


def save(
    folder: Path, step: int, policy: Policy, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, keep: int
) -> Path:
    """Write folder/global_step_N, which transformers also opens as a model, then keep only the newest `keep`.

    state: plain JSON values. Raises SaveError when the disk is full or not writable.
    """

    def write(path: Path) -> None:
        write_model(path, policy)
        tensors, _ = _flat(optimizer)
        save_file(tensors, path / OPTIMIZER)
        (path / STATE).write_text(json.dumps({"step": step, **state}, ensure_ascii=False), encoding="utf-8")

    path = publish(folder, f"{PREFIX}{step}", write, needs=3 * _weight_bytes(policy))
    for old in _steps(folder)[keep:]:
        shutil.rmtree(old)
    return path


def write_model(path: Path, policy: Policy) -> None:
    """A folder that AutoModelForCausalLM and AutoTokenizer open, chat template included."""
    policy.model.save_pretrained(path)
    policy.tokenizer.save_pretrained(path)


def publish(folder: Path, name: str, write: Callable[[Path], None], *, needs: int = 0) -> Path:
    """folder/name with what `write` puts into it, whole or not at all. needs: bytes that must be free."""
    folder.mkdir(parents=True, exist_ok=True)
    building, final = folder / f".{name}.tmp-{os.getpid()}", folder / name
    try:
        free = shutil.disk_usage(folder).free
        if free < 1.05 * needs:
            raise OSError(f"{needs / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free")
        building.mkdir()
        write(building)
        files = sorted(path for path in building.rglob("*") if path.is_file())
        manifest = {str(path.relative_to(building)): [path.stat().st_size, _sha256(path)] for path in files}
        atomic_write(building / MANIFEST, json.dumps(manifest, indent=1))
        for path in files:
            fsync(path)
        fsync(building)
        replaced = final.exists()
        if replaced:
            os.rename(final, folder / f".{name}.replaced")
        os.rename(building, final)
        fsync(folder)
        if replaced:
            shutil.rmtree(folder / f".{name}.replaced")
    except (OSError, SafetensorError) as error:
        shutil.rmtree(building, ignore_errors=True)
        raise SaveError(f"{final} was not written: {error}") from error
    return final


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files are what was written, and a line for each that is not (it is set aside).

    Call it only while holding the run's lock: leftovers of a killed save are removed.
    """
    notes: list[str] = []
    if not folder.is_dir():
        return None, notes
    for leftover in folder.glob(".*.tmp-*"):
        shutil.rmtree(leftover)
    for half in folder.glob(".*.replaced"):  # killed between the two renames, or just before the removal
        whole = folder / half.name[1 : -len(".replaced")]
        shutil.rmtree(half) if whole.exists() else os.rename(half, whole)
    for path in _steps(folder):
        damage = damaged(path)
        if damage is None:
            return path, notes
        aside = folder / f"damaged_{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
        notes.append(f"checkpoint {path.name} is damaged ({damage}) and was set aside as {aside.name}")
    return None, notes


def damaged(path: Path) -> str | None:
    """What is wrong with a published folder, naming the file; None when every byte is as written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, digest) in manifest.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size or _sha256(file) != digest:
                return f"{name} has changed"
    except (OSError, ValueError, AttributeError, TypeError):
        return f"{MANIFEST} is missing or unreadable"
    return None


def load_state(path: Path) -> dict[str, Any]:
    """The `state` that save() was given, with its `step`."""
    return json.loads((path / STATE).read_text(encoding="utf-8"))


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer) -> None:
    """Put the saved moments and step counts back, bit for bit."""
    tensors = load_file(path / OPTIMIZER)
    _, layout = _flat(optimizer)
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": layout})


def _flat(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], list[dict]]:
    saved = optimizer.state_dict()
    tensors = {
        f"{number}.{name}": tensor.contiguous()
        for number, values in saved["state"].items()
        for name, tensor in values.items()
    }
    return tensors, saved["param_groups"]


def _steps(folder: Path) -> list[Path]:
    """Published checkpoints, newest first."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.name[len(PREFIX) :].isdigit()]
    return sorted(found, key=lambda path: int(path.name[len(PREFIX) :]), reverse=True)


def _weight_bytes(policy: Policy) -> int:
    return sum(weight.numel() * weight.element_size() for weight in policy.model.parameters())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
