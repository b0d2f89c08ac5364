"""A run's settings as the Hydra overrides of verl's trainer. Leaves out what verl cannot do (engine.py refuses that).

verl's defaults are kept silent: what differs from them is said, and all that the user asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from grpo.engine import Run
from grpo.hydra_text import hydra_value, leaves
from grpo.verl_backend.installation.nvidia import attention_for, visible_gpus
from grpo.verl_backend.installation.places import find_environment
from grpo.verl_backend.running.cluster import ray_cpus
from grpo.verl_backend.settings import algorithm, on_cpu, reward_settings
from grpo.verl_backend.settings.command import environment
from grpo.verl_backend.settings.keys import MANDATORY, verl_keys

REPO = Path(__file__).resolve().parents[3]
# What `custom_chat_template=plain` means, in the language that verl takes; `none` too, since verl adds no tokens to it.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MODEL, ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "ref", "rollout"))
RUNTIME = "ray_kwargs.ray_init.runtime_env.env_vars"

ONLY_AT_THE_END = 10**9  # steps
# Already done when the prompts were written to the parquet files that verl reads.
_DONE_BEFORE = ("data.train_max_samples", "data.val_max_samples")


def overrides(run: Run, beside: Mapping[str, Any] | None = None) -> list[str]:
    """Each override as one word, for a process or, quoted by the caller, for a shell; guard.py makes them fit.

    beside: keys that this start alone decides (where it goes on); they are always said.
    """
    known, beside = verl_keys(), beside or {}
    words = [
        f"{'' if key in known or key.startswith('hydra') else '+'}{key}={hydra_value(value)}"
        for key, value in (settings(run) | dict(beside)).items()
        if key not in known or known[key] != value or _asked_for(key, run) or key in beside
    ]
    return [*words, *run.passthrough.values()]


def decided(run: Run) -> list[tuple[str, Any, str]]:
    """(key, value, origin) of what verl is told though nobody asked for it; the origin names verl's own default."""
    known, rows = verl_keys(), []
    for key, value in settings(run).items():
        asked = _asked_for(key, run) or key in run.passthrough
        if not asked and not key.startswith(("hydra", RUNTIME)) and (key not in known or known[key] != value):
            rows.append((key, value, f"launcher (verl: {_default(known[key])})" if key in known else "launcher"))
    return rows


def _default(value: Any) -> Any:
    return "null" if value is None else "not given" if value == MANDATORY else value


def _asked_for(key: str, run: Run) -> bool:
    return not run.origins.get(key, "default").startswith(("default", "recipe", "launcher"))


def settings(run: Run) -> dict[str, Any]:
    """verl's key -> value for every key that this run decides; null means what verl does by itself."""
    ours = {
        key: value
        for key, value in leaves(OmegaConf.to_container(run.config, resolve=True))
        if not key.startswith(("launcher.", *algorithm.unsaid(run))) and key not in _DONE_BEFORE and value is not None
    }
    beside = [*_companions(run), *(on_cpu.settings(run) if on_cpu.is_on_cpu(run) else _on_gpus(run))]
    companions = {key: value for key, value in beside if key not in run.passthrough and not _asked_for(key, run)}
    return ours | _translated(run) | companions


def _translated(run: Run) -> dict[str, Any]:
    """Keys whose value is another one for verl, and `launcher` keys that verl has under its own names."""
    config, out = run.config, run.output_dir
    translated: dict[str, Any] = {
        "data.train_files": str(run.train or out / "data" / "train.parquet"),
        "data.val_files": str(run.val),
        "trainer.default_local_dir": str(out / "checkpoints"),
        "trainer.device": "cuda" if config.trainer.device == "auto" else config.trainer.device,
        # Services are fed by the launcher, with what verl does not log.
        "trainer.logger": ["console", "file"],
        f"{ACTOR}.checkpoint.save_contents": _saved(run),
        f"{ACTOR}.fsdp_config.seed": config.launcher.seed,
        f"{REF}.fsdp_config.seed": config.launcher.seed,
        **dict(reward_settings.settings(run)),
        **dict(algorithm.settings(run)),
    }
    for key in ("trainer.save_freq", "trainer.test_freq"):
        if OmegaConf.select(config, key) == -1:  # to verl: not even at the end
            translated[key] = ONLY_AT_THE_END
    if config.launcher.dtype != "auto" or on_cpu.is_on_cpu(run):
        # By itself verl computes in bfloat16, which is many times slower than float32 on most CPUs.
        translated |= arithmetic("float32" if config.launcher.dtype == "auto" else config.launcher.dtype)
    words = {"plain": PLAIN_TEMPLATE, "none": PLAIN_TEMPLATE, "chat": None}
    if (template := config.actor_rollout_ref.model.custom_chat_template) in words:
        translated[f"{MODEL}.custom_chat_template"] = words[template]
    for name in ("path", "tokenizer_path", "lora_adapter_path"):
        folder = Path(config.actor_rollout_ref.model[name] or "").expanduser()
        if folder.parts and folder.is_dir():  # a Hub id stays as it is
            translated[f"{MODEL}.{name}"] = str(folder.absolute())
    return translated


def _saved(run: Run) -> list[str]:
    """What each checkpoint holds: a Hugging Face model too, except with LoRA, whose names there no library opens."""
    asked = list(run.config.actor_rollout_ref.actor.checkpoint.save_contents)
    lora = run.config.actor_rollout_ref.model.lora_rank > 0
    return asked if lora else [*dict.fromkeys([*asked, "hf_model"])]


def arithmetic(dtype: str) -> dict[str, Any]:
    """verl's keys for computing in `dtype`; weights and gradients between ranks stay float32, as verl has them.

    `fsdp_config.dtype` is not it: verl 0.9.1's FSDP engine takes bfloat16 unless mixed_precision says otherwise.
    """
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    mixed = {"param_dtype": short, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {f"{part}.fsdp_config.mixed_precision": mixed for part in (ACTOR, REF)} | {f"{ROLLOUT}.dtype": dtype}


def _companions(run: Run) -> Iterator[tuple[str, Any]]:
    """What goes with our settings and verl does not do by itself; the user's own word for the key wins."""
    config, out = run.config, run.output_dir
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    yield "trainer.rollout_data_dir", str(out / "rollouts")
    yield "trainer.validation_data_dir", str(out / "validation")
    if not actor.use_dynamic_bsz:  # verl wants the same said for the two other forward passes
        for part in (ROLLOUT, REF):
            yield f"{part}.log_prob_micro_batch_size_per_gpu", actor.ppo_micro_batch_size_per_gpu
    if model.lora_rank > 0:
        yield f"{ROLLOUT}.load_format", "safetensors"  # vLLM must have the base weights, only the adapter is sent
    # `local`: a Ray that happens to run here is not joined unasked.
    yield "ray_kwargs.ray_init.address", config.launcher.ray_address or "local"
    yield "ray_kwargs.ray_init.include_dashboard", False
    # To the log that we keep; by itself Hydra would make files and folders where the user stands.
    yield "hydra.run.dir", "."
    yield "hydra.output_subdir", None
    yield "hydra/job_logging", "stdout"
    # The workers, on other machines too, import our reward functions and write where the report looks.
    for name, value in environment(run).items():
        yield f"{RUNTIME}.{name}", value


def _on_gpus(run: Run) -> Iterator[tuple[str, Any]]:
    """What depends on this machine, where verl runs on it: which attention its GPUs take, and CPUs that Ray counts."""
    if run.config.launcher.ray_address is not None:
        return
    gpus = int(run.config.trainer.n_gpus_per_node)
    if (cpus := ray_cpus(gpus)) != os.cpu_count():  # in a container Ray would count those of the whole machine
        yield "ray_kwargs.ray_init.num_cpus", cpus
    if here := visible_gpus():
        environment_of_verl = find_environment("cuda")
        kind, _ = attention_for(here, environment_of_verl.versions if environment_of_verl else None)
        if kind != "flash_attention_2":  # verl's default; without it, packed sequences would see each other
            yield f"{MODEL}.override_config.attn_implementation", kind
            yield f"{MODEL}.use_remove_padding", False
