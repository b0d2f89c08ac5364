"""How bench/compare.py runs each side: a process of its own; seconds and tokens of each step, CPU seconds, memory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import trl_environment
from machine import busy_seconds
from shapes import Shape

BENCH = Path(__file__).resolve().parent
REPO = BENCH.parent
# Threads that sleep while they wait: our engine asks for that itself, and TRL gets the same, or else a machine that
# does a little beside would make its steps ten times slower (bench/threads.py) and the comparison worthless.
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE"}
SPINNING = ("spinning",)
UPDATE_LR = 1e-3  # large enough that float32 does not round the changes
ROUNDS = 3  # of sampling alone, after one that warms up


@dataclass(frozen=True)
class Job:
    """What every side is given. folder: holds model/, train.json, val.json; overrides, dtype: for ours alone."""

    folder: Path
    shape: Shape
    steps: int
    threads: int
    seed: int
    overrides: tuple[str, ...]
    dtype: str


def ours(job: Job, scratch: Path) -> dict[str, Any]:
    """A run of the product as a user starts it; seconds and lengths as it wrote them down."""
    words = [*_own_words(job, scratch), *job.overrides]
    run = _watch([sys.executable, "-m", "grpo", *words], job, scratch, {"PYTHONPATH": str(REPO)})
    return run | _recorded(job, scratch / "out")  # rewards run in worker processes, whose CPU clock tells nothing


def our_update(job: Job, scratch: Path) -> Path:
    """One step of ours on the responses of bench/same_update.py; the folder of the model after it."""
    words = _own_words(job, scratch, lr=UPDATE_LR, norm_adv_by_std="false")
    words.append("actor_rollout_ref.actor.optim.weight_decay=0")
    spec = {"shape": vars(job.shape), "words": words}
    _child(["--ours"], Path(sys.executable), spec, job, scratch)
    return scratch / "out" / "checkpoints" / "final"


def trl_update(job: Job, scratch: Path) -> Path:
    """The same of TRL."""
    spec = _trl_spec(job, scratch, "update") | {"shape": vars(job.shape), "lr": UPDATE_LR, "save": str(scratch / "out")}
    _child(["--trl"], trl_environment.python(), spec, job, scratch)
    return scratch / "out"


def verl(job: Job, scratch: Path) -> dict[str, Any]:
    """verl on this CPU (FSDP2, vLLM), started through the launcher, whose processes take no part in a step."""
    words = _flags(job, scratch, {"engine": "verl", "device": "cpu"})
    words += ["trainer.val_before_train=false", "actor_rollout_ref.model.custom_chat_template=plain"]
    words += ["actor_rollout_ref.rollout.ignore_eos=true"] if job.shape.shortest is None else []
    run = _watch([sys.executable, "-m", "grpo", *words], job, scratch, {"PYTHONPATH": str(REPO)})
    return run | _recorded(job, scratch / "out")


def trl(job: Job, scratch: Path, settings: str) -> dict[str, Any]:
    """A run of bench/peer_trl.py in TRL's environment."""
    spec = _trl_spec(job, scratch, settings)
    environment = {} if settings in SPINNING else SLEEPING
    found = _in_environment(trl_environment.python(), "peer_trl.py", spec, job, scratch, environment)
    return found | _between_scorings(job, scratch)


def vllm(job: Job, scratch: Path) -> dict[str, Any]:
    """Sampling alone by vLLM in verl's environment."""
    sys.path.insert(0, str(REPO))
    from grpo.verl_backend.installation.environment import find_environment

    environment = find_environment("cpu")
    if environment is None:
        raise SystemExit("vLLM is in verl's environment: ./train.sh setup --engine verl --device cpu")
    own = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    return _in_environment(environment.python, "peer_vllm.py", _sampling(job, scratch), job, scratch, own)


def our_sampling(job: Job, scratch: Path) -> dict[str, Any]:
    """Sampling alone by ours."""
    spec = _sampling(job, scratch) | {"threads": job.threads, "dtype": job.dtype}
    return _in_environment(Path(sys.executable), "own_sampling.py", spec, job, scratch, {"GOMP_SPINCOUNT": "1000"})


def seconds_said(run: dict[str, Any], warmup: int) -> str:
    """For the terminal, as soon as a process has ended."""
    if "tokens" in run:
        return f"{median(t / s for t, s in zip(run['tokens'], run['seconds'], strict=True)):,.0f} tokens/s"
    others = f", others used {run['others']:.0%} of the machine" if run.get("others") else ""
    return f"{median(run['seconds'][warmup:]):.2f} s a step{others}"


def _own_words(job: Job, scratch: Path, **more: object) -> list[str]:
    extra = {"engine": "embedded", "device": "cpu", "dtype": job.dtype, "min_response_length": job.shape.least}
    own = ["trainer.val_before_train=false", "actor_rollout_ref.model.custom_chat_template=plain"]
    return [*_flags(job, scratch, extra | more), *own]


def _flags(job: Job, scratch: Path, extra: dict[str, object]) -> list[str]:
    shape, folder = job.shape, job.folder
    flags: dict[str, object] = {
        "model": folder / "model", "data": folder / "train.json", "val_data": folder / "val.json",
        "reward_func": BENCH / "small_reward.py", "train_batch_size": shape.prompts, "rollout_n": shape.n,
        "max_prompt_length": shape.prompt[1], "max_response_length": shape.tokens, "kl_coef": 0.001, "lr": 1e-6,
        "max_steps": job.steps, "epochs": 1, "save_freq": -1, "test_freq": -1, "report_to": "file", "seed": job.seed,
        "output_dir": scratch / "out",
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in (flags | extra).items()]


def _trl_spec(job: Job, scratch: Path, settings: str) -> dict[str, Any]:
    shape = job.shape
    files = {name: str(job.folder / name) for name in ("model",)} | {"data": str(job.folder / "train.json")}
    return files | {
        "prompts": shape.prompts, "n": shape.n, "response_tokens": shape.tokens, "least_tokens": shape.least,
        "kl_coef": 0.001, "lr": 1e-6, "seed": job.seed, "steps": job.steps, "settings": settings,
        "scratch": str(scratch / "out"), "result": str(scratch / "result.json"),
    }  # fmt: skip


def _sampling(job: Job, scratch: Path) -> dict[str, Any]:
    shape, rounds = job.shape, min(ROUNDS, job.steps - 1)
    return {
        "model": str(job.folder / "model"), "data": str(job.folder / "train.json"), "prompts": shape.prompts,
        "n": shape.n, "tokens": shape.tokens, "least": shape.least, "rounds": rounds, "eager": True,
        "result": str(scratch / "result.json"),
    }  # fmt: skip


def _child(words: list[str], python: Path, spec: dict[str, Any], job: Job, scratch: Path) -> None:
    file = scratch / "spec.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    _watch([str(python), str(BENCH / "same_update.py"), *words, str(file)], job, scratch, {"PYTHONPATH": str(BENCH)})


def _in_environment(
    python: Path, script: str, spec: dict[str, Any], job: Job, scratch: Path, environment: dict[str, str]
) -> dict[str, Any]:
    file = scratch / "spec.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    run = _watch([str(python), str(BENCH / script), str(file)], job, scratch, environment)
    return run | json.loads(Path(spec["result"]).read_text(encoding="utf-8"))


def _watch(command: list[str], job: Job, scratch: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run to the end; its peak memory, and how much of the machine others used meanwhile."""
    log = scratch / "log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_", "KMP_"))}
    clock = {"BENCH_CLOCK": str(scratch / "clock"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(job.threads)}
    began, busy_before = time.monotonic(), busy_seconds()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=kept | clock | environment, cwd=scratch, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, busy_after = time.monotonic() - began, busy_seconds()
    if process.returncode:
        raise SystemExit(f"{log.read_text(errors='replace')[-4000:]}\n{' '.join(command)}: exit {process.returncode}")
    others = None
    if busy_before is not None and busy_after is not None:
        own = usage.ru_utime + usage.ru_stime
        others = max(0.0, (busy_after - busy_before - own) / (seconds * (os.cpu_count() or 1)))
    peak = usage.ru_maxrss / (1024 if sys.platform == "linux" else 2**20)
    return {"process_seconds": seconds, "peak_mib": peak, "others": others}


def _recorded(job: Job, out: Path) -> dict[str, Any]:
    """Seconds and tokens of every step from the files of a run, whichever engine wrote them."""
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [step for step in steps if "seconds_per_step" in step]
    lengths: dict[int, list[int]] = {step["step"]: [] for step in steps}
    prompts: dict[int, list[str]] = {step["step"]: [] for step in steps}
    for line in (out / "completions.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:  # U+2028 ends no line
        row = json.loads(line)
        if row["split"] == "train" and row["step"] in lengths:
            lengths[row["step"]].append(row["length"])
            prompts[row["step"]].append(row["prompt"])
    last = steps[-1]["step"]
    return {
        "seconds": [step["seconds_per_step"] for step in steps],
        "prompt_tokens": [sum(map(len, texts)) for texts in prompts.values()],
        "response_tokens": [sum(each) for each in lengths.values()],
        "last_step": {"prompts": [len(text) for text in prompts[last][:: job.shape.n]], "responses": lengths[last]},
    }


def _between_scorings(job: Job, scratch: Path) -> dict[str, list[float]]:
    """Wall and CPU seconds from a step's first reward call to the next step's (small_reward.py): steps - 1 of each."""
    rows = job.shape.responses
    lines = [json.loads(line) for line in (scratch / "clock").read_text(encoding="utf-8").splitlines()]
    first = lines[-rows * job.steps :: rows]  # before them, our rehearsal of the reward on a few gold answers
    pairs = list(itertools.pairwise(first))
    return {
        "cycle_seconds": [after[0] - before[0] for before, after in pairs],
        "cycle_cpu_seconds": [after[1] - before[1] for before, after in pairs],
    }
