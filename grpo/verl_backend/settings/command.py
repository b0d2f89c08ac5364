"""The command that starts verl: its words and its environment, for a process and as a script. Leaves out running it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from grpo.engine import Run
from grpo.verl_backend.settings import on_cpu

REPO = Path(__file__).resolve().parents[3]
PROGRAM = ("-m", "verl.trainer.main_ppo")


def environment(run: Run) -> dict[str, str]:
    """Variables that verl's processes need, on every machine. The user's own PYTHONPATH stays behind ours."""
    theirs = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(REPO), *([str(on_cpu.PLUGIN)] if on_cpu.is_on_cpu(run) else []), *filter(None, theirs)]
    variables = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUTF8": "1",  # verl opens its dumps in the locale's encoding
        "VERL_FILE_LOGGER_PATH": str(run.output_dir / "verl_metrics.jsonl"),
        "TOKENIZERS_PARALLELISM": "true",
        "HYDRA_FULL_ERROR": "1",
    }
    return variables | (dict(on_cpu.ENVIRONMENT) if on_cpu.is_on_cpu(run) else {})


def script(python: str, words: list[str], variables: Mapping[str, str], *, comment: str) -> str:
    """A bash script that runs the command by itself. words: the overrides; comment: lines for its head."""
    head = ["#!/usr/bin/env bash", *(f"# {line}" for line in comment.splitlines()), "set -euo pipefail"]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines = shell_lines(python, words)
    lines[-1] += " \\"
    return "\n".join([*head, *exports, "exec " + lines[0], *lines[1:], '  "$@"']) + "\n"


def shell_lines(python: str, words: list[str]) -> list[str]:
    """The command for a shell, one override a line."""
    lines = [shlex.join([python, *PROGRAM]), *(f"  {shlex.quote(word)}" for word in words)]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
