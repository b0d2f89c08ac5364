"""Impossible values, each answered with what, where from and what to do; and settings that are only doubtful."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from grpo import flags, rules
from grpo.config import ConfigError, Settings
from grpo.resolve import checked, resolve
from grpo.values import defaults, kind

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def settings(*words: str) -> Settings:
    return resolve(flags.parse(["--data", "p.json", "--model", "scratch", *words]), {}).settings()


def problems(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        rules.check(settings(*words))
    return list(caught.value.problems)


def test_the_defaults_break_no_rule():
    rules.check(settings())
    assert rules.warnings(settings()) == []


def test_a_group_of_one_has_nothing_to_compare_with():
    """S2-01: with verl, n=1 is silently plain REINFORCE (VERL.md 3.2)."""
    (problem,) = problems("--rollout_n", "1")
    assert problem == (
        f"{ROLLOUT}.n=1 (flag --rollout_n): grpo compares the responses to one prompt, so it needs 2 or more; "
        "3 is quick, 5 standard, 8 high quality"
    )
    rules.check(settings("--rollout_n", "1", "algorithm.adv_estimator=reinforce_plus_plus"))


def test_a_mini_batch_that_does_not_divide_is_answered_with_the_nearest_that_do():
    # divisors of 256 around 100: 64 and 128; multiples of 100 around 256: 200 and 300
    assert problems("--mini_batch_size", "100") == [
        f"{ACTOR}.ppo_mini_batch_size=100 (flag --mini_batch_size) does not divide "
        "data.train_batch_size=256 (default); take 64 or 128, or a batch of 200 or 300"
    ]
    # larger than the batch: only 6 divides 6 from above, and only 1 x 10 is a multiple
    assert problems("--train_batch_size", "6", "--mini_batch_size", "10")[0].endswith("take 6, or a batch of 10")


def test_the_divisors_next_to_a_wish():
    assert rules.divisors_near(256, 100) == [64, 128]
    assert rules.divisors_near(7, 3) == [1, 7]
    assert rules.divisors_near(6, 9) == [6]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.train_batch_size=0", "must be at least 1"),
        ("data.max_prompt_length=0", "must be at least 1"),
        ("data.max_response_length=-5", "must be at least 1"),
        ("trainer.total_epochs=0", "must be at least 1"),
        ("trainer.total_training_steps=0", "must be at least 1"),
        ("trainer.max_actor_ckpt_to_keep=0", "must be at least 1"),
        ("trainer.save_freq=0", "must be -1 or at least 1"),
        ("trainer.test_freq=-2", "must be -1 or at least 1"),
        ("data.val_max_samples=0", "must be -1 or at least 1"),
        (f"{ROLLOUT}.top_k=0", "must be -1 or at least 1"),
        (f"{ROLLOUT}.temperature=0", "must be more than 0"),
        (f"{ROLLOUT}.top_p=0", "must be more than 0 and at most 1"),
        (f"{ROLLOUT}.top_p=1.5", "must be more than 0 and at most 1"),
        (f"{ACTOR}.clip_ratio_low=0", "must be more than 0"),
        (f"{ACTOR}.clip_ratio_c=1", "must be more than 1"),
        (f"{ACTOR}.kl_loss_coef=-0.1", "must be 0 or more"),
        (f"{ACTOR}.optim.lr=-1e-6", "must be 0 or more"),
        (f"{ACTOR}.optim.lr_warmup_steps_ratio=1.1", "must be between 0 and 1"),
        (f"{ACTOR}.optim.betas=[0.9,1]", "must be two numbers from 0 up to, but not including, 1"),
        ("launcher.max_reward_errors=2", "must be between 0 and 1"),
        ("launcher.data.val_share=1", "must be between 0 and 1, or --val_data must name a file to evaluate on"),
        ("launcher.data.val_share=0", "must be between 0 and 1, or --val_data must name a file to evaluate on"),
        ("launcher.min_response_length=2000", "is more than data.max_response_length=1024 (default)"),
        (f"{ROLLOUT}.val_kwargs.do_sample=true", f"needs {ROLLOUT}.val_kwargs.temperature above 0"),
        ("launcher.data.answer_key=none", ": the shipped rewards need an answer; give --reward_func FILE"),
        ("trainer.default_local_dir=/x", ": checkpoints stand in outputs/checkpoints; --output_dir moves them"),
        ("launcher.sft.steps=5", "needs launcher.sft.files: records with `prompt` and `response`"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_origin(word: str, said: str):
    key = word.partition("=")[0]
    (problem,) = [problem for problem in problems(word) if problem.startswith(key)]
    assert "(override)" in problem
    assert problem.endswith(said)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        (f"{ACTOR}.kl_loss_type=low_var", "did you mean low_var_kl?"),
        (f"{ACTOR}.loss_agg_mode=seq-mean-tokens-mean", "did you mean seq-mean-token-mean?"),
        (f"{ACTOR}.optim.lr_scheduler_type=cosin", "did you mean cosine?"),
        ("trainer.device=gpu", "did you mean cuda?"),
        ("launcher.engine=embeded", "did you mean embedded?"),
        ("launcher.dtype=bf16", "did you mean bfloat16?"),
        ("trainer.resume_mode=resume_path", "is none of auto, disable"),
        ("algorithm.adv_estimator=gpro", "did you mean grpo?"),  # verl: fails at step 1
        (f"{ACTOR}.kl_loss_type=full", "is none of kl, abs, mse, low_var_kl, k1, k2, k3"),  # verl: fails at step 1
    ],
)
def test_a_choice_that_is_none_is_refused_with_the_nearest(word: str, hint: str):
    (problem,) = problems(word)
    assert problem.startswith(f"{word} (override)")
    assert problem.endswith(hint)


@pytest.mark.slow
def test_every_choice_of_every_key_passes():
    for key, choices in rules.CHOICES.items():
        for choice in choices:
            # sapo is defined with one aggregation; adaptive steers a KL that must be there
            needs = {
                "sapo": f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
                "adaptive": "algorithm.use_kl_in_reward=true",
            }
            rules.check(settings(f"{key}={choice}", *([needs[choice]] if choice in needs else [])), own_reward=True)


def test_the_tables_name_keys_that_exist_and_hold_numbers():
    for keys in rules.RANGES.values():
        assert [key for key in keys if kind(key) not in ("int", "float")] == []
    assert [key for key in rules.CHOICES if key not in defaults()] == []


def test_loggers_are_checked_before_a_run_needs_them(monkeypatch: pytest.MonkeyPatch):
    """S0-10."""
    rules.check(settings("--report_to", "none"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert problems("--report_to", "console,wandb,tensorbord") == [
        "trainer.logger (flag --report_to): wandb is not installed; pip install wandb",
        "trainer.logger (flag --report_to): tensorbord is none of console, file, tensorboard, wandb, swanlab, mlflow, "
        "visualdl, none; did you mean tensorboard?",
    ]


@pytest.mark.slow
def test_a_local_model_folder_is_looked_into(in_folder: Path):
    def said(model: str, *words: str) -> str:
        (problem,) = problems("--model", model, *words)
        return problem.removeprefix(f"actor_rollout_ref.model.path={model} (flag --model) ")

    Path("m").mkdir()
    assert said("m").startswith("has no config.json: not a model folder")
    Path("m/adapter_config.json").touch()
    assert said("./m") == "is a LoRA adapter: start from it with --init_from ./m"
    Path("m/config.json").touch()
    assert said("m") == "has no tokenizer; name one with actor_rollout_ref.model.tokenizer_path=PATH"
    rules.check(settings("--model", "m", "actor_rollout_ref.model.tokenizer_path=Qwen/Qwen2.5-0.5B"))
    Path("m/tokenizer.json").touch()
    rules.check(settings("--model", "m"))
    assert said("m/config.json") == "is a file; name the folder that holds config.json and the weights"
    assert "no such folder" in said("./nope")
    rules.check(settings("--model", "Qwen/Qwen2.5-0.5B"))  # a Hub id, which is not looked up here


def test_a_reward_file_that_is_not_there_is_named():
    """S2-06."""
    assert problems("--reward_func", "no/such.py")[0].startswith(
        "reward.custom_reward_function.path=no/such.py (flag --reward_func): no such file"
    )


def test_a_warm_up_is_not_asked_for_its_data_where_verl_has_none():
    rules.check(settings("--engine", "verl", "--sft_warmup", "10"))  # the engine itself refuses the warm-up
    (problem,) = problems("--engine", "embedded", "--sft_warmup", "10")
    assert problem.startswith("launcher.sft.steps=10 (flag --sft_warmup) needs launcher.sft.files")


def test_the_small_new_model_needs_a_width_that_its_heads_can_share():
    # 4 heads, rotary halves: a multiple of 8; below 100 that is 96
    assert problems("launcher.scratch.hidden_size=100") == [
        "launcher.scratch.hidden_size=100 (override) must be a multiple of 2 x num_heads = 8; take 96"
    ]


def test_micro_batches_are_counted_in_one_way():
    micro, dynamic = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz"
    made = settings(f"{micro}=4")
    assert (made[dynamic], made.origins[dynamic]) == (False, "launcher")
    assert "counts responses and" in problems(f"{micro}=4", f"{dynamic}=true")[0]
    assert "needs actor_rollout_ref" in problems(f"{dynamic}=false")[0]


def test_drgrpos_aggregation_alone_is_warned_about():
    """S2-30: the seed's only step is one of three."""
    word = f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"
    (warning,) = rules.warnings(settings(word))
    assert "--recipe drgrpo sets the rest" in warning
    assert f"{ACTOR}.loss_scale_factor=1024" in warning
    assert rules.warnings(settings("--recipe", "drgrpo")) == []
    (half,) = rules.warnings(settings("--recipe", "drgrpo", "--norm_adv_by_std", "true"))
    assert half.endswith("sets the rest: algorithm.norm_adv_by_std_in_grpo=false")
    (unused,) = rules.warnings(settings(f"{ACTOR}.loss_scale_factor=9"))
    assert "divides only under loss_agg_mode=seq-mean-token-sum-norm" in unused


def test_all_problems_are_told_at_once():
    assert len(problems("--rollout_n", "1", "--temperature", "0", "--device", "tpu", "--mini_batch_size", "3")) == 4


def test_warnings_reach_the_user_as_notes():
    resolved = resolve(flags.parse(["--data", "p", "--model", "scratch", f"{ACTOR}.loss_scale_factor=9"]), {})
    checked(resolved)
    assert resolved.notes[-1].startswith("warning: ")
