"""How long a step takes, and a run: from a probe of this machine (embedded), or from a card's peak numbers (verl).

Leaves out evaluation, checkpoints and the reward's own time, which neither knows. Legend: L prompt, R response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grpo.memory import constants, on_verl
from grpo.memory.job import Job
from grpo.memory.shape import Shape


@dataclass(frozen=True)
class Line:
    """Seconds of one kind of work on a model of any size: fixed + layers x per_layer + vocabulary x per_word."""

    fixed: float
    per_layer: float
    per_word: float

    def of(self, shape: Shape) -> float:
        """Seconds with this model."""
        return self.fixed + shape.layers * self.per_layer + shape.vocabulary * self.per_word


@dataclass(frozen=True)
class Probed:
    """What grpo/embedded/probe.py measured on this model's widths.

    prefill: of prefill_tokens prompt tokens; decode: of one step of decode_lines responses; decode_few: of few_lines;
    forward, backward: of packed_tokens tokens without and with gradients; adam_per_weight: of an optimizer step; flops:
    FLOP/s in the backward pass; bandwidth: bytes/s of a copy in memory
    """

    prefill: Line
    prefill_tokens: int
    decode: Line
    decode_lines: int
    decode_few: Line
    few_lines: int
    forward: Line
    backward: Line
    packed_tokens: int
    adam_per_weight: float
    flops: float
    bandwidth: float

    def decoding(self, shape: Shape, lines: float) -> float:
        """Seconds of one step of so many responses: a part that each step takes, and one for each response."""
        most, few = self.decode.of(shape), self.decode_few.of(shape)
        if self.few_lines == self.decode_lines:
            return most * lines / self.decode_lines
        each = max(0.0, most - few) / (self.decode_lines - self.few_lines)
        return max(0.0, most + each * (lines - self.decode_lines))


REFILLED = 0.75  # share of the lines that are at it while other prompts wait (grpo/embedded/rollout.py)


@dataclass(frozen=True)
class Estimate:
    """Seconds of each phase of a step, and where they come from."""

    phases: Mapping[str, float]
    source: str

    @property
    def step(self) -> float:
        """All phases."""
        return sum(self.phases.values())


def tokens_of(job: Job) -> tuple[float, float]:
    """(prompt tokens, response tokens) that are expected of a step; each prompt once."""
    return job.prompts * job.mean_prompt, job.prompts * job.n * job.mean_response


def flops_of(job: Job) -> dict[str, float]:
    """What the maths of a step needs: every prompt once per group, every response token once in each phase."""
    prompts, responses = tokens_of(job)
    along = 4 * job.shape.query_width * job.shape.layers  # of attention, per token and token before it
    attention = along * (prompts * job.mean_prompt / 2 + responses * (job.mean_prompt + job.mean_response / 2))
    head = job.shape.vocabulary * job.shape.hidden
    once = 2 * (job.shape.used - head) * (prompts + responses) + 2 * head * responses + attention
    backward = 2 if not job.lora else 1  # frozen weights have no gradient of their own
    update = job.epochs * once * (1 + backward + (1 if job.checkpointing else 0))
    return {"rollout": once, **({"log-prob": once} if job.reference else {}), "update": update}


def embedded_seconds(job: Job, probed: Probed) -> Estimate:
    """A step of the embedded engine on this machine."""
    shape, (prompts, responses) = job.shape, tokens_of(job)
    lines = min(max(1, job.rows // job.n), job.prompts) * job.n
    rounds = job.prompts * job.n / lines
    # Of many responses of different length one is nearly as long as they may be; the others leave the batch earlier,
    # and where half of it is free others begin.
    ragged = job.mean_response < job.response_tokens
    steps = job.response_tokens + (rounds - 1) * job.mean_response / REFILLED if ragged else rounds * job.mean_response
    one = probed.decoding(shape, rounds * lines * job.mean_response / steps)
    rollout = probed.prefill.of(shape) * prompts / probed.prefill_tokens + max(0.0, steps - rounds) * one
    packed = (prompts + responses) / probed.packed_tokens
    optimizer_steps = job.epochs * -(-job.prompts // job.mini_prompts)
    found = {"rollout": rollout}
    if job.reference:
        found["log-prob"] = packed * probed.forward.of(shape)
    found["update"] = (
        job.epochs * packed * probed.backward.of(shape) + optimizer_steps * job.trained * probed.adam_per_weight
    )
    return Estimate(found, "a probe of this machine")


def verl_seconds(job: Job, card: str) -> Estimate:
    """A step of verl on so many of these cards, were they used as constants.ASSUMED says. card: of constants.CARDS.

    verl runs every response with its own prompt, and takes the log-probs of the policy once more than we do.
    """
    tflops, terabytes, _ = constants.CARDS[card]
    assumed, shape = constants.ASSUMED, job.shape
    tokens = job.prompts * job.n * (job.mean_prompt + job.mean_response)
    seen = (job.mean_prompt + job.mean_response) / 2
    once = tokens * (2 * shape.used + 4 * shape.query_width * shape.layers * seen)
    rate = tflops * 1e12 * job.gpus
    replicas = max(1, job.gpus // job.tensor_parallel)
    lines = max(1.0, min(job.prompts * job.n / replicas, job.rows, max(1, on_verl.responses_at_once(job))))
    rounds = job.prompts * job.n / replicas / lines
    cache = lines * (job.mean_prompt + job.mean_response / 2) * on_verl.cache_per_token(job)
    decode = (on_verl.vllm_weights(job) + cache) / (terabytes * 1e12 * assumed["decode"])
    compute = 2 * shape.used * lines / (tflops * 1e12 * job.tensor_parallel * assumed["forward"])
    found = {"rollout": rounds * job.mean_response * max(decode, compute)}
    found["log-prob"] = (2 if job.reference else 1) * once / (rate * assumed["forward"])
    found["update"] = job.epochs * once * (4 if job.checkpointing else 3) / (rate * assumed["update"])
    found["other"] = constants.STEP_OVERHEAD
    shares = f"{assumed['update']:.0%} of {tflops:g} TFLOP/s, {assumed['decode']:.0%} of {terabytes:g} TB/s"
    return Estimate(found, f"ASSUMED, not measured: {shares}, {constants.STEP_OVERHEAD:g} s a step for all else")
