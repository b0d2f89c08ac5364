"""A plan as lines for a reader. Computes nothing but the form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpo.memory import constants, on_verl
from grpo.memory.advice import Knob, Saving, missing, peak
from grpo.memory.job import Job
from grpo.memory.parts import Phase
from grpo.memory.seconds import Estimate


def size(number: float) -> str:
    """Bytes for a reader: `15.2 GB`, `0.9 GB`, `13 MB`."""
    return f"{number / 1e9:,.1f} GB" if number >= 0.95e9 else f"{number / 1e6:,.0f} MB"


def duration(seconds: float) -> str:
    """`0.45 s`, `12 s`, `3.5 min`, `29 h`, `6.0 days`."""
    for most, unit, name in ((9.95, 1, "s"), (120, 1, "s"), (7200, 60, "min"), (72 * 3600, 3600, "h")):
        if seconds < most:
            number = seconds / unit
            return f"{number:.2g} {name}" if number < 9.95 else f"{number:.0f} {name}"
    return f"{seconds / 86400:,.1f} days"


def model_line(name: str, job: Job) -> str:
    """The model and its weights."""
    shape = job.shape
    count = f"{shape.weights / 1e9:.2f}B" if shape.weights >= 1e9 else f"{shape.weights / 1e6:.1f}M"
    used = f", {shape.used / 1e9:.2f}B of them used by a token" if shape.used_in_layers < shape.in_layers else ""
    trained = f"; LoRA trains {job.lora / 1e6:.1f}M" if job.lora else ""
    return f"{name}: {count} weights ({shape.family}){used}{trained}"


def grid(phases: Sequence[Phase], place: Sequence[str]) -> list[str]:
    """Parts below each other, phases beside each other, in GB."""
    names = list(dict.fromkeys(name for phase in phases for name, bytes_ in phase.parts if bytes_))
    rows = [["GB on " + place[0], *(phase.name for phase in phases)]]
    for name in names:
        rows.append([name, *(_cell(dict(phase.parts).get(name, 0)) for phase in phases)])
    rows.append(["together", *(_cell(phase.bytes) for phase in phases)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    lines[0] += place[1]
    return lines


def _cell(number: int) -> str:
    return f"{number / 1e9:,.2f}" if number else "-"


def verdict(phases: Sequence[Phase], room: int | None, lacks: int) -> str:
    """Whether it fits."""
    largest = max(phases, key=lambda phase: phase.bytes)
    most = f"at most {size(largest.bytes)}, in {largest.name}"
    if room is None:
        how = "./train.sh plan with --memory 80GB or --gpu H100 tells whether it fits"
        return f"{most}; the GPUs' memory is not known: {how}"
    there = f"{size(room)} that can be planned with ({constants.MARGIN:.0%})"
    if not lacks:
        return f"{most}, of {there}: fits"
    over = [f"{phase.name} lacks {size(phase.bytes - room)}" for phase in phases if phase.bytes > room]
    return f"{most}, of {there}: DOES NOT FIT" + "".join(f"; {text}" for text in over)


def remedy(ways: Sequence[tuple[Sequence[Knob], Job]]) -> list[str]:
    """What to change until it fits: each way that leads there."""
    lines = []
    for knobs, after in ways:
        if not missing(after) and knobs:
            lines.append(f"fits with {' '.join(knob.words for knob in knobs)} (at most {size(peak(after))})")
    return list(dict.fromkeys(lines)) or ["no knob here makes it fit: take more or larger GPUs, or a smaller model"]


def verl_lines(job: Job) -> list[str]:
    """What vLLM has room for, and what waits in CPU memory."""
    host = on_verl.host_bytes(job)
    waits = " + ".join(f"{name} {size(number)}" for name, number in host.items())
    lines = [f"CPU memory of each machine: {waits}, and verl's processes"]
    if job.memory is None:
        return lines
    if lacks := on_verl.vllm_lacks(job):
        return [f"vLLM does not start: its share lacks {size(lacks)} for its weights and one response", *lines]
    many, wanted = on_verl.responses_at_once(job), job.prompts * job.n * job.tensor_parallel / job.gpus
    most = min(wanted, job.rows)
    enough = f"{many:,} responses of the {most:,.0f} that could run" if many < most else f"all {most:,.0f} responses"
    return [f"vLLM: {size(on_verl.vllm_weights(job))} of weights, and cache for {enough} at once", *lines]


def knob_lines(found: Sequence[Saving]) -> list[str]:
    """What each knob saves, in the order to try."""
    if not found:
        return []
    wide = max(len(saving.knob.words) for saving in found)
    lines = ["what each saves by itself, in the order to try:"]
    for saving in found:
        words = f"  {saving.knob.words:<{wide}}  {size(saving.saves):>8} in {saving.phase:<8}"
        lines.append(f"{words}  -> at most {size(saving.peak)}; costs {saving.knob.costs}")
    return lines


def largest_lines(job: Job, found: Mapping[str, int]) -> list[str]:
    """The largest batch that fits."""
    lines = []
    for key, value in found.items():
        if value:
            lines.append(f"largest that fits: {key}={value}")
        else:
            lines.append(f"{key}: not even one response of full length fits; see above what saves memory")
    return lines


def time_lines(job: Job, estimate: Estimate) -> list[str]:
    """Seconds of a step and of the run."""
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in estimate.phases.items())
    lines = [f"a step takes about {duration(estimate.step)}: {parts} ({estimate.source})"]
    if job.steps:
        lines.append(f"all {job.steps:,} steps take about {duration(job.steps * estimate.step)}, without evaluation")
    if job.mean_response == job.response_tokens:
        lines.append("counted with responses of full length; --mean_response TOKENS says what you expect")
    return lines
