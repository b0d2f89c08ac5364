"""The embedded engine behind the seam: what it can honour, and the way into its loop. No torch until `train`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from grpo.engine import Refusal, Result, Run

if TYPE_CHECKING:
    from grpo.embedded.talk import Talk

# Keys about placement and about verl's own machinery: nothing to this engine, so they are listed, not refused.
PLACEMENT = (
    "data.dataloader_num_workers",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.fsdp_config.",
    "actor_rollout_ref.ref.fsdp_config.",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    # keys that only verl has
    "launcher.hang_minutes",
    "launcher.ray_address",
    "ray_kwargs.",
    "transfer_queue.",
    "trainer.balance_batch",
    "trainer.use_v1",
    "trainer.v1.",
    "trainer.ray_wait_register_center_timeout",
    "actor_rollout_ref.nccl_timeout",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size",
    "actor_rollout_ref.model.enable_activation_offload",
    *(
        f"actor_rollout_ref.rollout.{name}"
        for name in (
            "data_parallel_size",
            "pipeline_model_parallel_size",
            "expert_parallel_size",
            "enforce_eager",
            "free_cache_engine",
            "max_num_batched_tokens",
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "load_format",
            "layered_summon",
            "engine_kwargs.",
            "agent.num_workers",
            "checkpoint_engine.",
        )
    ),
)

# What verl offers and this engine does not: key -> (the values it can honour, what to do instead).
ONLY = {
    "algorithm.adv_estimator": (
        (
            *("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg", "gdpo"),
            *("reinforce_plus_plus", "reinforce_plus_plus_baseline"),
        ),
        "take rloo, which has a baseline without a further sample, or use --engine verl",
    ),
    "actor_rollout_ref.actor.policy_loss.loss_mode": (
        ("vanilla", "gspo", "cispo", "sapo", "gpg"),
        "take gspo, which is nearest to it, or use --engine verl",
    ),
    "actor_rollout_ref.actor.checkpoint.save_contents": (
        (["model", "optimizer", "extra"],),
        "leave it out: weights, optimizer and state are always saved, and a Hugging Face folder at the end",
    ),
}


class EmbeddedEngine:
    """GRPO on one machine, in a process for each GPU. See grpo.engine.Engine for what each method promises."""

    name = "embedded"

    def refusals(self, run: Run, *, here: bool = True) -> list[Refusal]:
        """Settings this engine cannot honour, one line each with what to do instead."""
        config = run.config
        lines = [
            f"{key}={value} ({run.origins.get(key, 'default')}): the embedded engine cannot do this; {instead}"
            for key, (honoured, instead) in ONLY.items()
            if (value := _plain(OmegaConf.select(config, key))) not in honoured
        ]
        if not _device_is_there(config.trainer.device):
            lines.append(
                f"trainer.device={config.trainer.device} ({run.origins.get('trainer.device', 'default')}): "
                "this machine has no such device; --device auto takes what is there"
            )
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        if not actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu is None:
            lines.append(
                "actor_rollout_ref.actor.use_dynamic_bsz=false needs ppo_micro_batch_size_per_gpu: set it, or leave "
                "use_dynamic_bsz on"
            )
        if rollout.max_num_seqs < rollout.n:
            lines.append(
                f"actor_rollout_ref.rollout.max_num_seqs={rollout.max_num_seqs} is less than one group: raise it to "
                f"rollout.n={rollout.n}"
            )
        refused = [Refusal(line) for line in [*lines, *(_missing_packages(run) if here else [])]]
        return refused + _too_many(run, here=here)

    def no_effect(self, run: Run) -> list[str]:
        """Changed keys about placement, which mean nothing to this engine."""
        return [key for key, origin in run.origins.items() if not origin.startswith("default") and is_placement(key)]

    def plan(self, run: Run) -> list[str]:
        """What train() does, as a line for --dry_run."""
        device = run.config.trainer.device
        where = "the first of CUDA, MPS, CPU" if device == "auto" else device
        count = run.config.trainer.n_gpus_per_node
        who = "this process" if count == 1 else f"{count} processes of this machine, a GPU each where there are GPUs"
        return [f"the embedded engine in {who}, on {where}; output in {run.output_dir}"]

    def decided(self, run: Run) -> list[tuple[str, Any, str]]:
        """Nothing beside the configuration."""
        return []

    def scripts(self, run: Run) -> dict[str, str]:
        """None: what it would run is this very command."""
        return {}

    def prepare(self, run: Run, say: Callable[[str], None]) -> None:
        """Fetch a model that is on the Hub; all else came with the launcher. Raises EngineError."""
        from grpo.embedded.hub import fetch

        model = run.config.actor_rollout_ref.model
        for name in dict.fromkeys(str(name) for name in (model.path, model.tokenizer_path) if name):
            fetch(name, say, code=bool(model.trust_remote_code))

    def train(self, run: Run) -> Result:
        """Train; raises EngineError, or Interrupted with a checkpoint written."""
        # Before torch loads OpenMP: threads that wait by spinning for long steal the core from whom they wait for when
        # the machine is busy; threads that sleep at once wake too late when it is not (bench/threads.py has both).
        # A user's own choice stands.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        if (count := int(run.config.trainer.n_gpus_per_node)) > 1:
            from grpo.embedded.processes import train_in_processes

            return train_in_processes(run, count)
        from grpo.embedded.loop import train

        return train(run)

    def fine_tune(self, run: Run) -> Result:
        """Supervised training on demonstrations (prompt, and the response as ground truth), as `train`."""
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        from grpo.embedded.tuning import fine_tune

        return fine_tune(run)

    def talk(self, models: Sequence[str], **settings: Any) -> Talk:
        """Models to talk to, side by side; settings as grpo.embedded.talk.open_talk takes them. Raises EngineError."""
        from grpo.embedded.talk import open_talk

        return open_talk(models, **settings)

    def export(self, source: Path, target: Path, **settings: Any) -> Path:
        """A checkpoint or a result as a folder for others; as grpo.embedded.exporting.export. Raises EngineError."""
        from grpo.embedded.exporting import export

        return export(source, target, **settings)

    def answer(self, exam: Mapping[str, Any], **more: Any) -> None:
        """Models that answer the same prompts; as grpo.embedded.answers.answer, the exam's fields as a mapping."""
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        from grpo.embedded.answers import Exam, answer
        from grpo.embedded.choosing import Sampling

        answer(Exam(**{**exam, "sampling": Sampling(**exam["sampling"])}), **more)


def _device_is_there(device: str) -> bool:
    """Whether the machine can have it, asked without torch: `cuda` needs the driver's files, `mps` an Apple chip."""
    if device == "cuda":
        drivers = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia/version")
        return any(os.path.exists(path) for path in drivers) or shutil.which("nvidia-smi") is not None
    return device != "mps" or (sys.platform == "darwin" and platform.machine() == "arm64")


def _too_many(run: Run, *, here: bool) -> list[Refusal]:
    """More machines than one, or more processes than this machine has places for (looked at with torch)."""
    trainer, refused = run.config.trainer, []
    gpus, nodes = "trainer.n_gpus_per_node", "trainer.nnodes"
    if trainer.nnodes > 1:
        said = f"{nodes}={trainer.nnodes} ({run.origins.get(nodes, 'default')})"
        refused.append(Refusal(f"{said}: beyond one node: --engine verl", {nodes: 1}))
    if here and trainer.n_gpus_per_node > 1 and _device_is_there(trainer.device):
        from grpo.embedded.processes import places

        most, of_what = places(trainer.device)
        if trainer.n_gpus_per_node > most:
            said = f"{gpus}={trainer.n_gpus_per_node} ({run.origins.get(gpus, 'default')})"
            refused.append(Refusal(f"{said}: this machine has {most} {of_what}; --n_gpus {most}", {gpus: most}))
    return refused


def _missing_packages(run: Run) -> list[str]:
    """What LoRA needs and this environment lacks."""
    config, lines = run.config, []
    rank, bits = "actor_rollout_ref.model.lora_rank", "launcher.qlora"
    if config.actor_rollout_ref.model.lora_rank and importlib.util.find_spec("peft") is None:
        said = f"{rank} ({run.origins.get(rank, 'default')})"
        lines.append(f"{said} needs peft: pip install -r requirements/embedded.txt")
    if config.launcher.qlora is not None:
        said = f"{bits}={config.launcher.qlora} ({run.origins.get(bits, 'default')})"
        if config.trainer.device == "mps" or sys.platform == "darwin":
            lines.append(f"{said}: bitsandbytes has no {config.launcher.qlora}-bit layers for a Mac; leave it out")
        elif importlib.util.find_spec("bitsandbytes") is None:
            lines.append(f"{said} needs bitsandbytes, for CUDA or an x86 CPU: pip install bitsandbytes==0.50.2")
    return lines


def is_placement(key: str) -> bool:
    """Whether a key only says where things run."""
    return any(key == place or (place.endswith(".") and key.startswith(place)) for place in PLACEMENT)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
