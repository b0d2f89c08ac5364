"""What verl needs to run without a GPU: overrides and environment variables. The patches themselves are in inside/.

Everything else of a run stays as on GPUs: the ranks that `--n_gpus` asks for become processes that talk over gloo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.engine import Run

PLUGIN = (
    Path(__file__).resolve().parents[1] / "inside" / "cpu_plugin"
)  # a folder whose *.dist-info tells vLLM about ours
LOGICAL_CPUS = 32  # verl's actors each ask Ray for one and hardly use it; with fewer they wait for ever
ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout"))

ENVIRONMENT: Mapping[str, str] = {
    "VERL_USE_EXTERNAL_MODULES": "grpo.verl_backend.inside.cpu_platform",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # which FSDP engine class; there is none under the name cpu
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else two vLLM processes each want a NUMA node of their own
}


def is_on_cpu(run: Run) -> bool:
    """Whether this run asks for the CPU platform."""
    return run.config.trainer.device == "cpu"


def settings(run: Run) -> Iterator[tuple[str, Any]]:
    """(verl's key, value) of what differs from a run on GPUs; a user's own value for the key goes before."""
    yield "trainer.device", "cpu"
    for part in (ACTOR, REF):
        yield f"{part}.strategy", "fsdp2"
    yield "actor_rollout_ref.model.use_remove_padding", False
    yield "actor_rollout_ref.model.override_config.attn_implementation", "sdpa"
    yield f"{ROLLOUT}.enforce_eager", True
    yield f"{ROLLOUT}.free_cache_engine", False  # memory that nobody else waits for
    yield f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode", False
    # One process each: a laptop has a few cores, and importing torch and verl takes most of a minute of one.
    yield f"{ROLLOUT}.agent.num_workers", 1
    yield "reward.num_workers", 1
    yield "data.dataloader_num_workers", 0
    yield "transfer_queue.backend.SimpleStorage.num_data_storage_units", 1
    if run.config.launcher.ray_address is None:  # a cluster that is up has said what it has
        yield "ray_kwargs.ray_init.num_cpus", LOGICAL_CPUS
        yield "ray_kwargs.ray_init.num_gpus", int(run.config.trainer.n_gpus_per_node)
