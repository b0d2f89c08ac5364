"""A run's settings as the Hydra overrides of verl's trainer. Leaves out what verl cannot do (engine.py refuses that).

verl's defaults are kept silent: what differs from them is said, and all that the user asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from grpo.engine import Run
from grpo.hydra_text import hydra_value, leaves
from grpo.verl_backend.keys import verl_keys

REPO = Path(__file__).resolve().parents[2]
SHIPPED_REWARD = REPO / "reward_funcs" / "reward_func.py"
# What `custom_chat_template=plain` means, in the language that verl takes.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MODEL, ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "ref", "rollout"))
RUNTIME = "ray_kwargs.ray_init.runtime_env.env_vars"

# Already done when the prompts were written to the parquet files that verl reads.
_DONE_BEFORE = ("data.train_max_samples", "data.val_max_samples")


def overrides(run: Run) -> list[str]:
    """Each override as one word, for a process or, quoted by the caller, for a shell."""
    known = verl_keys()
    words = [
        f"{'' if key in known else '+'}{key}={hydra_value(value)}"
        for key, value in settings(run).items()
        if key not in known or known[key] != value or _asked_for(key, run)
    ]
    return words + [_fitting(key, text) for key, text in run.passthrough.items()]


def _asked_for(key: str, run: Run) -> bool:
    return not run.origins.get(key, "default").startswith(("default", "recipe", "launcher"))


def settings(run: Run) -> dict[str, Any]:
    """verl's key -> value for every key that this run decides; null means what verl does by itself."""
    ours = {
        key: value
        for key, value in leaves(OmegaConf.to_container(run.config, resolve=True))
        if not key.startswith("launcher.") and key not in _DONE_BEFORE and value is not None
    }
    decided = ours | _translated(run)
    for key, value in _companions(run):
        if key not in run.passthrough:
            decided[key] = value
    return decided


def _translated(run: Run) -> dict[str, Any]:
    """Keys whose value is another one for verl, and `launcher` keys that verl has under its own names."""
    config, out = run.config, run.output_dir
    reward = config.reward.custom_reward_function.path
    translated: dict[str, Any] = {
        "data.train_files": str(run.train or out / "data" / "train.parquet"),
        "data.val_files": str(run.val),
        # A shipped reward too: verl's own knows hardly any of our data sources.
        "reward.custom_reward_function.path": str(Path(reward).expanduser().absolute() if reward else SHIPPED_REWARD),
        "trainer.default_local_dir": str(out / "checkpoints"),
        "trainer.device": "cuda" if config.trainer.device == "auto" else config.trainer.device,
        f"{ACTOR}.fsdp_config.seed": config.launcher.seed,
        f"{REF}.fsdp_config.seed": config.launcher.seed,
    }
    if config.launcher.dtype != "auto":
        for key in (f"{ACTOR}.fsdp_config.dtype", f"{REF}.fsdp_config.dtype", f"{ROLLOUT}.dtype"):
            translated[key] = config.launcher.dtype
    if config.actor_rollout_ref.model.custom_chat_template == "plain":
        translated[f"{MODEL}.custom_chat_template"] = PLAIN_TEMPLATE
    for name in ("path", "tokenizer_path"):
        folder = Path(config.actor_rollout_ref.model[name] or "").expanduser()
        if folder.parts and folder.is_dir():  # a Hub id stays as it is
            translated[f"{MODEL}.{name}"] = str(folder.absolute())
    return translated


def _companions(run: Run) -> Iterator[tuple[str, Any]]:
    """What goes with our settings and verl does not do by itself; the user's own word for the key wins."""
    config, out = run.config, run.output_dir
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    yield f"{ACTOR}.checkpoint.save_contents", [*dict.fromkeys([*actor.checkpoint.save_contents, "hf_model"])]
    yield "trainer.rollout_data_dir", str(out / "rollouts")
    yield "trainer.validation_data_dir", str(out / "validation")
    if not actor.use_dynamic_bsz:  # verl wants the same said for the two other forward passes
        for part in (ROLLOUT, REF):
            yield f"{part}.log_prob_micro_batch_size_per_gpu", actor.ppo_micro_batch_size_per_gpu
    if model.lora_rank > 0:
        yield f"{ROLLOUT}.load_format", "safetensors"  # vLLM must have the base weights, only the adapter is sent
    # The workers import our reward functions and write where the report looks.
    yield f"{RUNTIME}.PYTHONPATH", str(REPO)
    yield f"{RUNTIME}.VERL_FILE_LOGGER_PATH", str(out / "verl_metrics.jsonl")
    if "tensorboard" in config.trainer.logger:
        yield f"{RUNTIME}.TENSORBOARD_DIR", str(out / "tensorboard")


def _fitting(key: str, override: str) -> str:
    """The user's override, with the `+` that Hydra asks for exactly where verl does not have the key."""
    known = any(name == key or name.startswith(f"{key}.") for name in verl_keys())
    if override.startswith(("~", "++")) or known != override.startswith("+"):
        return override
    return override[1:] if known else f"+{override}"
