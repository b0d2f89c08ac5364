"""Preflight's rules about the machine and the environment that verl is to run in. Looks at nothing (facts.py does)."""

from __future__ import annotations

from collections.abc import Iterator

from grpo.engine import Refusal
from grpo.verl_backend.checks.facts import Facts
from grpo.verl_backend.settings.effective import ADDRESS, GPUS, Effective

KEEP, CONTENTS = "trainer.max_actor_ckpt_to_keep", "actor_rollout_ref.actor.checkpoint.save_contents"
BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
RANK = "actor_rollout_ref.model.lora_rank"
NCCL_SHARED = 256 * 2**20  # bytes in /dev/shm that GPUs of one machine want to talk through; Docker gives 64 MB


def machine(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """What this machine has not, or has too much of."""
    yield from (Refusal(line) for line in facts.broken)
    yield from _gpus(values, facts)
    yield from _ray(values, facts)
    yield from _ports(values, facts)
    yield from _disk(values, facts)
    yield from _shared_memory(values, facts)


def checkpoint_bytes(values: Effective, parameters: int) -> int:
    """What one checkpoint takes: weights and AdamW's two moments in 32 bits, and a Hugging Face copy."""
    contents = values[CONTENTS] or []
    trained = 0 if values[RANK] > 0 else parameters  # of an adapter the optimizer keeps hardly anything
    sizes = {"model": 4 * parameters, "optimizer": 8 * trained, "hf_model": 4 * parameters}
    return sum(size for name, size in sizes.items() if name in contents)


def _gpus(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """single_controller/ray/base.py: "Total available GPUs 4 is less than total desired GPUs 8"."""
    if facts.gpus is None or values.on_cpu or values.cluster not in (None, "auto", "local"):
        return
    if facts.gpus == 0:
        why = facts.no_gpu or "no NVIDIA GPU is visible here"
        yield Refusal(f"{why}; --engine embedded trains without one, --device cpu runs verl for debugging")
    elif values[GPUS] > facts.gpus:
        yield Refusal(
            f"{values.said(GPUS)}: this machine shows {facts.gpus}; take {facts.gpus} or fewer, or see "
            "CUDA_VISIBLE_DEVICES",
            {GPUS: facts.gpus},
        )


def _ray(values: Effective, facts: Facts) -> Iterator[Refusal]:
    if facts.torchrun:
        yield Refusal(
            f"{', '.join(facts.torchrun)} in the environment: torchrun has started this process, and verl starts its "
            f"own through Ray; start it without torchrun, or `unset {' '.join(facts.torchrun)}`"
        )
    if facts.ray and values.cluster in (None, "auto"):
        address, where = facts.ray
        yield Refusal(
            f"an older Ray session at {address} (from {where}) would be joined, and one that has ended waited for; "
            f"+{ADDRESS}=local starts a new one, --ray_address {address} joins it on purpose",
            {ADDRESS: "local"},
        )


def _ports(values: Effective, facts: Facts) -> Iterator[Refusal]:
    for key, (port, free) in facts.busy_ports.items():
        yield Refusal(f"{key}={port}: the port is in use on this machine; {free} is free", {key: free})


def _disk(values: Effective, facts: Facts) -> Iterator[Refusal]:
    if facts.disk is None or not facts.parameters:
        return
    each, keep = checkpoint_bytes(values, facts.parameters), values[KEEP]
    # One more than is kept is written before one is deleted.
    needed = each * ((keep or 1) + 1)
    if each and facts.disk < needed:
        fits = facts.disk // each - 1
        todo = f"take {KEEP}={fits}" if fits > 0 else "free some, or put --output_dir elsewhere"
        yield Refusal(
            f"{_gb(facts.disk)} free for checkpoints of {_gb(each)}; {values.said(KEEP)} needs {_gb(needed)}: {todo}",
            {KEEP: fits} if fits > 0 else {},
        )


def _shared_memory(values: Effective, facts: Facts) -> Iterator[Refusal]:
    if facts.shared_memory is None:
        return
    if values.on_cpu:
        # Weights travel to vLLM through it, a bucket at a time.
        weights = min(values[BUCKET] * 2**20, 4 * (facts.parameters or 0))
        fits = facts.shared_memory // 2**20 // 2
        if facts.shared_memory < weights:
            yield Refusal(
                f"/dev/shm has {_gb(facts.shared_memory)} free, and weights travel through it: take {BUCKET}={fits}",
                {BUCKET: fits} if fits > 0 else {},
            )
    elif values[GPUS] > 1 and facts.shared_memory < NCCL_SHARED:
        yield Refusal(
            f"/dev/shm has {_gb(facts.shared_memory)} free, too little for GPUs to talk through; start the container "
            "with --shm-size=10g or --ipc=host"
        )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
