"""Trains with the same command undisturbed, and killed at random moments and started again each time.

    python killed_run.py FOLDER KILLS SEED -- ARGUMENTS OF ./train.sh

Prints JSON: how many kills hit, how many of them after a first checkpoint, in how many runs.
Run by test_resume.py as a process of its own,
which imports everything once and forks: a start then costs no imports, so that kills fall into training.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import transformers  # noqa: F401

import grpo.embedded.loop  # noqa: F401
from grpo.__main__ import main


def start(arguments: list[str], folder: Path) -> int:
    """A child that runs ./train.sh into `folder`; its process id."""
    child = os.fork()
    if child:
        return child
    with open(folder.with_suffix(".log"), "a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    torch.set_num_threads(1)
    os._exit(main([*arguments, "--output_dir", str(folder)]))


def run(root: Path, kills: int, seed: int, arguments: list[str]) -> dict[str, int]:
    """The undisturbed run in root/whole; killed ones in root/killed_1, root/killed_2, ... until `kills` kills have hit.

    A quarter of them at least hit a run that has a checkpoint to go on from.
    A run that gets to its end between two kills is followed by another one from the start. One that is killed after
    its last step, before the process ends, is finished too: what is started then is another one.
    """
    began = time.time()
    _, status = os.waitpid(start(arguments, root / "whole"), 0)
    assert os.waitstatus_to_exitcode(status) == 0, (root / "whole.log").read_text()
    trained_after = (root / "whole/checkpoints/final").stat().st_mtime - began  # the report is written later

    moments, hit, in_training, runs = random.Random(seed), 0, 0, 0
    while not (enough := hit >= kills and in_training >= kills / 4):
        runs += 1
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            moment = moments.uniform(0, trained_after)
            until = math.inf if enough else time.monotonic() + moment  # enough: this one may end
            folder = root / f"killed_{runs}"
            code = _killed_at(start(arguments, folder), until)
            hit += code == -signal.SIGKILL
            begun, ended = folder.glob("checkpoints/global_step_*"), (folder / "checkpoints/final").exists()
            in_training += code == -signal.SIGKILL and any(begun) and not ended
            enough = hit >= kills and in_training >= kills / 4
        assert code == 0, (root / f"killed_{runs}.log").read_text()
    return {"kills": hit, "in_training": in_training, "runs": runs}


def _killed_at(child: int, until: float) -> int:
    """The exit code of the child, which is killed at the moment `until`."""
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(done[1])


if __name__ == "__main__":
    place, count, number = sys.argv[1:4]
    print(json.dumps(run(Path(place), int(count), int(number), sys.argv[5:])))
