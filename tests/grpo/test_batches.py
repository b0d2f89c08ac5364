"""The batch arithmetic, worked by hand, and the same in TRL's arguments."""

from __future__ import annotations

import pytest

from grpo import batches, flags
from grpo.config import Settings
from grpo.resolve import resolve

PPO_EPOCHS = "actor_rollout_ref.actor.ppo_epochs=3"


def settings(*words: str) -> Settings:
    return resolve(flags.parse(["--data", "p.json", "--model", "scratch", *words]), {}).settings()


def test_the_arithmetic_of_7473_prompts_four_a_step():
    """S4-04: 7473 rows, 4 prompts a step -> 1868 steps; 8 prompts -> 934."""
    four = batches.arithmetic(settings("--train_batch_size", "4", "--rollout_n", "8", "--epochs", "1"), 7473)
    assert (four.steps_per_epoch, four.steps, four.left_out) == (1868, 1868, 1)  # 1868 x 4 = 7472
    assert (four.prompts, four.responses) == (4, 32)
    eight = batches.arithmetic(settings("--train_batch_size", "8", "--rollout_n", "8", "--epochs", "1"), 7473)
    assert eight.steps == 934  # 934 x 8 = 7472


def test_optimizer_steps_are_mini_batches_times_passes():
    """S4-02, S4-03: prompts and responses are both shown."""
    numbers = batches.arithmetic(settings("--mini_batch_size", "64", PPO_EPOCHS), 1000)
    assert numbers.optimizer_steps == 12  # 256 / 64 x 3
    assert numbers.responses_per_optimizer_step == 320  # 64 x 5
    assert (numbers.steps_per_epoch, numbers.left_out, numbers.steps) == (3, 232, 45)


def test_an_incomplete_last_batch_counts_as_a_step_when_it_is_kept():
    """S0-12."""
    numbers = batches.arithmetic(settings("--dataloader_drop_last", "false"), 1000)
    assert (numbers.steps_per_epoch, numbers.left_out, numbers.steps) == (4, 0, 60)


def test_max_steps_ends_a_run_early_and_never_prolongs_it():
    """S0-24."""
    assert batches.arithmetic(settings("--max_steps", "7"), 1000).steps == 7
    assert batches.arithmetic(settings("--max_steps", "700"), 1000).steps == 45


def test_the_arithmetic_in_words():
    made = settings("--mini_batch_size", "64", PPO_EPOCHS)
    assert batches.arithmetic_lines(made, batches.arithmetic(made, 1000)) == [
        "each step    256 prompts x 5 responses = 1,280 responses",
        "             12 optimizer steps of 64 prompts (320 responses) each, over 3 passes",
        "each epoch   1,000 prompts to train on = 3 steps; 232 prompts left over (launcher.drop_last)",
        "in all       45 steps in 15 epochs: 57,600 responses",
        "as in TRL    num_generations=5; per_device_train_batch_size x gradient_accumulation_steps =",
        "             64 where it counts prompts (old), 320 where it counts completions (new)",
    ]


@pytest.mark.parametrize(
    ("words", "prompts", "said"),
    [
        (("--max_steps", "1"), 256, "in all       1 step by total_training_steps: 1,280 responses"),
        (("--max_steps", "1"), None, "in all       1 step at most"),
        ((), None, "in all       known once the data is here"),
        # the last step of an epoch may be smaller: 4 x 15 steps of 1,280
        (("--dataloader_drop_last", "0"), 1000, "in all       60 steps in 15 epochs: at most 76,800 responses"),
    ],
)
def test_how_many_steps_in_all(words: tuple[str, ...], prompts: int | None, said: str):
    made = settings(*words)
    assert said in batches.arithmetic_lines(made, batches.arithmetic(made, prompts))


def test_the_share_of_each_gpu_by_tokens():
    # 64 x 5 = 320 responses on 8 GPUs; 16,384 tokens hold ten sequences of 512 + 1,024: four micro-batches at most
    made = settings("--mini_batch_size", "64", "--n_gpus", "4", "--nnodes", "2")
    assert batches.devices_of(made, "verl") == 8
    assert batches.devices_of(made, "embedded") == 1  # whole groups, balanced by tokens: not the same number for each
    numbers = batches.arithmetic(made, 1000, devices=8)
    assert (numbers.responses_per_device, numbers.micro_batches) == (40, 4)
    lines = batches.arithmetic_lines(made, numbers)
    assert lines[2] == (
        "each GPU     40 responses of each optimizer step, in 4 micro-batches of 16,384 tokens at most (8 GPUs)"
    )
    assert lines[-2:] == [
        "as in TRL    num_generations=5; on each of 8 GPUs, "
        "per_device_train_batch_size x gradient_accumulation_steps =",
        "             8 where it counts prompts (old), 40 where it counts completions (new)",
    ]


def test_the_share_of_each_gpu_by_count():
    made = settings("--mini_batch_size", "64", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4")
    assert batches.arithmetic(made, 1000, devices=8).micro_batches == 10  # 40 / 4
    lines = batches.arithmetic_lines(made, batches.arithmetic(made, 1000))
    assert lines[2] == "             each in 80 micro-batches of 4 responses"  # 320 / 4


def test_prompts_that_are_no_whole_number_on_a_gpu_are_none_in_trls_old_way():
    made = settings("--train_batch_size", "2", "--rollout_n", "8")  # 16 responses on 8 GPUs
    lines = batches.arithmetic_lines(made, batches.arithmetic(made, 100, devices=8))
    assert (
        lines[-1] == "             no whole number where it counts prompts (old), 2 where it counts completions (new)"
    )


def test_trls_old_way_counts_prompts():
    """S4-02: 1 x 8 x 1 = 8 prompts, each with 8 completions."""
    assert batches.trl_old(1, 8, 1, num_generations=8) == (8, 64)
    assert batches.trl_old(8, 4, 1, num_generations=8) == (32, 256)
    assert batches.trl_old(1, 4, 2, num_generations=8) == (8, 64)


def test_trls_new_way_counts_completions_which_must_be_whole_groups():
    """S4-03, S3-12: per_device / num_generations x grad_accum prompts; the completions divide by num_generations."""
    assert batches.trl_new(1, 8, 1, num_generations=8) == (1, 8)
    assert batches.trl_new(8, 4, 1, num_generations=8) == (4, 32)
    with pytest.raises(ValueError, match="12 responses are no whole groups of 8"):
        batches.trl_new(3, 4, 1, num_generations=8)


def test_trls_numbers_give_the_steps_that_were_reported():
    """S4-04: 7473 rows, per_device 8, grad_accum 4, 8 generations: 1868 steps on one GPU, 934 on two."""
    for gpus, steps in ((1, 1868), (2, 934)):
        prompts, responses = batches.trl_new(8, 4, gpus, num_generations=8)
        words = ("--train_batch_size", str(prompts), "--rollout_n", "8", "--epochs", "1")
        numbers = batches.arithmetic(settings(*words), 7473, devices=gpus)
        assert (numbers.steps, numbers.responses, numbers.responses_per_device) == (steps, responses, 32)
