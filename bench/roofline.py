"""The least that a step of GRPO needs: its FLOPs, the bytes that decoding reads, and the time of both on this machine.

Counted: each prompt once for its group in sampling, reference and update; each response token once forward for
sampling, once for the reference, once forward and twice that backward for the update. Nothing for padding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from shapes import Shape

MOST_ROWS = 2048  # a product of more rows is no faster


@dataclass(frozen=True)
class Work:
    """Least work of a step. flops of each phase; decode_bytes: weights and cache that the decoding steps must read."""

    sample: float
    reference: float
    update: float
    decode_bytes: float

    @property
    def flops(self) -> float:
        return self.sample + self.reference + self.update


@dataclass(frozen=True)
class Machine:
    """FLOP/s in fp32 of large products, and of products of the model's own sizes over a step's tokens; bandwidth:
    bytes/s read by all threads."""

    large: float
    gemm: float
    bandwidth: float


def work_of(shape: Shape, prompts: Sequence[int], responses: Sequence[int], vocabulary: int) -> Work:
    """prompts: tokens of each; responses: tokens of each, n of a prompt side by side; weights and cache in fp32."""
    width = shape.hidden // shape.heads
    dense = sum(inputs * outputs * many for inputs, outputs, many in products_of(shape, 0)) // shape.layers
    head = 2 * vocabulary * shape.hidden
    per_token, per_pair = 2 * shape.layers * dense, 4 * shape.layers * shape.heads * width
    longest = [max(responses[i * shape.n : (i + 1) * shape.n]) for i in range(len(prompts))]
    reading = sum(length * per_token + length * (length + 1) / 2 * per_pair for length in prompts)
    writing = pairs = 0.0
    for index, length in enumerate(responses):
        before = prompts[index // shape.n]
        writing += length * (per_token + head)
        pairs += length * before + length * (length + 1) / 2
    forward = reading + writing + pairs * per_pair
    weights = 4.0 * (shape.layers * dense + vocabulary * shape.hidden)
    shared = sum(length * most for length, most in zip(prompts, longest, strict=True))
    own = sum(length * (length + 1) / 2 for length in responses)
    cache = 4.0 * 2 * shape.layers * shape.kv_heads * width * (shared + own)
    # Whatever lives side by side shares a reading of the weights: one for each token of the longest response.
    return Work(forward, forward, 3 * forward, max(longest) * weights + cache)


def products_of(shape: Shape, vocabulary: int) -> list[tuple[int, int, int]]:
    """(inputs, outputs, how many) of the linear layers that every token goes through."""
    width = shape.hidden // shape.heads
    return [
        (shape.hidden, shape.heads * width, 2 * shape.layers),  # of the queries, and of what attention puts out
        (shape.hidden, shape.kv_heads * width, 2 * shape.layers),
        (shape.hidden, shape.inner, 2 * shape.layers),
        (shape.inner, shape.hidden, shape.layers),
        (shape.hidden, vocabulary, 1),
    ]


def measured(threads: int, shape: Shape, tokens: int, vocabulary: int) -> Machine:
    """The machine's own figures, the best of several tries each. tokens: rows of the products of these sizes."""
    import torch

    torch.set_num_threads(threads)
    big = torch.rand(64 * 2**20)  # 256 MiB: no cache holds it
    bandwidth = big.numel() * 4 / _fastest(lambda: big.sum())
    large = _product_seconds(2048, 1024, 2048)
    rows, flops, seconds = min(tokens, MOST_ROWS), 0.0, 0.0
    for inputs, outputs, many in products_of(shape, vocabulary):
        # A third of a step's products each: forward, the gradient of the inputs, the gradient of the weights.
        for sizes in ((rows, inputs, outputs), (rows, outputs, inputs), (inputs, rows, outputs)):
            flops += many * 2.0 * rows * inputs * outputs
            seconds += many * _product_seconds(*sizes)
    return Machine(2 * 2048 * 1024 * 2048 / large, flops / seconds, bandwidth)


def _product_seconds(rows: int, inner: int, columns: int) -> float:
    import torch

    a, b, out = torch.rand(rows, inner), torch.rand(inner, columns), torch.empty(rows, columns)
    return _fastest(lambda: torch.mm(a, b, out=out))


def least_seconds(work: Work, machine: Machine) -> dict[str, float]:
    """The shortest time of each phase: its FLOPs at the rate of such products; of sampling also what it reads."""
    found = {
        "sample": max(work.sample / machine.gemm, work.decode_bytes / machine.bandwidth),
        "reference": work.reference / machine.gemm,
        "update": work.update / machine.gemm,
    }
    return found | {"step": sum(found.values())}


def _fastest(run, rounds: int = 12) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best
