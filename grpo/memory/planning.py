"""From settings to a plan: which machine, which phases, what to change. The one door for --dry_run and the command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo.config import ConfigError, Settings
from grpo.memory import advice, on_verl, table
from grpo.memory.constants import CARDS
from grpo.memory.job import Job, job_of
from grpo.memory.machine import card_of, gpu_here, memory_here, threads_here
from grpo.memory.seconds import Estimate

ELSEWHERE = "for GPUs that are not in this machine: --engine verl --n_gpus 8"


@dataclass(frozen=True)
class Asked:
    """What the user says about the machine and the run. memory: bytes of each GPU; gpu: of constants.CARDS."""

    memory: int | None = None
    gpu: str | None = None
    mean_prompt: float | None = None
    mean_response: float | None = None


@dataclass(frozen=True)
class Planned:
    """A run's numbers, and the machine in words. card: of constants.CARDS, None = not known."""

    job: Job
    model: str
    where: str
    card: str | None


def plan(settings: Settings, engine: str, asked: Asked, steps: int | None = None) -> Planned:
    """What this run would need. Raises ConfigError for a model whose size is not known."""
    device = settings["trainer.device"]
    if device == "mps":
        device = "cpu"  # one memory for both
    found = None if device == "cpu" or asked.gpu else gpu_here()
    on_gpu = device == "cuda" or engine == "verl" or found is not None or asked.gpu is not None
    if engine == "verl" and device == "cpu":
        raise ConfigError("verl on the CPU is for debugging, and its memory is not planned: leave --device cpu out")
    card = asked.gpu or (card_of(found[0]) if found else None)
    memory, where = asked.memory, "given with --memory"
    if memory is None and asked.gpu:
        memory, where = CARDS[asked.gpu][2] * 10**9, asked.gpu
    elif memory is None and on_gpu and found:
        where, memory = found
    elif memory is None and not on_gpu:
        memory, where = memory_here(), "this machine"
    dtype = settings["launcher.dtype"]
    job = job_of(
        settings,
        engine=engine,
        device="gpu" if on_gpu else "cpu",
        memory=memory,
        bfloat16=dtype == "bfloat16" or (dtype == "auto" and on_gpu),
        steps=steps,
        mean_prompt=asked.mean_prompt,
        mean_response=asked.mean_response,
        threads=threads_here(),
    )
    return Planned(job, str(settings["actor_rollout_ref.model.path"]), where if memory else "memory not known", card)


def dry_run_lines(settings: Settings, engine: str) -> list[str]:
    """The table for --dry_run; one line that says why where there is none."""
    try:
        planned = plan(settings, engine, Asked())
    except ConfigError as reason:
        return [f"not planned: {reason}"]
    many = settings["trainer.n_gpus_per_node"] > 1 or advice.missing(planned.job)
    here = planned.job.engine != "verl" and planned.job.device == "cpu" and settings["trainer.device"] != "cpu"
    return [*short(planned), *([ELSEWHERE] if many and here else [])]


def short(planned: Planned) -> list[str]:
    """The model, the table, and whether it fits; where it does not, what to change."""
    job = planned.job
    phases = advice.phases_of(job)
    lines = [table.model_line(planned.model, job), *table.grid(phases, _place(planned))]
    lines.append(table.verdict(phases, advice.room(job), advice.missing(job)))
    if advice.missing(job):
        lines += table.remedy([advice.until_it_fits(job, more_gpus=more) for more in (False, True)])
    if job.engine == "verl":
        lines += table.verl_lines(job)
    return lines


def long(planned: Planned, estimate: Estimate | None, why_not: str) -> list[str]:
    """All that the command `plan` prints. why_not: why there is no estimate of the time."""
    job = planned.job
    lines = [
        *short(planned),
        "",
        *table.knob_lines(advice.savings(job)),
        *table.largest_lines(job, advice.largest(job)),
    ]
    return [*lines, "", *(table.time_lines(job, estimate) if estimate else [f"time: {why_not}"])]


def as_json(planned: Planned, estimate: Estimate | None) -> dict[str, object]:
    """The same as JSON values; bytes, seconds."""
    job = planned.job
    knobs, after = advice.until_it_fits(job)
    return {
        "engine": job.engine,
        "model": {"name": planned.model, "family": job.shape.family, "weights": job.shape.weights},
        "memory": {"bytes": job.memory, "where": planned.where, "room": advice.room(job)},
        "phases": {phase.name: {"bytes": phase.bytes, "parts": dict(phase.parts)} for phase in advice.phases_of(job)},
        "missing": advice.missing(job),
        "host": on_verl.host_bytes(job) if job.engine == "verl" else {},
        "knobs": [
            {"words": saving.knob.words, "phase": saving.phase, "saves": saving.saves, "peak": saving.peak}
            for saving in advice.savings(job)
        ],
        "to_fit": {"words": [knob.words for knob in knobs], "missing": advice.missing(after)},
        "largest": advice.largest(job),
        "seconds": None
        if estimate is None
        else {"phases": dict(estimate.phases), "step": estimate.step, "steps": job.steps, "source": estimate.source},
    }


def with_precision(planned: Planned, *, bfloat16: bool) -> Planned:
    """The plan once a probe has found which precision the arithmetic takes."""
    return replace(planned, job=replace(planned.job, width=2 if bfloat16 else 4))


def _place(planned: Planned) -> Sequence[str]:
    job = planned.job
    what = "each GPU" if job.engine == "verl" else "the GPU" if job.device == "gpu" else "the process"
    size = f", {table.size(job.memory)} ({planned.where})" if job.memory else " (memory not known: --memory 80GB)"
    return what, size
