"""Every name that a setting of verl has had since 0.4, and every key that is gone or no longer read. Tables, not rules.

Which of a setting's names an installed verl reads, and what to say about it, is guard.py's and grpo/config.py's.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpo.verl_backend.settings.keys import VERL_VERSION, older

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REWARDS = "0.7.1"  # moved everything about rewards under `reward`

# (since, names from the newest to the oldest): the same setting with the same values. A name that ends with a dot is a
# whole group. verl up to 0.9.1 still accepts some of the old names, and since 0.9.0 ignores them without a word.
NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (REWARDS, ("reward.custom_reward_function.", "custom_reward_function.")),
    (REWARDS, ("reward.num_workers", "reward_model.num_workers")),
    (REWARDS, ("reward.reward_manager.name", "reward_manager.name", "reward_model.reward_manager")),
    (REWARDS, ("reward.reward_manager.source", "reward_manager.source", "reward_model.reward_loop_source")),
    (
        REWARDS,
        ("reward.reward_manager.module.path", "reward_manager.module.path", "reward_model.reward_loop_module_path"),
    ),
    (
        REWARDS,
        ("reward.reward_manager.module.name", "reward_manager.module.name", "reward_model.reward_loop_class_name"),
    ),
    (REWARDS, ("reward.reward_kwargs.", "reward_model.reward_kwargs.")),
    (REWARDS, ("reward.reward_model.enable", "reward_model.enable")),
    (REWARDS, ("reward.reward_model.enable_resource_pool", "reward_model.enable_resource_pool")),
    (REWARDS, ("reward.reward_model.n_gpus_per_node", "reward_model.n_gpus_per_node")),
    (REWARDS, ("reward.reward_model.nnodes", "reward_model.nnodes")),
    (REWARDS, ("reward.reward_model.model_path", "reward_model.model.path")),
    (REWARDS, ("reward.reward_model.rollout.", "reward_model.rollout.")),
    (REWARDS, ("reward.sandbox_fusion.", "sandbox_fusion.", "reward_model.sandbox_fusion.")),
    ("0.4.1", (f"{ACTOR}.checkpoint.save_contents", f"{ACTOR}.checkpoint.contents")),
    ("0.6.0", ("ray_kwargs.ray_init.num_cpus", "ray_init.num_cpus")),
    ("0.6.0", ("ray_kwargs.timeline_json_file", "ray_init.timeline_json_file")),
    ("0.6.0", (f"{ACTOR}.optim.lr_scheduler_type", f"{ACTOR}.optim.warmup_style")),
    ("0.6.0", (f"{ACTOR}.optim.clip_grad", f"{ACTOR}.grad_clip")),
    (
        REWARDS,
        (
            f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
            f"{ROLLOUT}.update_weights_bucket_megabytes",
        ),
    ),
    ("0.4.0", ("trainer.log_val_generations", "trainer.val_generations_to_log_to_wandb")),
)
# Between these versions one part of verl read the old name and another part the new one: both are written.
BOTH = {f"{ACTOR}.optim.clip_grad": ("0.6.0", "0.8.0")}

# Key (or group, ending with a dot) -> (the version from which it is gone or no longer read, what to do instead).
GONE: dict[str, tuple[str, str]] = {
    "reward_model.launch_reward_fn_async": (REWARDS, "rewards are always computed beside the sampling; leave it out"),
    "reward_model.micro_batch_size": (REWARDS, "a reward model runs in its own vLLM; leave it out"),
    "reward_model.micro_batch_size_per_gpu": (REWARDS, "a reward model runs in its own vLLM; leave it out"),
    "reward_model.strategy": (REWARDS, "a reward model runs in its own vLLM; leave it out"),
    "reward_model.": (REWARDS, "reward models are set up by the keys under reward.reward_model"),
    "algorithm.rollout_is": (
        "0.6.1",
        "write algorithm.rollout_correction.rollout_is=token (or sequence), with .rollout_is_threshold beside it",
    ),
    "algorithm.rollout_is_threshold": ("0.6.1", "write algorithm.rollout_correction.rollout_is_threshold"),
    "algorithm.rollout_is_threshold_lower": ("0.6.1", "only the upper bound is left: .rollout_is_threshold"),
    "algorithm.rollout_is_level": ("0.6.1", "write algorithm.rollout_correction.rollout_is=token or sequence"),
    "algorithm.rollout_is_mode": ("0.6.1", "write algorithm.rollout_correction.rollout_is, or .rollout_rs to reject"),
    "algorithm.rollout_is_veto_threshold": ("0.6.1", "write algorithm.rollout_correction.rollout_rs to reject"),
    "algorithm.filter_groups.max_num_gen_batches": (
        "0.9.0",
        "verl reads it only to warn; write algorithm.filter_groups.max_inflight_gen_batches",
    ),
    "data.reward_fn_key": (REWARDS, "verl always reads data_source; launcher.data.source_key names your column"),
    "trainer.use_legacy_worker_impl": ("0.8.0", "there is one kind of workers now; leave it out"),
    # Gone before 0.4.0, where this table begins: https://github.com/verl-project/verl/pull/1323
    f"{ACTOR}.fsdp_config.grad_offload": ("0.4.0", "leave it out"),
    "critic.model.fsdp_config.grad_offload": ("0.4.0", "leave it out"),
    f"{ROLLOUT}.chat_scheduler": ("0.4.1", "leave it out"),
    f"{ROLLOUT}.use_fire_sampling": ("0.5.0", "leave it out"),
    f"{ROLLOUT}.skip_rollout": ("0.8.0", "write skip.rollout.enable"),
    f"{ROLLOUT}.skip_dump_dir": ("0.8.0", "write skip.rollout.dump_dir"),
    "model_engine": ("0.9.0", "write actor_rollout_ref.actor.strategy=fsdp or fsdp2; others come with a later version"),
}
# Counts over all GPUs, which verl still parses and then dies of: what replaces them counts on each GPU.
PER_GPU = {
    f"{ACTOR}.ppo_micro_batch_size": f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size": f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
}
# key -> (since, value then -> value now)
VALUES: dict[str, tuple[str, dict[str, str]]] = {
    f"{ROLLOUT}.load_format": (
        "0.6.0",
        {"dummy_dtensor": "dummy", "dummy_megatron": "dummy", "dummy_hf": "dummy"},
    ),
}
# Settings of ours whose default in verl has moved to what ours is: left unsaid only where it already had.
MOVED = (f"{ACTOR}.entropy_coeff", "actor_rollout_ref.model.use_remove_padding", f"{ROLLOUT}.max_num_seqs")
# Key or group of keys -> the first version that has it, where that came after 0.4.0.
FIRST = {
    f"{ACTOR}.policy_loss.": "0.4.1",
    "data.dataloader_num_workers": "0.5.0",
    "data.train_max_samples": "0.6.1",
    "data.val_max_samples": "0.6.1",
    "data.seed": "0.6.1",
    "actor_rollout_ref.model.lora_adapter_path": "0.6.1",
    "algorithm.rollout_correction.": "0.6.1",
    f"{ACTOR}.loss_scale_factor": "0.7.0",
    f"{ACTOR}.calculate_entropy": "0.7.0",
    f"{ACTOR}.data_loader_seed": "0.7.0",
    f"{ACTOR}.tau_pos": "0.7.0",
    f"{ACTOR}.tau_neg": "0.7.0",
    "reward.reward_manager.source": "0.7.0",
    "reward.reward_manager.module.": "0.7.0",
    "reward.": REWARDS,
    f"{ROLLOUT}.seed": "0.9.0",
    "algorithm.filter_groups.": "0.9.0",
    "ray_kwargs.": "0.6.0",
    "trainer.use_v1": "0.9.0",
    "trainer.v1.": "0.9.0",
}


def names_of(key: str) -> tuple[str, ...]:
    """All names of this setting from the newest to the oldest; () where it has always had one."""
    for _, names in NAMES:
        for name in names:
            if key == name or (name.endswith(".") and key.startswith(name)):
                rest = key.removeprefix(name)
                return tuple(other + rest for other in names)
    return ()


def new_name(key: str) -> tuple[str, str] | None:
    """What a setting that `key` once named is called now, and since which version; None for a key of today."""
    names = names_of(key)
    if not names or names[0] == key:
        return None
    since = next(since for since, group in NAMES if any(key == name or _inside(key, name) for name in group))
    return names[0], since


def is_old_group(key: str) -> bool:
    """Whether `key` is a group in which older versions had settings: `reward_model`, `ray_init`."""
    old = (name for _, names in NAMES for name in names[1:])
    return any(name.startswith(f"{key}.") for name in old)


def gone(key: str, version: str = VERL_VERSION) -> str | None:
    """What to do instead of a key that this version has dropped or no longer reads; None for one that it reads."""
    if new_name(key):
        return None
    for name, (since, instead) in GONE.items():
        if (key == name or _inside(key, name)) and not older(version, since):
            return f"verl does not read it since {since}; {instead}"
    return None


def came_with(key: str) -> str | None:
    """The first version that has `key`, where that is known and came after 0.4.0."""
    names: Iterable[str] = (name for name in FIRST if key == name or _inside(key, name))
    return next((FIRST[name] for name in names), None)


def _inside(key: str, group: str) -> bool:
    return group.endswith(".") and key.startswith(group)
