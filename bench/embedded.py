"""Our embedded engine beside TRL's GRPOTrainer: seconds of a step, response tokens/s, CPU seconds, peak memory.

    .venv/bin/python bench/embedded.py                     # 5 to 10 minutes on two cores
    .venv/bin/python bench/embedded.py --record            # and writes bench/results/embedded.{json,md}
    .venv/bin/python bench/embedded.py --peers fast,compile,static --rounds 1

Shape: 3.2M-parameter Qwen2 (bench/small_shape.py), 8 prompts x 8 responses x 64 tokens, fp32, KL on. Both sides get
the same weights, prompts, reward function, threads and number of steps; responses may not end before 64 tokens, and
the tokens that each side read and wrote are counted and compared. The sides take turns, each in a process and an
environment of its own. bench/README.md says what is inside the measured step. Linux and macOS, CPU only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import trl_environment
from machine import busy_seconds, facts_lines, machine, processors

BENCH = Path(__file__).resolve().parent
REPO = BENCH.parent
# Threads that sleep while they wait: our engine asks for that itself, and TRL gets the same, or else a machine that
# does a little beside would make its steps ten times slower (bench/threads.py) and the comparison worthless.
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE"}
SPINNING = ("spinning",)
AIM = 1.5
BUSY = 0.05  # share of the machine that others may use before the numbers are called disturbed


def main() -> None:
    """Measure, print the table, and write it down when asked to."""
    given = options()
    shape = {"prompts": 8, "n": 8, "response_tokens": 64, "kl_coef": 0.001, "lr": 1e-6, "seed": given.seed}
    shape["steps"] = given.warmup + given.steps
    peers = given.peers.split(",") if given.peers else []
    trl_python = trl_environment.python() if peers else None
    facts = machine(given.threads)
    for line in facts_lines(facts):
        print(line, flush=True)
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as name:
        folder = Path(name)
        what = {"prompts": 8 * shape["steps"], "prompt_characters": 64, "seed": given.seed}
        made = [sys.executable, str(BENCH / "small_shape.py"), str(folder), json.dumps(what)]
        model = json.loads(subprocess.run(made, check=True, stdout=subprocess.PIPE, text=True).stdout)
        runs: dict[str, list[dict[str, Any]]] = {"ours": []} | {peer: [] for peer in peers}
        for number in range(given.rounds):
            for side, results in runs.items():
                print(f"round {number + 1} of {given.rounds}: {side} ...", end=" ", flush=True)
                scratch = folder / f"{side}-{number}"
                scratch.mkdir()
                if side == "ours":
                    run = run_ours(folder, scratch, shape, given.threads, given.set)
                else:
                    run = run_trl(trl_python, side, folder, scratch, shape, given.threads)
                results.append(run)
                own, others = median(run["seconds"][given.warmup :]), run["others"]
                print(f"{own:.2f} s a step" + (f", others used {others:.0%} of the machine" if others else ""))
    record = {
        "shape": shape,
        "model": model,
        "set": given.set,
        "machine": facts,
        "warmup": given.warmup,
        "rounds": given.rounds,
    }
    record |= {"sides": {side: summary(results, given.warmup) for side, results in runs.items()}, "runs": runs}
    text = table(record)
    print("\n" + text)
    if given.record:
        results = BENCH / "results"
        results.mkdir(exist_ok=True)
        (results / "embedded.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (results / "embedded.md").write_text(
            "\n".join(["# bench/embedded.py", "", *facts_lines(facts), "", text, ""]), encoding="utf-8"
        )


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warmup", type=int, default=2, help="steps of each process that are not counted")
    parser.add_argument("--steps", type=int, default=6, help="steps of each process that are")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side, in turns")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", default="plain,fast", help="names in SETTINGS of bench/peer_trl.py; '' = ours alone")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for our engine")
    parser.add_argument("--record", action="store_true", help="write bench/results/embedded.{json,md}")
    given = parser.parse_args()
    if min(given.steps, given.rounds) < 1 or given.warmup < 0:
        parser.error("--steps and --rounds from 1, --warmup from 0")
    return given


def run_ours(folder: Path, scratch: Path, shape: dict[str, Any], threads: int, overrides: list[str]) -> dict[str, Any]:
    """A run of the product as a user starts it; seconds and lengths as it wrote them down."""
    out, rows = scratch / "out", shape["prompts"] * shape["n"]
    flags = {
        "engine": "embedded", "device": "cpu", "dtype": "float32", "model": folder / "model",
        "data": folder / "train.json", "val_data": folder / "val.json", "reward_func": BENCH / "small_reward.py",
        "train_batch_size": shape["prompts"], "rollout_n": shape["n"], "max_prompt_length": 64,
        "max_response_length": shape["response_tokens"], "min_response_length": shape["response_tokens"],
        "kl_coef": shape["kl_coef"], "lr": shape["lr"], "max_steps": shape["steps"], "epochs": 1, "save_freq": -1,
        "test_freq": -1, "report_to": "file", "seed": shape["seed"], "output_dir": out,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += ["trainer.val_before_train=false", "actor_rollout_ref.model.custom_chat_template=plain", *overrides]
    run = watch([sys.executable, "-m", "grpo", *words], scratch, threads, {"PYTHONPATH": str(REPO)})
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lengths = dict.fromkeys((step["step"] for step in steps), 0)
    for line in (out / "completions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["split"] == "train":
            lengths[row["step"]] += row["length"]
    # tokens_per_second counts prompts and responses.
    both = [round(step["tokens_per_second"] * step["seconds_per_step"]) for step in steps]
    return run | {
        "seconds": [step["seconds_per_step"] for step in steps],
        "prompt_tokens": [total - length for total, length in zip(both, lengths.values(), strict=True)],
        "response_tokens": list(lengths.values()),
        **between_scorings(scratch, rows, len(steps)),
    }


def run_trl(
    python: Path | None, settings: str, folder: Path, scratch: Path, shape: dict[str, Any], threads: int
) -> dict[str, Any]:
    """A run of bench/peer_trl.py in TRL's environment."""
    spec, result = scratch / "spec.json", scratch / "result.json"
    files = {"model": folder / "model", "data": folder / "train.json", "scratch": scratch / "out", "result": result}
    values = shape | {name: str(path) for name, path in files.items()} | {"settings": settings}
    spec.write_text(json.dumps(values), encoding="utf-8")
    environment = {} if settings in SPINNING else SLEEPING
    run = watch([str(python), str(BENCH / "peer_trl.py"), str(spec)], scratch, threads, environment)
    found = json.loads(result.read_text(encoding="utf-8"))
    return run | found | between_scorings(scratch, shape["prompts"] * shape["n"], shape["steps"])


def watch(command: list[str], scratch: Path, threads: int, environment: dict[str, str]) -> dict[str, Any]:
    """Run to the end; its peak memory, and how much of the machine others used meanwhile."""
    log = scratch / "log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "KMP_"))}
    kept |= {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "BENCH_CLOCK": str(scratch / "clock"),
        **environment,
    }
    began, busy_before = time.monotonic(), busy_seconds()
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=kept, cwd=scratch, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, busy_after = time.monotonic() - began, busy_seconds()
    if process.returncode:
        raise SystemExit(f"{log.read_text(errors='replace')[-4000:]}\n{' '.join(command)}: exit {process.returncode}")
    others = None
    if busy_before is not None and busy_after is not None:
        own = usage.ru_utime + usage.ru_stime
        others = max(0.0, (busy_after - busy_before - own) / (seconds * (os.cpu_count() or 1)))
    return {
        "process_seconds": seconds,
        "peak_mib": usage.ru_maxrss / (1024 if sys.platform == "linux" else 2**20),
        "others": others,
    }


def between_scorings(scratch: Path, rows: int, steps: int) -> dict[str, list[float]]:
    """Wall and CPU seconds from a step's first reward call to the next step's (small_reward.py): steps - 1 of each."""
    lines = [json.loads(line) for line in (scratch / "clock").read_text(encoding="utf-8").splitlines()]
    first = lines[-rows * steps :: rows]  # before them, our rehearsal of the reward on a few gold answers
    pairs = list(itertools.pairwise(first))
    return {
        "cycle_seconds": [after[0] - before[0] for before, after in pairs],
        "cycle_cpu_seconds": [after[1] - before[1] for before, after in pairs],
    }


def summary(runs: list[dict[str, Any]], warmup: int) -> dict[str, Any]:
    """What one side took, over the measured steps of all its processes."""
    seconds = [value for run in runs for value in run["seconds"][warmup:]]
    response_tokens = [value for run in runs for value in run["response_tokens"][warmup:]]
    cpu = [value for run in runs for value in run["cycle_cpu_seconds"][max(0, warmup - 1) :]]
    shares = [run["others"] for run in runs if run["others"] is not None]
    return {
        "seconds": median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "steps_per_second": 1 / median(seconds),
        "response_tokens_per_second": median(t / s for t, s in zip(response_tokens, seconds, strict=True)),
        "cpu_seconds": median(cpu) if cpu else float("nan"),
        "peak_mib": median(run["peak_mib"] for run in runs),
        "prompt_tokens": sorted({value for run in runs for value in run["prompt_tokens"]}),
        "response_tokens": sorted({value for run in runs for value in run["response_tokens"]}),
        "others": max(shares) if shares else None,
    }


ROWS = (
    ("seconds per step", "seconds", "{:.2f}"),
    ("  fastest", "fastest", "{:.2f}"),
    ("  slowest", "slowest", "{:.2f}"),
    ("steps per second", "steps_per_second", "{:.3f}"),
    ("response tokens per second", "response_tokens_per_second", "{:,.0f}"),
    ("CPU seconds per step", "cpu_seconds", "{:.2f}"),
    ("peak memory of the process, MiB", "peak_mib", "{:,.0f}"),
)


def table(record: dict[str, Any]) -> str:
    """Markdown: every side's numbers, the ratios to each peer, and what was checked."""
    sides, shape = record["sides"], record["shape"]
    ours, peers = sides["ours"], [side for side in sides if side != "ours"]
    head = ["", "ours", *(f"TRL {peer}" for peer in peers), *(f"ours / TRL {peer}" for peer in peers)]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    for name, key, form in ROWS:
        ratios = [f"{ours[key] / sides[peer][key]:.2f}" for peer in peers]
        lines.append([name, *(form.format(side[key]) for side in sides.values()), *ratios])
    for name in ("prompt_tokens", "response_tokens"):
        counts = [", ".join(map(str, side[name])) for side in sides.values()]
        equal = all(side[name] == ours[name] for side in sides.values()) and len(ours[name]) == 1
        lines.append(
            [f"{name.replace('_', ' ')} per step", *counts, *("equal" if equal else "DIFFERENT" for _ in peers)]
        )
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    measured = record["rounds"] * (shape["steps"] - record["warmup"])
    if record["set"]:
        text += f"\n\nOurs with {' '.join(record['set'])}."
    text += (
        f"\n\n{record['model']['weights']:,} weights, {shape['prompts']} prompts x {shape['n']} responses x "
        f"{shape['response_tokens']} tokens; medians of {measured} steps in {record['rounds']} processes of each side, "
        f"after {record['warmup']} steps in each that do not count."
    )
    for peer in peers:
        times = sides[peer]["seconds"] / ours["seconds"]
        aim = f" (aim {AIM}: {'met' if times >= AIM else 'NOT met'})"
        text += f"\n\nA step of TRL {peer} takes {times:.2f} times as long as ours{aim if peer != 'plain' else ''}."
    shares = {side: values["others"] for side, values in sides.items() if values["others"] is not None}
    if shares and max(shares.values()) > BUSY:
        said = ", ".join(f"{side} {share:.0%}" for side, share in shares.items())
        text += f"\n\nDISTURBED: others used so much of the machine during the worst process of each side: {said}."
    return text


if __name__ == "__main__":
    main()
