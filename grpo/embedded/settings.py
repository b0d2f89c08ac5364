"""The run's settings as this engine uses them, read from the configuration once. Below here, functions get values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo.embedded.rollout import Sampling
from grpo.embedded.update import Objective


@dataclass(frozen=True)
class Settings:
    """Sizes are in prompts where they say prompts, in responses where they say rows.

    kl_in_reward: the arguments of rewards_minus_kl, or None; max_micro_rows: None = cut by tokens.
    """

    seed: int
    sampling: Sampling
    val_sampling: Sampling
    objective: Objective
    kl_in_reward: dict[str, Any] | None
    norm_adv_by_std: bool
    train_batch_prompts: int
    mini_batch_prompts: int
    ppo_epochs: int
    shuffle_mini_batches: bool
    max_rows: int
    max_micro_rows: int | None
    max_micro_tokens: int
    optim: dict[str, Any]
    save_freq: int
    test_freq: int
    val_before_train: bool
    keep: int
    max_reward_errors: float
    debug: bool

    @property
    def needs_reference(self) -> bool:
        """Whether anything is measured against the frozen model."""
        return self.objective.kl_loss_coef is not None or self.kl_in_reward is not None


def settings_of(config: DictConfig) -> Settings:
    """Read everything below from configs/grpo.yaml's keys."""
    actor, rollout, val = (
        config.actor_rollout_ref.actor,
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.rollout.val_kwargs,
    )
    length = int(config.data.max_response_length)
    kl_in_reward = {"kl_coef": float(config.algorithm.kl_ctrl.kl_coef), "kind": config.algorithm.kl_penalty}
    return Settings(
        seed=int(config.launcher.seed),
        sampling=Sampling(
            n=int(rollout.n),
            max_length=length,
            temperature=float(rollout.temperature),
            top_p=float(rollout.top_p),
            top_k=int(rollout.top_k),
            repetition_penalty=float(config.launcher.repetition_penalty),
            min_length=int(config.launcher.min_response_length),
        ),
        val_sampling=Sampling(
            n=int(val.n),
            max_length=length,
            temperature=float(val.temperature) if val.do_sample else 0.0,
            top_p=float(val.top_p),
            top_k=int(val.top_k),
            repetition_penalty=float(config.launcher.repetition_penalty),
            min_length=int(config.launcher.min_response_length),
        ),
        objective=Objective(
            clip_ratio_low=float(actor.clip_ratio_low),
            clip_ratio_high=float(actor.clip_ratio_high),
            clip_ratio_c=float(actor.clip_ratio_c),
            loss_agg_mode=actor.loss_agg_mode,
            loss_scale_factor=None if actor.loss_scale_factor is None else float(actor.loss_scale_factor),
            entropy_coeff=float(actor.entropy_coeff),
            calculate_entropy=bool(actor.calculate_entropy),
            kl_loss_coef=float(actor.kl_loss_coef) if actor.use_kl_loss else None,
            kl_loss_type=actor.kl_loss_type,
            temperature=float(rollout.temperature),
        ),
        kl_in_reward=kl_in_reward if config.algorithm.use_kl_in_reward else None,
        norm_adv_by_std=bool(config.algorithm.norm_adv_by_std_in_grpo),
        train_batch_prompts=int(config.data.train_batch_size),
        mini_batch_prompts=int(actor.ppo_mini_batch_size),
        ppo_epochs=int(actor.ppo_epochs),
        shuffle_mini_batches=bool(actor.shuffle),
        max_rows=int(rollout.max_num_seqs),
        max_micro_rows=None if actor.use_dynamic_bsz else int(actor.ppo_micro_batch_size_per_gpu),
        max_micro_tokens=int(actor.ppo_max_token_len_per_gpu),
        optim=OmegaConf.to_container(actor.optim),  # type: ignore[arg-type]
        save_freq=int(config.trainer.save_freq),
        test_freq=int(config.trainer.test_freq),
        val_before_train=bool(config.trainer.val_before_train),
        keep=int(config.trainer.max_actor_ckpt_to_keep or 1_000_000),
        max_reward_errors=float(config.launcher.max_reward_errors),
        debug=bool(config.launcher.debug),
    )
