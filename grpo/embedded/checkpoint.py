"""Checkpoints that survive a kill at any moment.

A folder called global_step_N is whole or absent (grpo/publish.py); older ones are removed only after it is there. On
load its hashes are checked; a damaged folder is named and set aside, and the one before it is taken.
Weights and optimizer states are safetensors, the rest is JSON: loading runs no code from the files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model

from grpo import publish as folders
from grpo.embedded import adapter
from grpo.embedded.policy import Policy
from grpo.publish import SaveError as SaveError
from grpo.publish import damaged

STATE, OPTIMIZER = "trainer_state.json", "optimizer.safetensors"
PREFIX = "global_step_"


def save(
    folder: Path,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    keep: int,
    copies: Mapping[str, Policy] = MappingProxyType({}),
) -> Path:
    """Write folder/global_step_N, which transformers also opens as a model, then keep only the newest `keep`.

    With LoRA it holds the adapter and the name of its model. state: plain JSON values; copies: of the policy, by name.
    Raises SaveError when the disk is full or not writable.
    """

    def write(path: Path) -> None:
        write_model(path, policy)
        tensors, _ = _flat(optimizer)
        save_file(tensors, path / OPTIMIZER)
        for name, copy in copies.items():
            if copy.adapter is None:
                save_model(copy.model, str(path / f"{name}.safetensors"))
            else:
                save_file(
                    {key: weight.contiguous() for key, weight in copy.own().items()}, path / f"{name}.safetensors"
                )
        (path / STATE).write_text(json.dumps({"step": step, **state}, ensure_ascii=False), encoding="utf-8")

    path = publish(folder, f"{PREFIX}{step}", write, needs=(3 + len(copies)) * _weight_bytes(policy))
    for old in _steps(folder)[keep:]:
        shutil.rmtree(old)
    return path


def write_model(path: Path, policy: Policy) -> None:
    """A folder that AutoModelForCausalLM and AutoTokenizer open, chat template included; with LoRA, peft's."""
    if policy.adapter is None:
        policy.model.save_pretrained(path)
    else:
        adapter.save(policy.adapter, path)
    policy.tokenizer.save_pretrained(path)


def write_final(path: Path, policy: Policy, *, lora: str, dtype: str | None) -> None:
    """What training made, for others to open. lora: `merge` or `adapter`; dtype: None = float32, as it was trained."""
    to = None if dtype is None else getattr(torch, dtype)
    if policy.adapter is not None and lora == "adapter":
        adapter.save(policy.adapter, path, to)
    elif policy.adapter is None and to is None:
        policy.model.save_pretrained(path)
    else:
        state = policy.model.state_dict() if policy.adapter is None else adapter.merged_state(policy.model)
        kept: dict[int, torch.Tensor] = {}  # weights that share memory still do afterwards
        for name, weight in state.items():
            narrow = weight.to(to) if to is not None and weight.is_floating_point() else weight
            state[name] = kept.setdefault(weight.data_ptr(), narrow)
        policy.model.save_pretrained(path, state_dict=state)
        if to is not None:
            _say_dtype(path / "config.json", str(dtype))
    policy.tokenizer.save_pretrained(path)


def _say_dtype(file: Path, dtype: str) -> None:
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(settings | {"dtype": dtype}, indent=2) + "\n", encoding="utf-8")


def publish(folder: Path, name: str, write: Callable[[Path], None], *, needs: int = 0) -> Path:
    """As grpo.publish.publish, where a full disk may also show as an error of safetensors."""

    def write_or_say(path: Path) -> None:
        try:
            write(path)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    return folders.publish(folder, name, write_or_say, needs=needs)


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files are what was written, and a line for each that is not (it is set aside).

    Call it only while holding the run's lock: leftovers of a killed save are removed.
    """
    notes: list[str] = []
    if not folder.is_dir():
        return None, notes
    folders.clear_leftovers(folder)
    for path in _steps(folder):
        damage = damaged(path)
        if damage is None:
            return path, notes
        aside = folder / f"damaged_{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
        notes.append(f"checkpoint {path.name} is damaged ({damage}) and was set aside as {aside.name}")
    return None, notes


def load_state(path: Path) -> dict[str, Any]:
    """The `state` that save() was given, with its `step`."""
    return json.loads((path / STATE).read_text(encoding="utf-8"))


@torch.no_grad()
def load_copy(path: Path, name: str, copy: Policy) -> None:
    """Put the weights of one of save()'s `copies` into `copy`."""
    if copy.adapter is None:
        load_model(copy.model, path / f"{name}.safetensors")
        return
    saved = load_file(path / f"{name}.safetensors")
    for key, weight in copy.own().items():
        weight.copy_(saved[key])


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
    return sum(weight.numel() * weight.element_size() for weight in policy.trained())
