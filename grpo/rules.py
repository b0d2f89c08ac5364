"""Values that no run could use, found before anything is loaded: ranges, choices, and what must hold between keys.

What only one engine cannot do is that engine's `refusals`; whether the data is enough for a batch is defaults.py's.
Every rule says what is wrong, where the value came from and what to do; all problems are told at once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.algorithm_rules import algorithm_problems, algorithm_warnings
from grpo.config import ConfigError, Settings, one_fix
from grpo.flags import nearest
from grpo.model_rules import model_problems, model_warnings

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BATCH, MINI, N = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
MICRO, DYNAMIC = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz"
AGGREGATION = f"{ACTOR}.loss_agg_mode"

KL_KINDS = ("kl", "abs", "mse", "low_var_kl", "k1", "k2", "k3")
STRAIGHT_THROUGH = tuple(f"{name}+" for name in KL_KINDS)
# Estimators that compare the responses of a group; with one response there is nothing to compare.
GROUP_METHODS = (
    *("grpo", "grpo_vectorized", "grpo_passk", "gdpo", "rloo", "rloo_vectorized", "opo", "gpg"),
    "reinforce_plus_plus_baseline",
)
CHOICES = {
    "data.truncation": ("error", "left", "right"),
    f"{ACTOR}.strategy": ("fsdp", "fsdp2", "megatron"),
    AGGREGATION: ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
    f"{ACTOR}.kl_loss_type": KL_KINDS + STRAIGHT_THROUGH,
    f"{ACTOR}.optim.lr_scheduler_type": ("constant", "cosine"),
    f"{ROLLOUT}.name": ("vllm", "sglang", "trtllm"),
    "algorithm.adv_estimator": (*GROUP_METHODS, "reinforce_plus_plus", "remax"),
    f"{ACTOR}.policy_loss.loss_mode": (
        *("vanilla", "gspo", "cispo", "sapo", "gpg", "geo_mean", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "dro"),
        "bypass_mode",
    ),
    "launcher.adv_std": ("unbiased", "biased"),
    "algorithm.kl_penalty": KL_KINDS,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "trainer.resume_mode": ("auto", "disable"),
    "trainer.device": ("auto", "cpu", "cuda", "mps"),
    "launcher.engine": ("auto", "embedded", "verl"),
    "launcher.dtype": ("auto", "float32", "bfloat16"),
    "launcher.scratch.architecture": ("qwen2", "t5"),
    "launcher.scratch.vocabulary": ("bytes", "characters", "words"),
}
# What people write for a choice that has another name here.
MEANT = {"gpu": "cuda", "bf16": "bfloat16", "fp32": "float32"}
# Logger -> the package that it needs, None = ours. The names are also the pip names.
LOGGERS = dict.fromkeys(("console", "file")) | {
    name: name for name in ("tensorboard", "wandb", "swanlab", "mlflow", "visualdl")
}

AT_LEAST_1 = ("at least 1", lambda number: number >= 1)
AT_LEAST_0 = ("0 or more", lambda number: number >= 0)
ABOVE_0 = ("more than 0", lambda number: number > 0)
MINUS_1_OR_MORE = ("-1 or at least 1", lambda number: number == -1 or number >= 1)
SHARE = ("between 0 and 1", lambda number: 0 <= number <= 1)
SHARE_ABOVE_0 = ("more than 0 and at most 1", lambda number: 0 < number <= 1)
Range = tuple[str, Callable[[float], bool]]
# What is wrong, and the nearest values that would be right, where there are.
Problem = str | tuple[str, Mapping[str, Any]]
RANGES: dict[Range, tuple[str, ...]] = {
    AT_LEAST_1: (
        *(BATCH, "data.max_prompt_length", "data.max_response_length", MINI, MICRO, N),
        *(f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ppo_epochs"),
        *(f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.val_kwargs.n"),
        *("reward.num_workers", "trainer.total_epochs", "trainer.total_training_steps"),
        *("trainer.max_actor_ckpt_to_keep", "trainer.n_gpus_per_node", "trainer.nnodes"),
        *(f"launcher.scratch.{name}" for name in ("hidden_size", "num_layers", "num_heads")),
        *("launcher.sft.batch_size", "algorithm.kl_ctrl.horizon", "launcher.update_old_after"),
        "reward.reward_kwargs.overlong_buffer_cfg.len",
    ),
    AT_LEAST_0: (
        *("data.seed", "data.dataloader_num_workers", "actor_rollout_ref.model.lora_rank", "launcher.seed"),
        *(f"{ACTOR}.data_loader_seed", f"{ROLLOUT}.seed", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.optim.lr"),
        *(f"{ACTOR}.optim.weight_decay", "algorithm.kl_ctrl.kl_coef", f"{ROLLOUT}.val_kwargs.temperature"),
        *("launcher.min_response_length", "launcher.sft.steps", "launcher.sft.lr", "launcher.update_ref_after"),
        *("algorithm.filter_groups.max_num_gen_batches", "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor"),
        *(f"{ACTOR}.entropy_coeff", "launcher.pg_loss_coef"),
    ),
    ABOVE_0: (
        *(f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high", f"{ROLLOUT}.temperature"),
        *(f"{ACTOR}.loss_scale_factor", f"{ACTOR}.optim.clip_grad", "launcher.repetition_penalty"),
        *("actor_rollout_ref.model.lora_alpha", f"{ACTOR}.tau_pos", f"{ACTOR}.tau_neg", "algorithm.kl_ctrl.target_kl"),
        "launcher.clip_range_score",
    ),
    MINUS_1_OR_MORE: (
        *("data.train_max_samples", "data.val_max_samples", f"{ROLLOUT}.top_k", f"{ROLLOUT}.val_kwargs.top_k"),
        *("trainer.save_freq", "trainer.test_freq"),
    ),
    ("-1 or more", lambda number: number >= -1): (f"{ACTOR}.optim.lr_warmup_steps",),
    SHARE: (f"{ACTOR}.optim.lr_warmup_steps_ratio", f"{ACTOR}.optim.min_lr_ratio", "launcher.max_reward_errors"),
    SHARE_ABOVE_0: (
        *(f"{ROLLOUT}.top_p", f"{ROLLOUT}.val_kwargs.top_p", f"{ROLLOUT}.gpu_memory_utilization"),
        *("algorithm.gamma", "launcher.ref_mixup"),
    ),
    ("more than 1", lambda number: number > 1): (f"{ACTOR}.clip_ratio_c",),
}


def check(settings: Settings, *, own_reward: bool = False) -> None:
    """Raise ConfigError with every impossible value. own_reward: a reward is given as a callable (from Python)."""
    file, names = settings["reward.custom_reward_function.path"], settings["launcher.reward.names"]
    has_reward = own_reward or file is not None or bool(names)
    problems: list[Problem] = [
        *_ranges(settings),
        *_choices(settings),
        *_loggers(settings),
        *_batches(settings),
        *_groups(settings),
        *algorithm_problems(settings, own_reward=has_reward),
        *_lengths(settings),
        *_data(settings, has_reward),
        *_optimizer(settings),
        *model_problems(settings),
        *_best(settings),
        *_warm_up(settings),
    ]
    if problems:
        told = [problem if isinstance(problem, tuple) else (problem, {}) for problem in problems]
        raise ConfigError(*(text for text, _ in told), fix=one_fix([fix for _, fix in told]))


def warnings(settings: Settings) -> list[str]:
    """Settings that run, but hardly as meant; one line each."""
    return [*model_warnings(settings), *algorithm_warnings(settings), *_parts_of_drgrpo(settings)]


def _parts_of_drgrpo(settings: Settings) -> list[str]:
    if settings[AGGREGATION] != "seq-mean-token-sum-norm":
        unused = settings.by_user(f"{ACTOR}.loss_scale_factor") and settings[f"{ACTOR}.loss_scale_factor"] is not None
        factor = said(settings, f"{ACTOR}.loss_scale_factor")
        return [f"{factor} divides only under loss_agg_mode=seq-mean-token-sum-norm"] if unused else []
    missing = []
    if settings["algorithm.norm_adv_by_std_in_grpo"]:
        missing.append("algorithm.norm_adv_by_std_in_grpo=false")
    if settings[f"{ACTOR}.use_kl_loss"]:
        missing.append(f"{ACTOR}.use_kl_loss=false")
    if settings[f"{ACTOR}.loss_scale_factor"] is None:
        missing.append(f"{ACTOR}.loss_scale_factor={settings['data.max_response_length']}")
    if not missing:
        return []
    return [f"{said(settings, AGGREGATION)} is one part of DrGRPO; --recipe drgrpo sets the rest: {', '.join(missing)}"]


def said(settings: Settings, key: str) -> str:
    """`data.train_batch_size=100 (flag --train_batch_size)`."""
    return settings.said(key)


def divisors_near(number: int, wish: int) -> list[int]:
    """The divisors of `number` next to `wish`: the largest below and the smallest above, where there are."""
    divisors = [candidate for candidate in range(1, number + 1) if number % candidate == 0]
    below = [candidate for candidate in divisors if candidate <= wish][-1:]
    return below + [candidate for candidate in divisors if candidate > wish][:1]


def _ranges(settings: Settings) -> Iterator[str]:
    for (text, holds), keys in RANGES.items():
        for key in keys:
            if settings[key] is not None and not holds(settings[key]):
                yield f"{said(settings, key)} must be {text}"


def _choices(settings: Settings) -> Iterator[Problem]:
    for key, choices in CHOICES.items():
        value = str(settings[key])
        if value not in choices:
            near = MEANT.get(value) if MEANT.get(value) in choices else nearest(value, choices)
            listed = [choice for choice in choices if choice not in STRAIGHT_THROUGH]
            text = f"{said(settings, key)} is none of {', '.join(listed)}"
            yield (f"{text}; did you mean {near}?", {key: near}) if near else text


def _loggers(settings: Settings) -> Iterator[str]:
    for name in settings["trainer.logger"]:
        origin = settings.origins["trainer.logger"]
        if name not in LOGGERS:
            near = nearest(name, LOGGERS)
            hint = f"; did you mean {near}?" if near else ""
            yield f"trainer.logger ({origin}): {name} is none of {', '.join(LOGGERS)}, none{hint}"
        elif (package := LOGGERS[name]) and importlib.util.find_spec(package) is None:
            yield f"trainer.logger ({origin}): {name} is not installed; pip install {package}"


def _batches(settings: Settings) -> Iterator[Problem]:
    batch, mini = settings[BATCH], settings[MINI]
    if batch >= 1 and mini >= 1 and batch % mini:
        divisors = divisors_near(batch, mini)
        near = " or ".join(map(str, divisors))
        multiples = " or ".join(str(factor * mini) for factor in (batch // mini, batch // mini + 1) if factor)
        yield (
            f"{said(settings, MINI)} does not divide {said(settings, BATCH)}; take {near}, or a batch of {multiples}",
            {MINI: min(divisors, key=lambda divisor: abs(divisor - mini))},
        )
    old = f"{ACTOR}.ppo_micro_batch_size"  # counts over all GPUs; the engine says how many that is on each
    if settings[MICRO] is None and not settings[DYNAMIC] and old not in settings.passthrough:
        yield f"{said(settings, DYNAMIC)} needs {MICRO}: how many responses go through the model at once"
    if settings[MICRO] is not None and settings[DYNAMIC]:
        yield (
            f"{said(settings, MICRO)} counts responses and {said(settings, DYNAMIC)} counts tokens; drop one of them",
            {DYNAMIC: False},
        )


def _groups(settings: Settings) -> Iterator[Problem]:
    method = settings["algorithm.adv_estimator"]
    if settings[N] == 1 and method in GROUP_METHODS:
        yield (
            f"{said(settings, N)}: {method} compares the responses to one prompt, so it needs 2 or more; "
            "3 is quick, 5 standard, 8 high quality",
            {N: 2},
        )


def _lengths(settings: Settings) -> Iterator[Problem]:
    shortest, longest = "launcher.min_response_length", "data.max_response_length"
    if settings[shortest] > settings[longest] >= 1:
        yield f"{said(settings, shortest)} is more than {said(settings, longest)}"
    validation = f"{ROLLOUT}.val_kwargs"
    if settings[f"{validation}.do_sample"] and settings[f"{validation}.temperature"] == 0:
        text = f"{said(settings, f'{validation}.do_sample')} needs {validation}.temperature above 0"
        yield text, {f"{validation}.do_sample": False}  # at temperature 0 sampling would be greedy too


def _data(settings: Settings, has_reward: bool) -> Iterator[str]:
    share = "launcher.data.val_share"
    if settings["data.val_files"] is None and not 0 < settings[share] < 1:
        yield f"{said(settings, share)} must be between 0 and 1, or --val_data must name a file to evaluate on"
    if settings["launcher.data.answer_key"] == "none" and not has_reward:
        key = "launcher.data.answer_key"
        yield f"{said(settings, key)}: the shipped rewards need an answer; give --reward_func FILE"
    reward = "reward.custom_reward_function.path"
    if settings[reward] is not None and not (file := Path(settings[reward]).expanduser()).is_file():
        what = "is a folder; name a file that holds" if file.is_dir() else "no such file; it should hold"
        yield f"{said(settings, reward)}: {what} compute_score(data_source, solution_str, ...)"
    folder, output = "trainer.default_local_dir", settings["launcher.output_dir"]
    if settings[folder] != f"{output}/checkpoints":
        yield f"{said(settings, folder)}: checkpoints stand in {output}/checkpoints; --output_dir moves them"


def _optimizer(settings: Settings) -> Iterator[str]:
    betas = f"{ACTOR}.optim.betas"
    if len(settings[betas]) != 2 or not all(0 <= beta < 1 for beta in settings[betas]):
        yield f"{said(settings, betas)} must be two numbers from 0 up to, but not including, 1"
    contents = f"{ACTOR}.checkpoint.save_contents"
    for name in settings[contents]:
        if name not in ("model", "optimizer", "extra", "hf_model"):
            yield f"{contents} ({settings.origins[contents]}): {name} is none of model, optimizer, extra, hf_model"


def _best(settings: Settings) -> Iterator[Problem]:
    key, metrics = "launcher.save_best", ("val_accuracy", "val_reward_mean")
    if settings[key] not in (None, *metrics):
        near = nearest(str(settings[key]), metrics)
        hint = f"; did you mean {near}?" if near else ""
        yield f"{said(settings, key)} is none of {', '.join(metrics)}{hint}", {key: near} if near else {}


def _warm_up(settings: Settings) -> Iterator[str]:
    steps, files = "launcher.sft.steps", "launcher.sft.files"
    if settings["launcher.engine"] == "verl":
        return  # which has no warm-up at all, and says so
    if settings[steps] > 0 and settings[files] is None:
        yield f"{said(settings, steps)} needs launcher.sft.files: records with `prompt` and `response`"
    elif settings[steps] > 0 and not Path(settings[files].partition("#")[0]).is_file():
        yield f"{said(settings, files)}: no such file"
