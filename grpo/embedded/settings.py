"""The run's settings as this engine uses them, read from the configuration once. Below here, functions get values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo.embedded.choosing import Sampling
from grpo.embedded.update import Objective


@dataclass(frozen=True)
class Shaping:
    """What becomes of a reward before the advantage. clip: limit on its size, or None.

    overlong: the arguments of overlong_penalty, or None; normalize: over the batch; mask_truncated: cut responses train
    nothing.
    """

    clip: float | None
    overlong: dict[str, Any] | None
    normalize: bool
    mask_truncated: bool


@dataclass(frozen=True)
class KlInReward:
    """coef: its weight at the first step. adaptive: it follows target_kl, over `horizon` responses."""

    kind: str
    coef: float
    adaptive: bool
    target_kl: float
    horizon: int


@dataclass(frozen=True)
class Refill:
    """Dynamic sampling. metric: `reward`, or a part of it; max_batches: sampled for one step, 0 = by the data."""

    metric: str
    max_batches: int


@dataclass(frozen=True)
class Settings:
    """Sizes are in prompts where they say prompts, in responses where they say rows.

    max_micro_rows: None = cut by tokens. advantage: the arguments of advantages_of; parts: which of the reward's gdpo
    compares, None = all. update_old_after: steps that a copy samples, 1 = there is no copy;
    update_ref_after: steps until the reference moves by ref_mixup of the way to the policy, 0 = never.
    """

    seed: int
    sampling: Sampling
    val_sampling: Sampling
    shaping: Shaping
    advantage: dict[str, Any]
    parts: tuple[str, ...] | None
    objective: Objective
    kl_in_reward: KlInReward | None
    refill: Refill | None
    update_old_after: int
    update_ref_after: int
    ref_mixup: float
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
    def by_parts(self) -> bool:
        """Whether the advantage is made of the reward's parts."""
        return self.advantage["estimator"] == "gdpo"

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
    launcher = config.launcher
    return Settings(
        seed=int(launcher.seed),
        sampling=Sampling(
            n=int(rollout.n),
            max_length=length,
            temperature=float(rollout.temperature),
            top_p=float(rollout.top_p),
            top_k=int(rollout.top_k),
            repetition_penalty=float(launcher.repetition_penalty),
            min_length=int(launcher.min_response_length),
        ),
        val_sampling=Sampling(
            n=int(val.n),
            max_length=length,
            temperature=float(val.temperature) if val.do_sample else 0.0,
            top_p=float(val.top_p),
            top_k=int(val.top_k),
            repetition_penalty=float(launcher.repetition_penalty),
            min_length=int(launcher.min_response_length),
        ),
        shaping=_shaping(config),
        advantage=_advantage(config),
        parts=tuple(config.algorithm.gdpo_reward_keys or ()) or None,
        objective=_objective(config),
        kl_in_reward=_kl_in_reward(config) if config.algorithm.use_kl_in_reward else None,
        refill=_refill(config.algorithm.filter_groups),
        update_old_after=int(launcher.update_old_after),
        update_ref_after=int(launcher.update_ref_after),
        ref_mixup=float(launcher.ref_mixup),
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
        max_reward_errors=float(launcher.max_reward_errors),
        debug=bool(launcher.debug),
    )


def _shaping(config: DictConfig) -> Shaping:
    overlong, launcher = config.reward.reward_kwargs.overlong_buffer_cfg, config.launcher
    penalty = {
        "max_length": int(config.data.max_response_length),
        "buffer": int(overlong.len or max(1, config.data.max_response_length // 5)),
        "factor": float(overlong.penalty_factor),
    }
    return Shaping(
        clip=None if launcher.clip_range_score is None else float(launcher.clip_range_score),
        overlong=penalty if overlong.enable else None,
        normalize=bool(launcher.normalize_reward),
        mask_truncated=bool(launcher.mask_truncated),
    )


def _advantage(config: DictConfig) -> dict[str, Any]:
    algorithm, launcher = config.algorithm, config.launcher
    weights = algorithm.gdpo_reward_weights
    return {
        "estimator": algorithm.adv_estimator,
        "norm_by_std": bool(algorithm.norm_adv_by_std_in_grpo),
        "biased": launcher.adv_std == "biased",
        "gamma": float(algorithm.gamma),
        "normalize": None if launcher.normalize_advantage is None else bool(launcher.normalize_advantage),
        "part_weights": [float(weight) for weight in weights] if weights else None,
    }


def _objective(config: DictConfig) -> Objective:
    actor = config.actor_rollout_ref.actor
    return Objective(
        loss_mode=actor.policy_loss.loss_mode,
        clip_ratio_low=float(actor.clip_ratio_low),
        clip_ratio_high=float(actor.clip_ratio_high),
        clip_ratio_c=float(actor.clip_ratio_c),
        tau_pos=float(actor.tau_pos),
        tau_neg=float(actor.tau_neg),
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=None if actor.loss_scale_factor is None else float(actor.loss_scale_factor),
        pg_loss_coef=float(config.launcher.pg_loss_coef),
        entropy_coeff=float(actor.entropy_coeff),
        calculate_entropy=bool(actor.calculate_entropy),
        kl_loss_coef=float(actor.kl_loss_coef) if actor.use_kl_loss else None,
        kl_loss_type=actor.kl_loss_type,
        temperature=float(config.actor_rollout_ref.rollout.temperature),
    )


def _kl_in_reward(config: DictConfig) -> KlInReward:
    control = config.algorithm.kl_ctrl
    return KlInReward(
        kind=config.algorithm.kl_penalty,
        coef=float(control.kl_coef),
        adaptive=control.type == "adaptive",
        target_kl=float(control.target_kl),
        horizon=int(control.horizon),
    )


def _refill(groups: DictConfig) -> Refill | None:
    return Refill(groups.metric, int(groups.max_num_gen_batches)) if groups.enable else None
