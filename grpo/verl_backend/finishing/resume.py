"""Where a run of verl goes on: its newest whole checkpoint, told to verl by name.

verl's own `auto` follows latest_checkpointed_iteration.txt, which a kill leaves empty or behind, and opens what is
there without looking. Leaves out whether the configuration is the same (grpo/run_dir.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grpo.engine import EngineError, Run
from grpo.verl_backend.settings.overrides import ACTOR, settings

_STEP = "global_step_"
# What verl calls a part of a checkpoint -> how the file of each rank begins.
_PARTS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
_RANKS = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_STRATEGIES = {1: "fsdp", 2: "fsdp2"}
_MODE, _FROM = "trainer.resume_mode", "trainer.resume_from_path"


def resume_overrides(run: Run) -> tuple[dict[str, Any], list[str]]:
    """verl's keys that make it go on from the newest whole checkpoint, or start anew; and lines for the user.

    A checkpoint that is not whole is set aside. Raises EngineError where verl could not open the one that is.
    """
    if not run.resume:
        return {_MODE: "disable"}, []
    folder = run.output_dir / "checkpoints"
    decided = settings(run)
    path, notes = newest_whole(folder, decided[f"{ACTOR}.checkpoint.save_contents"], nodes=run.config.trainer.nnodes)
    if path is None:
        return {_MODE: "disable"}, notes
    _check_fits(path, run, decided[f"{ACTOR}.strategy"])
    return {_MODE: "resume_path", _FROM: str(path)}, notes


def newest_whole(folder: Path, parts: Iterable[str], *, nodes: int = 1) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that has a readable file of every rank, and a line for each newer one, which is set aside.

    parts: verl's `save_contents`; nodes: machines of the run. Call it only while holding the run's lock.
    """
    notes: list[str] = []
    for path in _steps(folder):
        torn = what_is_torn(path, parts, nodes=nodes)
        if torn is None:
            return path, notes
        aside = folder / f"damaged_{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
        notes.append(f"checkpoint {path.name} is not whole ({torn}) and was set aside as {aside.name}")
    return None, notes


def step_of(path: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(path.name[len(_STEP) :])


def what_is_torn(path: Path, parts: Iterable[str], *, nodes: int = 1) -> str | None:
    """The first file that is missing or was not written to its end; None for a whole checkpoint.

    A .pt file is a zip archive, whose index comes last: one that was cut short has none. Without a shared disk this
    machine has the files of its own ranks only.
    """
    actor = path / "actor"
    size, here = _ranks(actor)
    if size == 0:
        return "no model files in actor"
    ranks = here if nodes > 1 and len(here) == size // nodes else range(size)
    begins = [begin for part, begin in _PARTS.items() if part in set(parts)]
    files = [actor / f"{begin}_world_size_{size}_rank_{rank}.pt" for begin in begins for rank in ranks]
    for file in (*files, path / "data.pt"):  # data.pt is written last
        name = file.relative_to(path)
        if not file.is_file():
            return f"{name} is missing"
        if not zipfile.is_zipfile(file):
            return f"{name} was cut short"
    return None


def _check_fits(path: Path, run: Run, strategy: str) -> None:
    """verl opens one file per rank, by the name that a rank of the same number of ranks wrote."""
    trainer = run.config.trainer
    now, (before, _) = trainer.n_gpus_per_node * trainer.nnodes, _ranks(path / "actor")
    if now != before:
        raise EngineError(
            f"{path.name} was written by {before} ranks and this run has {now} (trainer.n_gpus_per_node="
            f"{trainer.n_gpus_per_node}, trainer.nnodes={trainer.nnodes}): go on with {before} GPUs in all, or turn it "
            f"into a model by `./train.sh export --from {path}` and start a new run from that with --model"
        )
    written = path / "actor" / "fsdp_config.json"
    version = json.loads(written.read_text(encoding="utf-8")).get("FSDP_version") if written.is_file() else None
    was = _STRATEGIES.get(version or 0)
    if was is not None and strategy in _STRATEGIES.values() and was != strategy:
        raise EngineError(
            f"{path.name} was written with {ACTOR}.strategy={was} and this run has {strategy}: go on with {was}"
        )


def _ranks(actor: Path) -> tuple[int, list[int]]:
    """How many ranks wrote the checkpoint (0: none did), and those whose model file is here."""
    found = [(int(match[1]), int(match[2])) for file in actor.glob("*.pt") if (match := _RANKS.fullmatch(file.name))]
    return max((size for size, _ in found), default=0), sorted(rank for _, rank in found)


def _steps(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    found = [path for path in folder.glob(f"{_STEP}*") if path.name[len(_STEP) :].isdigit()]
    return sorted(found, key=step_of, reverse=True)
