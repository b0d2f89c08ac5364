"""What both engines' plans are made of: a phase and its parts, and what a layer takes for so many tokens."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.memory import constants
from grpo.memory.job import Job

ADAM, GRADIENT = 8, 4  # bytes per trained weight, float32 on both engines


@dataclass(frozen=True)
class Phase:
    """One phase of a step. parts: what takes memory, and its bytes."""

    name: str
    parts: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """All parts together."""
        return sum(size for _, size in self.parts)


def kept(job: Job, tokens: int) -> int:
    """Bytes of what is kept of so many tokens for the backward pass, and of the gradients in the layer at work."""
    in_layer = _numbers(job, constants.KEPT["written out" if _written_out(job) else job.engine])
    of_each = constants.CHECKPOINTED[job.engine] * job.shape.hidden if job.checkpointing else in_layer
    at_work = _numbers(job, constants.GRADIENTS_PASSING) + (in_layer if job.checkpointing else 0)
    return int(tokens * job.width * (job.shape.layers * of_each + at_work))


def passing(job: Job, tokens: int) -> int:
    """Bytes that one layer needs for so many tokens in a pass without gradients."""
    return int(tokens * job.width * _numbers(job, constants.VALUES_PASSING))


def _written_out(job: Job) -> bool:
    """Whether grpo/embedded/llama_reading.py is what reads a row; what is recomputed is transformers' own."""
    plain = job.width == job.weight_bytes == 4 and not job.checkpointing
    return job.engine == "embedded" and job.device == "cpu" and plain and job.shape.family in constants.WRITTEN_OUT


def _numbers(job: Job, times: dict[str, float]) -> float:
    shape = job.shape
    widths = {"hidden": shape.hidden, "query": shape.query_width, "kv": shape.kv_width, "inner": shape.inner}
    return sum(factor * widths[name] for name, factor in times.items())
