"""The memory plan beside measured peaks, and the time estimate beside measured seconds, on a CPU.

    python bench/memory.py                              # the shapes small, ragged, long: a few minutes on two cores
    python bench/memory.py --shapes half-b              # needs 14 GB
    python bench/memory.py --record                     # and writes bench/results/memory.{json,md}

Each shape (bench/shapes.py) is trained for a few steps by a child (bench/memory_child.py) that reads the kernel's peak
of resident memory in each phase; the largest over the steps counts. The plan is made from the same words, as
`./train.sh plan` makes it. Memory that the allocator keeps from an earlier phase is given back before each, so that a
phase is not charged for the one before. --cpu_seconds takes one thread and CPU seconds on both sides, for a machine
that others use at the same time. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import shapes
from machine import facts_lines, machine, processors

BENCH = Path(__file__).resolve().parent

PHASES = ("load", "rollout", "log-prob", "update", "save")
AIMS = {"memory": 0.15, "time": 0.30}


def main() -> None:
    """Measure, print, and write it down when asked to."""
    given = options()
    facts = machine(given.threads)
    for line in facts_lines(facts):
        print(line, flush=True)
    records = {}
    for name in given.shapes.split(","):
        with tempfile.TemporaryDirectory(prefix="grpo-memory-", dir=given.scratch) as folder:
            shape = shapes.SHAPES[name]
            shapes.write(Path(folder), shape, steps=given.steps, seed=1)
            words = command(shape, Path(folder), given.steps)
            measured = child(words, Path(folder), given.threads, given.cpu_seconds)
            lengths = mean_lengths(Path(folder))
            planned = plan(words, lengths, given.threads, given.cpu_seconds)
        records[name] = {"lengths": lengths, "measured": measured, "planned": planned}
        print("\n" + table(name, records[name]), flush=True)
    if given.record:
        results = BENCH / "results"
        results.mkdir(exist_ok=True)
        record = {"machine": facts, "cpu_seconds": given.cpu_seconds, "shapes": records}
        (results / "memory.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        texts = [table(name, one) for name, one in records.items()]
        clock = "Seconds are CPU seconds of one thread." if given.cpu_seconds else "Seconds are wall seconds."
        page = "\n\n".join(["# bench/memory.py", *facts_lines(facts), clock, *texts])
        (results / "memory.md").write_text(page + "\n", encoding="utf-8")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="small,ragged,long", help=", ".join(shapes.SHAPES))
    parser.add_argument("--steps", type=int, default=3, help="the first has no optimizer states yet")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--cpu_seconds", action="store_true")
    parser.add_argument("--scratch", help="folder for models and runs [the system's]")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if given.steps < 2:
        parser.error("--steps from 2")
    given.threads = 1 if given.cpu_seconds else given.threads
    return given


def command(shape: shapes.Shape, folder: Path, steps: int) -> list[str]:
    """The words that train on a shape's files; the plan's too."""
    flags = {
        "engine": "embedded", "device": "cpu", "dtype": "float32", "model": folder / "model",
        "data": folder / "train.json", "val_data": folder / "val.json", "reward_func": BENCH / "small_reward.py",
        "train_batch_size": shape.prompts, "rollout_n": shape.n, "max_prompt_length": shape.prompt[1],
        "max_response_length": shape.tokens, "min_response_length": shape.least, "max_steps": steps, "epochs": 1,
        "save_freq": 1, "test_freq": -1, "report_to": "file", "output_dir": folder / "out",
    }  # fmt: skip
    own = ["trainer.val_before_train=false", "actor_rollout_ref.model.custom_chat_template=plain"]
    return [f"--{flag}={value}" for flag, value in flags.items()] + own


def environment(threads: int) -> dict[str, str]:
    """Of both children."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "KMP_"))}
    return kept | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(BENCH.parent)}


def child(words: list[str], folder: Path, threads: int, cpu_seconds: bool) -> dict[str, dict[str, float]]:
    """Phase -> its peak in bytes and its seconds; the phases of the first step count for neither."""
    result, log = folder / "phases.json", folder / "log"
    clock = "cpu" if cpu_seconds else "wall"
    command = [sys.executable, str(BENCH / "memory_child.py"), str(result), clock, *words]
    with log.open("wb") as output:
        done = subprocess.run(command, env=environment(threads), stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"{log.read_text(errors='replace')[-3000:]}\nexit {done.returncode}")
    phases: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    found = {"imports": {"peak": phases["imports"][0]["peak"], "seconds": 0.0}}
    for name in PHASES:
        later = phases[name][1:] or phases[name]
        found[name] = {"peak": max(one["peak"] for one in later), "seconds": median(one["seconds"] for one in later)}
    return found


def mean_lengths(folder: Path) -> tuple[float, float]:
    """(mean prompt, mean response) of what was trained on, in tokens."""
    rows = [json.loads(line) for line in (folder / "out" / "completions.jsonl").read_text("utf-8").split("\n") if line]
    trained = [row for row in rows if row["split"] == "train"]
    prompts = [len(row["prompt"]) for row in json.loads((folder / "train.json").read_text("utf-8"))]
    return sum(prompts) / len(prompts), sum(row["length"] for row in trained) / len(trained)


def plan(words: list[str], lengths: tuple[float, float], threads: int, cpu_seconds: bool) -> dict[str, Any]:
    """What `./train.sh plan --json` says, in a process of its own."""
    program = (
        "import sys, time, grpo.embedded.probe as probe\n"
        "from grpo.__main__ import main\n"
        "if sys.argv.pop(1) == 'cpu':\n"
        "    probe.probe.__kwdefaults__, probe.probe.__defaults__ = None, (time.process_time,)\n"
        "sys.exit(main(['plan', *sys.argv[1:]]))\n"
    )
    mean = [f"--mean_prompt={lengths[0]}", f"--mean_response={lengths[1]}", "--json"]
    command = [sys.executable, "-c", program, "cpu" if cpu_seconds else "wall", *words, *mean]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment(threads), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout) | {"took": time.perf_counter() - began}


def table(name: str, record: dict[str, Any]) -> str:
    """Markdown: phase by phase, planned beside measured."""
    measured, planned = record["measured"], record["planned"]
    seconds = planned["seconds"]["phases"]
    prompt, response = record["lengths"]
    lines = [f"**{name}**: prompts of {prompt:.0f}, responses of {response:.0f} tokens on average", ""]
    lines += ["| phase | planned, MB | measured, MB | ratio | planned, s | measured, s | ratio |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for phase in PHASES:
        ours, theirs = planned["phases"][phase]["bytes"] / 1e6, measured[phase]["peak"] / 1e6
        row = f"| {phase} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |"
        if phase in seconds:
            took = measured[phase]["seconds"]
            row += f" {seconds[phase]:.2f} | {took:.2f} | {seconds[phase] / took:.2f} |"
        else:
            row += " | | |"
        lines.append(row)
    most = [max(planned["phases"][phase]["bytes"] for phase in PHASES), max(measured[p]["peak"] for p in PHASES)]
    step = [sum(seconds.values()), sum(measured[phase]["seconds"] for phase in seconds)]
    ratios = {"memory": most[0] / most[1], "time": step[0] / step[1]}
    lines.append(
        f"| **the run's peak, a step** | {most[0] / 1e6:,.0f} | {most[1] / 1e6:,.0f} | {ratios['memory']:.2f} | "
        f"{step[0]:.2f} | {step[1]:.2f} | {ratios['time']:.2f} |"
    )
    for what, aim in AIMS.items():
        met = "met" if abs(ratios[what] - 1) <= aim else "NOT MET"
        lines += ["", f"{what}: {ratios[what]:.2f} of what was measured (aim within {aim:.0%}: {met})"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
