"""The scripts that --dry_run leaves in the output folder: verl's command alone, and a start on several machines.

Leaves out what they contain (command.py, cluster.py).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from grpo.engine import Run
from grpo.verl_backend.running import cluster
from grpo.verl_backend.settings import command

LAUNCH, NODE, SLURM = "launch.sh", "launch_node.sh", "launch.slurm"


def scripts(run: Run, python: str, words: list[str]) -> dict[str, str]:
    """File name -> text. python: of verl's environment; words: the overrides."""
    comment = f"What `{typed(run.command)}` starts; without the launcher's metrics.jsonl, report and export."
    made = {LAUNCH: command.script(python, words, command.environment(run), comment=comment)}
    if run.config.trainer.nnodes > 1 and run.config.launcher.ray_address is None:
        made[NODE] = cluster.node_script(run, typed(run.command), Path(python))
        made[SLURM] = cluster.slurm_script(run, run.output_dir / NODE)
    return made


def typed(line: str) -> str:
    """The command line that was given to be planned, as the one that trains, from any folder."""
    words, dry = [], False
    for word in shlex.split(line):
        if dry and word in ("full", "json"):
            dry = False
            continue
        dry = word == "--dry_run"
        if not dry and not word.startswith("--dry_run="):
            words.append(str(command.REPO / "train.sh") if word == "./train.sh" else word)
    return shlex.join(words) if "=" not in words[0] else "env " + shlex.join(words)
