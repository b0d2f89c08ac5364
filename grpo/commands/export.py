"""`./train.sh export --from global_step_N`: a checkpoint as a Hugging Face folder, or its adapter, checked.

Shards of the verl engine are merged in verl's environment; what the embedded engine wrote is opened here.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import NoReturn

from grpo.config import ConfigError
from grpo.engine import EngineError
from grpo.start_from import weights_in

_NAME = "./train.sh export"
_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "fp32": "float32", "bf16": "bfloat16"}


def main(argv: list[str]) -> int:
    """Run the command. Raises EngineError for a checkpoint or a folder that will not do."""
    given = _arguments(argv)
    checkpoint = _checkpoint(given.source, given.output_dir)
    source = _trained_here(checkpoint)
    return _export_shards(given, checkpoint) if source is None else _export_folder(given, source)


def _trained_here(checkpoint: Path) -> Path | None:
    """The model or adapter folder that is meant; None for shards of verl, or nothing, of which verl's side knows."""
    shards = any(any(folder.glob("model_world_size_*_rank_*.pt")) for folder in (checkpoint, checkpoint / "actor"))
    if shards or not checkpoint.is_dir():
        return None
    try:
        return Path(weights_in(str(checkpoint), "")).absolute()
    except ConfigError:
        return None


def _export_folder(given: argparse.Namespace, source: Path) -> int:
    from grpo.embedded.engine import EmbeddedEngine

    began = time.perf_counter()
    target = Path(os.path.abspath(given.to or given.output_dir / "export" / source.name))
    done = EmbeddedEngine().export(
        source, target, lora=given.lora, dtype=_DTYPES.get(given.dtype), model=given.model, say=print
    )
    print(f"{done} in {time.perf_counter() - began:.0f} s")
    return 0


def _export_shards(given: argparse.Namespace, checkpoint: Path) -> int:
    from grpo.verl_backend.finishing.export import actor_of, export

    actor = actor_of(checkpoint)  # what is wrong with it is said before what is wrong with the machine
    from grpo.verl_backend.installation.environment import find_environment

    target = given.to or given.output_dir / "export" / actor.parent.name
    environment = find_environment("cuda") or find_environment("cpu")
    if environment is None:
        raise EngineError(
            "merging needs verl's environment, and there is none here: ./train.sh setup --engine verl "
            "(on a machine without GPUs: ./train.sh setup --engine verl --device cpu)"
        )
    began = time.perf_counter()
    dtype = _DTYPES.get(given.dtype)
    done = export(checkpoint, target, environment, dtype=dtype, lora=given.lora, model=given.model)
    print(f"{done} in {time.perf_counter() - began:.0f} s")
    return 0


def _checkpoint(source: str, output_dir: Path) -> Path:
    """`20`, `global_step_20`, or a path to one."""
    given = Path(source).expanduser()
    if given.is_dir():
        return given.absolute()
    if len(given.parts) > 1:
        return given
    return output_dir.absolute() / "checkpoints" / (f"global_step_{source}" if source.isdigit() else source)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_NAME,
        description="A checkpoint as a Hugging Face folder: shards of verl merged, an adapter merged or by itself, "
        "another precision; what comes out is opened again and compared.",
        allow_abbrev=False,
    )
    parser.error = _refuse
    folder = Path(os.environ.get("OUTPUT_DIR", "").strip() or "outputs")
    parser.add_argument(
        "--from", dest="source", required=True, metavar="STEP", help="global_step_20, 20, final, or a path"
    )
    parser.add_argument("--output_dir", type=Path, default=folder, metavar="DIR", help=f"the run's folder [{folder}]")
    parser.add_argument("--to", type=Path, metavar="DIR", help="where to write [OUTPUT_DIR/export/NAME]")
    parser.add_argument("--dtype", choices=tuple(_DTYPES), help="[as trained]")
    parser.add_argument("--lora", choices=("merge", "adapter"), default="merge", help="of a LoRA run [merge]")
    parser.add_argument("--model", metavar="MODEL", help="the model an adapter belongs to [the run's]")
    return parser.parse_args(argv)


def _refuse(message: str) -> NoReturn:
    raise EngineError(f"{_NAME}: {message}; see {_NAME} --help")
