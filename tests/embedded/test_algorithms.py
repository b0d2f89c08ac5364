"""Algorithms in real runs of a tiny model: each trains, and what is sampled, shaped and copied is as it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from grpo import api
from grpo.engine import EngineError
from grpo.presets import algorithms

pytestmark = pytest.mark.slow

RECORDS = [
    {"prompt": f"{a}+{b}=?", "ground_truth": str(a + b), "data_source": "math_reasoning"}
    for a in range(4)
    for b in range(4)
]
TINY = [
    *("--model=scratch", "--rollout_n=4", "--train_batch_size=4", "--lr=1e-2", "--max_response_length=8"),
    *("--max_steps=2", "--test_freq=-1", "--save_freq=1", "--device=cpu", "--dtype=float32", "--report_to=none"),
    *("data.val_max_samples=2", "launcher.scratch.hidden_size=16", "launcher.scratch.num_layers=1"),
    *("launcher.scratch.num_heads=2", "launcher.scratch.vocabulary=characters", "trainer.val_before_train=false"),
]


def by_length(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, float]:
    """A reward in two parts, in which a tiny model's first responses already differ."""
    return {"score": len(solution_str) / 8 + solution_str.count("1"), "long": len(solution_str) / 8,
            "ones": float(solution_str.count("1"))}  # fmt: skip


def trained(folder: Path, *words: str, reward=by_length) -> list[dict[str, Any]]:
    """The metrics of a run's steps."""
    api.train(RECORDS, reward_func=reward, overrides=[*TINY, *words], output_dir=folder, say=lambda line: None)
    return logged(folder)


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["step"] > 0]


def weights(folder: Path, name: str = "model", step: int = 2) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"global_step_{step}" / f"{name}.safetensors")


def completions(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["split"] == "train"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without any of it, in two mini-batches a step."""
    folder = tmp_path_factory.mktemp("plain")
    trained(folder, "--mini_batch_size=2")
    return folder


def differ(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return any(not torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("name", algorithms())
def test_every_algorithm_trains_two_steps(name: str, tmp_path: Path, plain: Path):
    """S0-01, S2-30, S4-06: with other weights at the end than a plain run has."""
    steps = trained(tmp_path, "--algorithm", name, "--mini_batch_size=2")
    assert len(steps) == 2
    assert all(step["grad_norm"] > 0 for step in steps)
    assert differ(tmp_path, plain)


# Recipe -> its columns, filled from RECORDS.
COLUMNS = {
    "paddle_kk": ("src", "tgt"),
    "swift_r1": ("problem", "solution"),
    "trl_gsm8k": ("question", "answer"),
    "deepseek_r1_zero_format": ("prompt", "ground_truth"),
}
SMALL = [
    "--lr=1e-2",
    "--rollout_n=4",
    "--train_batch_size=4",
    "--max_prompt_length=1024",
    "launcher.min_response_length=2",
]


@pytest.mark.parametrize("name", COLUMNS)
def test_every_recipe_of_another_framework_trains_two_steps(name: str, tmp_path: Path):
    """S0-04, S0-37, S3-06, S3-11, S3-19, S4-02: with its own rewards, its own columns, and its own system prompt."""
    prompt, answer = COLUMNS[name]
    label = "(1) Ann is a knight\n(2) Bob is a knave"
    rows = [
        {prompt: row["prompt"], answer: label if name == "paddle_kk" else f"#### {row['ground_truth']}"}
        | ({"data_source": "gsm8k"} if name == "deepseek_r1_zero_format" else {})
        for row in RECORDS
    ]
    words = [*TINY, *SMALL, "--recipe", name, "--force"]
    api.train(rows, overrides=words, output_dir=tmp_path, say=lambda line: None)
    steps = logged(tmp_path)
    assert len(steps) == 2
    wanted = {
        "paddle_kk": {"reward/knights_knaves"},
        "swift_r1": {"reward/accuracy", "reward/format"},
        "deepseek_r1_zero_format": {"reward/accuracy", "reward/format"},
    }
    assert wanted.get(name, set()) <= steps[0].keys()
    first = completions(tmp_path)[0]["prompt"]
    assert first.endswith({"deepseek_r1_zero_format": "Assistant: <think>"}.get(name, ""))


# Dynamic sampling


def test_groups_without_signal_are_replaced_by_others(tmp_path: Path):
    """S0-41: even sums are all rewarded alike; four groups with a signal are found among further batches."""

    def odd_only(data_source, solution_str, ground_truth, extra_info=None):
        return len(solution_str) / 8 if int(ground_truth) % 2 else 1.0

    (first, second) = trained(tmp_path, "algorithm.filter_groups.enable=true", "--kl_coef=0.01", reward=odd_only)
    assert second["kl_loss"] > 0  # of those that were kept
    assert first["generated_batches"] >= 2
    lines = completions(tmp_path)
    assert len([line for line in lines if line["step"] == 1]) == first["generated_batches"] * 16
    assert len({line["uid"] for line in lines if line["step"] == 1}) == first["generated_batches"] * 4
    assert first["zero_std_fraction"] > 0
    state = json.loads((tmp_path / "checkpoints/global_step_2/trainer_state.json").read_text())
    assert state["drawn"] == first["generated_batches"] + second["generated_batches"]


def test_the_limit_on_batches_is_kept_and_the_step_goes_on_with_what_there_is(tmp_path: Path):
    def never(data_source, solution_str, ground_truth, extra_info=None):
        return 1.0

    limit = "algorithm.filter_groups.max_num_gen_batches=3"
    steps = trained(tmp_path, "algorithm.filter_groups.enable=true", limit, reward=never)
    assert [step["generated_batches"] for step in steps] == [3, 3]
    assert steps[0]["policy_loss"] == 0


def test_the_metric_of_dynamic_sampling_may_be_a_part_of_the_reward(tmp_path: Path):
    def parts(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": len(solution_str) / 8, "same": 1.0}

    words = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=2"]
    (first, _) = trained(tmp_path / "part", *words, "algorithm.filter_groups.metric=same", reward=parts)
    assert first["generated_batches"] == 2
    (first, _) = trained(tmp_path / "reward", *words, reward=parts)
    assert first["generated_batches"] == 1


# Rewards shaped


def test_responses_that_were_cut_train_nothing_where_they_are_masked(tmp_path: Path):
    """All are cut at three tokens, so nothing is trained at all; unmasked, something is."""

    def by_letters(data_source, solution_str, ground_truth, extra_info=None):
        return float(sum(map(ord, solution_str)) % 7)

    # A response may stop at its third token without being cut; at this learning rate none of these does.
    words = ["--max_response_length=3", "launcher.min_response_length=3", "--use_kl_loss=false", "--lr=1e-5"]
    masked = trained(tmp_path / "masked", *words, "launcher.mask_truncated=true", reward=by_letters)
    assert [step["response_clip_fraction"] for step in masked] == [1, 1]
    assert [step["grad_norm"] for step in masked] == [0, 0]
    assert trained(tmp_path / "not", *words, reward=by_letters)[0]["grad_norm"] > 0


@pytest.mark.parametrize(
    "word",
    [
        "launcher.clip_range_score=0.3",
        "launcher.adv_std=biased",
        "launcher.normalize_advantage=true",
        "launcher.pg_loss_coef=2.0",
        "reward.reward_kwargs.overlong_buffer_cfg.enable=true",
        "algorithm.adv_estimator=reinforce_plus_plus",
        "--kl_loss_type=k1+",
        "actor_rollout_ref.actor.entropy_coeff=0.5",
    ],
)
def test_each_switch_changes_the_update_and_not_the_rewards(word: str, tmp_path: Path, plain: Path):
    """S0-27, S0-29, S0-31, S1-02: the same responses and rewards at the first step, and other weights after two."""
    steps = trained(tmp_path, word, "--mini_batch_size=2")
    assert steps[0]["reward_mean"] == logged(plain)[0]["reward_mean"]
    assert differ(tmp_path, plain)


def test_normalised_rewards_leave_a_group_that_is_divided_by_its_deviation_as_it_was(tmp_path: Path):
    """S0-31: GRPO does not see level and scale of rewards; without the deviation it does."""
    assert_close(
        trained(tmp_path / "a")[0]["grad_norm"],
        trained(tmp_path / "b", "launcher.normalize_reward=true")[0]["grad_norm"],
        atol=1e-4,
        rtol=1e-4,
    )
    words = ["--norm_adv_by_std=false"]
    plain = trained(tmp_path / "c", *words)[0]["grad_norm"]
    normalised = trained(tmp_path / "d", *words, "launcher.normalize_reward=true")[0]["grad_norm"]
    assert abs(plain - normalised) > 1e-3


def test_gdpo_names_the_part_that_a_reward_does_not_return(tmp_path: Path):
    with pytest.raises(EngineError, match=r"no part short; it has long, ones: name those it has with algorithm.gdpo"):
        trained(tmp_path, "--algorithm=gdpo", "algorithm.gdpo_reward_keys=[long,short]")


# KL in the reward


def test_the_weight_of_the_kl_in_the_reward_follows_its_target(tmp_path: Path):
    words = ["--algorithm=reinforce_plus_plus", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100"]
    first, second = trained(tmp_path, *words, "algorithm.kl_ctrl.kl_coef=0.5")
    assert first["reward_kl_coef"] == first["actor/reward_kl_penalty_coeff"] == 0.5
    assert abs(first["actor/reward_kl_penalty"]) < 1e-6
    # no KL at the first step, 20 percent below target at most, 16 of 100 responses
    assert second["actor/reward_kl_penalty_coeff"] == pytest.approx(0.5 * (1 - 0.2 * 0.16))
    assert second["actor/reward_kl_penalty"] != 0


# Copies of the policy


def test_an_older_copy_samples_until_it_is_renewed(tmp_path: Path):
    """S1-05, S1-07: at step 2 the copy is still the first model, so the ratio is not 1; at step 3 it is new again."""
    steps = trained(tmp_path, "launcher.update_old_after=2", "--max_steps=4", "--keep=9")
    kl = [abs(step["ppo_kl"]) for step in steps]
    assert kl[0] < 1e-6 < kl[1]
    assert kl[2] < 1e-6 < kl[3]
    kept = weights(tmp_path, "old_policy", 3), weights(tmp_path, "model", 2)
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0].keys() & kept[1].keys())


def test_the_reference_moves_to_the_policy_now_and_then(tmp_path: Path):
    """S1-06: after step 2 the reference is the policy, so the KL at step 3 is 0; half of the way by ref_mixup."""
    steps = trained(tmp_path / "copy", "launcher.update_ref_after=2", "--max_steps=3")
    assert steps[1]["kl_loss"] > 1e-6
    assert abs(steps[2]["kl_loss"]) < 1e-7
    trained(tmp_path / "half", "launcher.update_ref_after=1", "launcher.ref_mixup=0.5", "--max_steps=2")
    second, first = weights(tmp_path / "half", "reference", 2), weights(tmp_path / "half", "reference", 1)
    policy = weights(tmp_path / "half", "model", 2)
    for name in second.keys() & policy.keys():
        assert_close(second[name], (first[name] + policy[name]) / 2)
