"""`./train.sh export --from global_step_N`: a checkpoint of the verl engine as a Hugging Face folder, checked."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import NoReturn

from grpo.engine import EngineError

_NAME = "./train.sh export"


def main(argv: list[str]) -> int:
    """Run the command. Raises EngineError for a checkpoint or a folder that will not do."""
    from grpo.verl_backend.finishing.export import actor_of, export

    given = _arguments(argv)
    checkpoint = _checkpoint(given.source, given.output_dir)
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
    done = export(checkpoint, target, environment, dtype=given.dtype, lora=given.lora, model=given.model)
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
        description="Merge a checkpoint of the verl engine into a Hugging Face folder and compare the two.",
        allow_abbrev=False,
    )
    parser.error = _refuse
    folder = Path(os.environ.get("OUTPUT_DIR", "").strip() or "outputs")
    parser.add_argument("--from", dest="source", required=True, metavar="STEP", help="global_step_20, 20, or a path")
    parser.add_argument("--output_dir", type=Path, default=folder, metavar="DIR", help=f"the run's folder [{folder}]")
    parser.add_argument("--to", type=Path, metavar="DIR", help="where to write [OUTPUT_DIR/export/global_step_N]")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="[as trained]")
    parser.add_argument("--lora", choices=("merge", "adapter"), default="merge", help="of a LoRA run [merge]")
    parser.add_argument("--model", metavar="MODEL", help="the model an adapter belongs to [the run's]")
    return parser.parse_args(argv)


def _refuse(message: str) -> NoReturn:
    raise EngineError(f"{_NAME}: {message}; see {_NAME} --help")
