"""The runs of bench/learning.py: the data, the start that all share, and one run of an algorithm or an engine.

What is done stays in the work folder and is not done again. Leaves out what the results say (learning_result.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trl_environment
from learning_tasks import KNIGHTS, MODEL, REASONED, SFT, SUMS, Task

BENCH = Path(__file__).resolve().parent
REPO = BENCH.parent
_SUM = re.compile(r"(\d+) \+ (\d+)")
ON_CPU = ("--device=cpu", "--dtype=float32", "--report_to=file")


@dataclass(frozen=True)
class Shape:
    """What all runs have in common. steps: of `prompts` prompts with n responses each; every: steps between looks."""

    steps: int = 16
    prompts: int = 16
    n: int = 8
    lr: float = 2e-5
    every: int = 2
    val: int = 256
    sft_steps: int = 300

    @property
    def budget(self) -> int:
        """Responses that each run may sample."""
        return self.steps * self.prompts * self.n

    def key(self) -> str:
        """A name for everything that the runs' results depend on, but for the code."""
        settled = json.dumps([asdict(self), MODEL, SFT], sort_keys=True)
        return hashlib.sha256(settled.encode()).hexdigest()[:8]


# What a run takes beside its name. Losses that differ from GRPO's only on responses that are not quite the policy's
# own any more get them: four optimizer steps on each batch, as in their papers.
FOUR_UPDATES = ("--mini_batch_size=4",)
OWN = {
    "gspo": FOUR_UPDATES,
    "cispo": FOUR_UPDATES,
    "sapo": FOUR_UPDATES,
    "gdpo": ("--reward=accuracy,repetition",),
    "dapo": ("algorithm.filter_groups.max_num_gen_batches=2",),
}
# Recipes with more than an algorithm in them, on data of our own; the learning rate is the others' too.
ON_SUMS = (
    *("launcher.data.prompt_key=prompt", "launcher.data.answer_key=ground_truth", "launcher.data.system=null"),
    "launcher.data.data_source=null",
)
RECIPES = {
    "gsm8k": SUMS,
    "swift_r1": SUMS,
    "trl_gsm8k": SUMS,
    "deepseek_r1_zero_format": REASONED,
    "paddle_kk": KNIGHTS,
}
PROMPTS = {"swift_r1": 8, "trl_gsm8k": 4, "paddle_kk": 2}  # prompts of a step, where the recipe says few
PEERS = ("trl", "verl")


def words(side: str, seed: int, folder: Path, shape: Shape) -> list[str]:
    """The launcher's words for one run of an algorithm or a recipe on the embedded engine, or of GRPO on verl."""
    engine, name = ("verl", "grpo") if side == "verl" else ("embedded", side)
    task, prompts = task_of(side), prompts_of(side, shape)
    more = shape.prompts // prompts  # as many responses in as many more steps
    return [
        *(f"--engine={engine}", f"--{'recipe' if side in RECIPES else 'algorithm'}={name}"),
        *(f"--init_from={task.start(folder)}", *(ON_SUMS if side in RECIPES and task is SUMS else ())),
        *(f"--data={task.file(folder, 'train')}", f"--val_data={task.file(folder, 'val')}"),
        *(f"--train_batch_size={prompts}", f"--rollout_n={shape.n}", f"--lr={shape.lr}", f"--seed={seed}"),
        *(f"--max_steps={more * shape.steps}", f"--test_freq={more * shape.every}", "--save_freq=-1"),
        *(*task.words, *ON_CPU, "data.val_max_samples=-1", "--resume=disable"),
        *(f"--output_dir={out_of(side, seed, folder)}", *OWN.get(side, ())),
    ]


def kept_of(side: str, seed: int, folder: Path) -> Path:
    """Where its result is kept, once it is done."""
    return out_of(side, seed, folder).with_suffix(".json")


def task_of(side: str) -> Task:
    """What a side learns."""
    return RECIPES.get(side, SUMS)


def prompts_of(side: str, shape: Shape) -> int:
    """Prompts of a step."""
    return min(PROMPTS.get(side, shape.prompts), shape.prompts)


def out_of(side: str, seed: int, folder: Path) -> Path:
    """Where a run writes."""
    return folder / "runs" / f"{side}-{seed}"


def prepare(task: Task, folder: Path, shape: Shape) -> None:
    """The task's data and start, where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    if not task.file(folder, "demonstrations").exists():
        task.write(folder, shape.val)
    start = task.start(folder)
    if (start / "summary.json").exists():
        return
    print(f"supervised start for {task.name} ...", end=" ", flush=True)
    flags = [
        f"--{name}={value}"
        for name, value in {**SFT, "train_batch_size": task.batch, "max_steps": shape.sft_steps}.items()
    ]
    flags += [f"launcher.scratch.{name}={value}" for name, value in MODEL.items()]
    flags += ["--model=scratch", f"--data={task.file(folder, 'demonstrations')}", "--resume=disable"]
    flags += ["launcher.data.prompt_key=prompt", "launcher.data.answer_key=response"]
    flags += [f"--recipe={task.recipe}"] if task.recipe else []
    took = _run(
        [*_LAUNCHER, "sft", *flags, *task.words, *ON_CPU, f"--output_dir={start}"], folder / f"{start.name}.log"
    )
    print(f"{took:.0f} s", flush=True)


class RunFailed(Exception):
    """A run that ended with an error: its command and the end of its log."""


def run(side: str, seed: int, folder: Path, shape: Shape) -> dict[str, Any]:
    """The result of one run: read, or run now. Raises RunFailed."""
    kept = kept_of(side, seed, folder)
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    out = kept.with_suffix("")
    out.parent.mkdir(exist_ok=True)
    if side == "trl":
        spec = trl_spec(seed, folder, shape)
        (path := kept.with_suffix(".spec")).write_text(json.dumps(spec), encoding="utf-8")
        took = _run([str(trl_environment.python()), str(BENCH / "learning_trl.py"), str(path)], out.with_suffix(".log"))
        points = [
            point | {"correct": marks(point["answers"])} for point in json.loads(Path(spec["result"]).read_text())
        ]
        found = [{name: point[name] for name in ("step", "responses", "correct")} for point in points]
    else:
        took = _run([*_LAUNCHER, *words(side, seed, folder, shape)], out.with_suffix(".log"))
        found = points_of(out, prompts_of(side, shape) * shape.n)
    result = {"side": side, "seed": seed, "seconds": round(took, 1), "commit": _commit(), "points": found}
    kept.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return result


def trl_spec(seed: int, folder: Path, shape: Shape) -> dict[str, Any]:
    """What learning_trl.py is given: our recipe grpo's settings in TRL's names are in there."""
    out = out_of("trl", seed, folder)
    places = {f"{part}_file": str(SUMS.file(folder, part)) for part in ("train", "val")}
    places["model"] = str(SUMS.start(folder) / "checkpoints" / "final")
    return places | asdict(shape) | {"seed": seed, "scratch": str(out), "result": str(out.with_suffix(".points"))}


def points_of(out: Path, responses_of_a_batch: int) -> list[dict[str, Any]]:
    """Every evaluation in a run's folder: step, responses sampled until then, and who was right."""
    batches, answers = {0: 0}, dict[int, dict[str, bool]]()
    for line in _rows(out / "metrics.jsonl"):
        if line["step"] > 0:
            batches[line["step"]] = batches[line["step"] - 1] + int(line.get("generated_batches", 1))
    for line in _rows(out / "completions.jsonl"):
        if line["split"] == "val":
            right = line["parts"].get("accuracy", line["reward"]) >= 1
            answers.setdefault(line["step"], {})[line["prompt"]] = right
    return [
        {"step": step, "responses": batches[step] * responses_of_a_batch, "correct": marks(right)}
        for step, right in sorted(answers.items())
    ]


def marks(right: Mapping[str, bool]) -> str:
    """Who was right as a text of 0 and 1: in the order of the sums, which engines template in their own way; no two
    held-out prompts ask for the same. Other prompts in their own order."""
    asked = {_sum_in(prompt) or prompt: mark for prompt, mark in right.items()}
    assert len(asked) == len(right), "two prompts with the same sum"
    return "".join(str(int(asked[key])) for key in sorted(asked))


def _sum_in(prompt: str) -> tuple[int, int] | None:
    found = _SUM.search(prompt)
    return (int(found[1]), int(found[2])) if found else None


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


_LAUNCHER = [sys.executable, "-m", "grpo"]


def command_text(side: str, seed: int, folder: Path, shape: Shape) -> str:
    """The command of a run, for a reader and for a shell."""
    if side == "trl":
        return f"TRL: {json.dumps(trl_spec(seed, folder, shape))}"
    return shlex.join([str(REPO / "train.sh"), *words(side, seed, folder, shape)])


def _run(command: list[str], log: Path) -> float:
    """Run it, one thread unless OMP_NUM_THREADS says more; its seconds. Raises RunFailed."""
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"} | os.environ
    environment["PYTHONPATH"] = str(REPO)
    began = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(command, env=environment, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RunFailed(f"{log.read_text(errors='replace')[-3000:]}\n{shlex.join(command)}: exit {done.returncode}")
    return time.monotonic() - began


def _commit() -> str:
    found = subprocess.run(["git", "-C", REPO, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"
