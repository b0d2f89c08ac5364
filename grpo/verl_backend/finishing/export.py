"""A checkpoint of verl as a Hugging Face folder, merged and checked in verl's environment, there whole or not at all.

The merging itself is inside/merge.py, a child process; here is which checkpoint, from which model, and where to.
"""

from __future__ import annotations

import glob
import json
import os
import shlex
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from grpo.atomic import atomic_write
from grpo.engine import EngineError
from grpo.publish import MANIFEST, SaveError, clear_leftovers, publish

REPO = Path(__file__).resolve().parents[3]
MERGE = "grpo.verl_backend.inside.merge"
MODEL = "actor_rollout_ref.model"
# safetensors' names of what a config.json calls otherwise; others are buffers.
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Environment(Protocol):
    """What is needed of grpo.verl_backend.installation.environment.VerlEnvironment."""

    @property
    def python(self) -> Path:
        """The interpreter that has verl."""
        ...


def export(
    checkpoint: Path,
    target: Path,
    environment: Environment,
    *,
    dtype: str | None = None,
    lora: str = "merge",
    model: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Write the model of `checkpoint` (a global_step_N) to the folder `target`. Raises EngineError.

    dtype: float32 or bfloat16, None = as trained
    lora:  `merge` into the model, or `adapter`: a folder for peft
    model: what training began from, for an adapter; None = what the run's config.yaml says
    say:   takes a line for each stage
    """
    actor = actor_of(checkpoint)
    target = Path(os.path.abspath(target))
    _check_target(target, actor)
    words = _words(actor.parent.parent.parent, dtype, lora, model)

    def write(folder: Path) -> None:
        _merge([str(environment.python), "-m", MERGE, str(actor), str(folder), *words], say)

    try:
        return publish(target.parent, target.name, write)
    except SaveError as error:
        raise EngineError(f"{error}; the checkpoint is untouched: free some space, or name another folder") from error


def actor_of(checkpoint: Path) -> Path:
    """The folder with the trained model's shards in a global_step_N, or in one inside it. Raises EngineError."""
    checkpoint = Path(os.path.abspath(checkpoint))
    if not checkpoint.is_dir():
        raise EngineError(f"{checkpoint}: no such checkpoint{_which_exist(checkpoint.parent)}")
    for folder in (checkpoint / "actor", checkpoint, checkpoint.parent):
        if any(folder.glob("model_world_size_*_rank_*.pt")):
            return folder
    if (checkpoint / "config.json").is_file():
        raise EngineError(f"{checkpoint} is a Hugging Face folder already: it can be used as it is")
    if any(checkpoint.glob("**/dist_ckpt")):
        raise EngineError(
            f"{checkpoint} was written by Megatron, and only FSDP checkpoints are merged here; try "
            f"`python -m verl.model_merger merge --backend megatron --local_dir {checkpoint / 'actor'}`"
        )
    raise EngineError(
        f"{checkpoint} has no model_world_size_W_rank_R.pt: it was saved without `model` in save_contents, or its "
        f"writing was cut short{_which_exist(checkpoint.parent)}"
    )


def correct_saved_model(checkpoint: Path) -> str | None:
    """Make what verl's `hf_model` wrote into a checkpoint open as what it is; a line when something was changed.

    verl 0.9.1 stores float32 weights under the dtype of the base model, so they are rounded on opening; and those of a
    LoRA run under peft's names, of which transformers knows none: it opens them as a model of random weights.
    """
    folder = checkpoint / "actor" / "huggingface"
    config = folder / "config.json"
    weights = sorted(folder.glob("*.safetensors"))
    if not weights or not config.is_file():
        return None
    tensors = _header(weights[0])
    if any(name.startswith("base_model.model.") for name in tensors):
        for file in weights:
            file.rename(file.with_name(f"{file.name}.unmerged"))
        return (
            f"{checkpoint.name}: verl stored base and adapter unmerged, as no library opens them; renamed to .unmerged"
        )
    largest = max(tensors.values(), key=lambda entry: entry["data_offsets"][1] - entry["data_offsets"][0])
    stored = _DTYPES.get(largest["dtype"])
    settings = json.loads(config.read_text(encoding="utf-8"))
    keys = [key for key in ("dtype", "torch_dtype") if key in settings]
    told = [settings[key] for key in keys]
    if stored is None or set(told) <= {stored}:
        return None
    atomic_write(config, json.dumps(settings | dict.fromkeys(keys, stored), indent=2, ensure_ascii=False) + "\n")
    return f"{checkpoint.name}: config.json said {told[0]} and the weights are {stored}; corrected"


def _header(file: Path) -> dict[str, Any]:
    """The names in a safetensors file, with the dtype and place of each tensor."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header


def _check_target(target: Path, actor: Path) -> None:
    if target == actor or target in actor.parents:
        raise EngineError(f"{target} holds the checkpoint itself; name another folder with --to")
    if target.exists() and not (target / MANIFEST).is_file() and (target.is_file() or any(target.iterdir())):
        raise EngineError(f"{target} exists and is no export of ours; name a new folder with --to")
    unfinished = glob.escape(target.name)
    for half in target.parent.glob(f".{unfinished}.tmp-*"):
        if _alive(half.name.rpartition("-")[2]):
            raise EngineError(f"{target} is being written by process {half.name.rpartition('-')[2]}; wait for it")
    if target.parent.is_dir():
        clear_leftovers(target.parent, unfinished)


def _alive(process: str) -> bool:
    return process.isdigit() and int(process) != os.getpid() and Path(f"/proc/{process}").exists()


def _words(run: Path, dtype: str | None, lora: str, model: str | None) -> list[str]:
    """The child's arguments, with what the run's folder tells about the model that training began from."""
    config = OmegaConf.load(run / "config.yaml") if (run / "config.yaml").is_file() else OmegaConf.create()
    base = model or OmegaConf.select(config, f"{MODEL}.path")
    words = ["--lora", lora]
    if dtype:
        words += ["--dtype", dtype]
    if base:
        words += ["--base", _as_folder(str(base))]
    if OmegaConf.select(config, f"{MODEL}.trust_remote_code"):
        words.append("--trust_remote_code")
    began = OmegaConf.select(config, f"{MODEL}.lora_adapter_path")
    if began:
        words += ["--initial_adapter", _as_folder(str(began))]
    return words


def _as_folder(name: str) -> str:
    """An absolute path where there is such a folder; a Hub id stays as it is."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.is_dir() else name


def _merge(command: list[str], say: Callable[[str], None]) -> None:
    """Run the child; its lines go to `say`. Raises EngineError with what it says when it fails."""
    paths = [str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]
    # On the CPU: the GPUs may be training, and float32 on them is not exact.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            child = subprocess.Popen(
                command, cwd=REPO, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
            )
        except OSError as problem:
            why = f"{command[0]} cannot be started ({problem.strerror})"
            raise EngineError(f"{why}; make the environment again: ./train.sh setup --engine verl") from None
        try:
            assert child.stdout
            for line in child.stdout:
                say(line.rstrip("\n"))
            code = child.wait()
        except BaseException:
            child.terminate()
            child.wait()
            raise
        errors.seek(0)
        said = [line for line in errors.read().splitlines() if line.strip()]
    if code == 0:
        return
    told = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    if told:
        raise EngineError(told[-1])
    why = f"was ended by signal {-code}, as when memory runs out" if code < 0 else said[-1] if said else f"code {code}"
    raise EngineError(f"the merge failed: {why}; to see all of it: {shlex.join(['PYTHONPATH=' + str(REPO), *command])}")


def _which_exist(folder: Path) -> str:
    steps = sorted(int(path.name[12:]) for path in folder.glob("global_step_*") if path.name[12:].isdigit())
    if not steps:
        return f"; {folder} has none"
    shown = ", ".join(f"global_step_{step}" for step in steps[-5:])
    return f"; {folder} has {shown}" + (f" and {len(steps) - 5} older" if len(steps) > 5 else "")
