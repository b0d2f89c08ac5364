"""Real verl on this CPU, through our launcher and by hand: start-up, seconds of a step and its parts, what we add.

    .venv/bin/python bench/verl_cpu.py               # about five minutes on two cores
    .venv/bin/python bench/verl_cpu.py --record      # and writes bench/results/verl_cpu.json

A 0.15M-parameter Qwen2, 8 prompts x 4 responses x 16 tokens, 8 steps, FSDP2 over gloo, vLLM; no evaluation, a
checkpoint at the end. First `./train.sh --engine verl --device cpu` in this process, then the very same command that
it wrote to outputs/launch.sh, by itself. Our CPU seconds are those of the launcher's process: verl's are its
children's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from machine import facts_lines, machine

BENCH = Path(__file__).resolve().parent
REPO = BENCH.parent
STEPS = 8
PARTS = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights")
REWARD = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str) % 7\n"
)


def main() -> None:
    """Measure, print, and write it down when asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write bench/results/verl_cpu.json")
    given = parser.parse_args()
    sys.path.insert(0, str(REPO))
    facts = machine(os.cpu_count() or 1)
    print("\n".join(facts_lines(facts)), flush=True)
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as name:
        folder = Path(name)
        ours = through_the_launcher(folder)
        hand = by_hand(folder)
    rows = [
        ("start to first step, s", ours["start"], hand["start"]),
        ("step, s (median)", ours["step"], hand["step"]),
        *((f"  {part}", ours["parts"][part], hand["parts"][part]) for part in PARTS if part in ours["parts"]),
        ("whole process, s", ours["whole"], hand["whole"]),
    ]
    print(f"\n{'':<26}{'launcher':>10}{'by hand':>10}{'ratio':>8}")
    for title, mine, theirs in rows:
        print(f"{title:<26}{mine:>10.2f}{theirs:>10.2f}{mine / theirs if theirs else float('nan'):>8.2f}")
    print(f"\nCPU seconds that the launcher adds: {ours['cpu_start']:.2f} until the first step (aim < 3),")
    print(f"{ours['cpu_step']:.3f} a step (aim < 0.1), {ours['cpu_end']:.2f} after the last (summary and report)")
    if given.record:
        result = {"machine": facts, "launcher": ours, "by_hand": hand}
        (BENCH / "results" / "verl_cpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def through_the_launcher(folder: Path) -> dict[str, Any]:
    """The run as a user starts it, but in this process, whose CPU seconds are read as each step is recorded."""
    from grpo.__main__ import main as launch
    from grpo.embedded.scratch import make_model, make_tokenizer

    tokenizer = make_tokenizer("bytes")
    model = make_model(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=1)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    out = folder / "ours"
    words = [
        *("--engine", "verl", "--device", "cpu", "--model", str(folder / "model"), "--output_dir", str(out)),
        *("--reward_func", str(folder / "reward.py"), "--train_batch_size", "8", "--rollout_n", "4"),
        *("--max_response_length", "16", "--max_prompt_length", "64", "--max_steps", str(STEPS), "--seed", "7"),
        *("--save_freq", "-1", "--test_freq", "-1", "trainer.val_before_train=false", "data.val_max_samples=8"),
    ]
    marks: dict[int, tuple[float, float]] = {}
    ended = threading.Event()
    watcher = threading.Thread(target=_mark, args=(out / "metrics.jsonl", marks, ended))
    began, cpu = time.perf_counter(), time.process_time()
    watcher.start()
    code = launch(words)
    whole, cpu_whole = time.perf_counter() - began, time.process_time() - cpu
    ended.set()
    watcher.join()
    if code != 0:
        raise SystemExit(f"the run failed with exit code {code}")
    first, last = marks[1], marks[STEPS]
    return _of_verl(out) | {
        "start": first[0] - began,
        "whole": whole,
        "cpu_start": first[1] - cpu,
        "cpu_step": (last[1] - first[1]) / (STEPS - 1),
        "cpu_end": cpu + cpu_whole - last[1],
    }


def _mark(metrics: Path, marks: dict[int, tuple[float, float]], ended: threading.Event) -> None:
    """Note (wall clock, this process's CPU seconds) when a step's line appears."""
    while not ended.wait(0.2):
        lines = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
        for step in range(1, lines + 1):
            marks.setdefault(step, (time.perf_counter(), time.process_time()))


def by_hand(folder: Path) -> dict[str, Any]:
    """The same command without the launcher, into a folder of its own."""
    out = folder / "hand"
    shutil.copytree(folder / "ours" / "data", out / "data")
    script = (folder / "ours" / "launch.sh").read_text(encoding="utf-8").replace(str(folder / "ours"), str(out))
    (out / "launch.sh").write_text(script, encoding="utf-8")
    metrics = out / "verl_metrics.jsonl"
    began = time.perf_counter()
    with open(out / "verl.log", "wb") as log:
        child = subprocess.Popen(["bash", str(out / "launch.sh")], cwd=out, stdout=log, stderr=subprocess.STDOUT)
        start = 0.0
        while child.poll() is None:
            if not start and metrics.is_file() and metrics.stat().st_size:
                start = time.perf_counter() - began
            time.sleep(0.2)
    if child.returncode != 0:
        raise SystemExit(f"main_ppo by hand failed: {(out / 'verl.log').read_text(errors='replace')[-2000:]}")
    return _of_verl(out) | {"start": start, "whole": time.perf_counter() - began}


def _of_verl(out: Path) -> dict[str, Any]:
    """Medians of what verl timed, the first step apart: it waits for the workers' imports."""
    rows = [json.loads(line)["data"] for line in (out / "verl_metrics.jsonl").read_text().splitlines()][1:]
    parts = {part: median(row[f"timing_s/{part}"] for row in rows) for part in PARTS if f"timing_s/{part}" in rows[0]}
    return {"step": median(row["timing_s/step"] for row in rows), "parts": parts}


if __name__ == "__main__":
    main()
