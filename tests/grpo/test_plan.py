"""The batch arithmetic and the text of --dry_run."""

from __future__ import annotations

import json

from grpo import flags, plan
from grpo.config import Settings
from grpo.resolve import resolve
from grpo.values import defaults

PPO_EPOCHS = "actor_rollout_ref.actor.ppo_epochs=3"


def settings(*words: str) -> Settings:
    return resolve(flags.parse(["--data", "p.json", "--model", "scratch", *words]), {}).settings()


def test_the_arithmetic_of_7473_prompts_four_a_step():
    """S4-04: 7473 rows, 4 prompts a step -> 1868 steps; 8 prompts -> 934."""
    four = plan.arithmetic(settings("--train_batch_size", "4", "--rollout_n", "8", "--epochs", "1"), 7473)
    assert (four.steps_per_epoch, four.steps, four.left_out) == (1868, 1868, 1)  # 1868 x 4 = 7472
    assert (four.prompts, four.responses) == (4, 32)
    eight = plan.arithmetic(settings("--train_batch_size", "8", "--rollout_n", "8", "--epochs", "1"), 7473)
    assert eight.steps == 934  # 934 x 8 = 7472


def test_optimizer_steps_are_mini_batches_times_passes():
    """S4-02, S4-03: prompts and responses are both shown."""
    numbers = plan.arithmetic(settings("--mini_batch_size", "64", PPO_EPOCHS), 1000)
    assert numbers.optimizer_steps == 12  # 256 / 64 x 3
    assert numbers.responses_per_optimizer_step == 320  # 64 x 5
    assert (numbers.steps_per_epoch, numbers.left_out, numbers.steps) == (3, 232, 45)


def test_an_incomplete_last_batch_counts_as_a_step_when_it_is_kept():
    """S0-12."""
    numbers = plan.arithmetic(settings("--dataloader_drop_last", "false"), 1000)
    assert (numbers.steps_per_epoch, numbers.left_out, numbers.steps) == (4, 0, 60)


def test_max_steps_ends_a_run_early_and_never_prolongs_it():
    """S0-24."""
    assert plan.arithmetic(settings("--max_steps", "7"), 1000).steps == 7
    assert plan.arithmetic(settings("--max_steps", "700"), 1000).steps == 45


def test_the_arithmetic_in_words():
    made = settings("--mini_batch_size", "64", PPO_EPOCHS)
    assert plan.arithmetic_lines(made, plan.arithmetic(made, 1000)) == [
        "each step    256 prompts x 5 responses = 1,280 responses",
        "             12 optimizer steps of 64 prompts (320 responses) each, over 3 passes",
        "each epoch   1,000 prompts to train on = 3 steps; 232 prompts left over (launcher.drop_last)",
        "in all       45 steps in 15 epochs: 57,600 responses",
    ]
    made = settings("--max_steps", "1")
    assert plan.arithmetic_lines(made, plan.arithmetic(made, 256))[-1] == (
        "in all       1 step by total_training_steps: 1,280 responses"
    )
    assert plan.arithmetic_lines(made, plan.arithmetic(made, None))[-1] == "in all       1 step at most"
    made = settings("--dataloader_drop_last", "0")
    assert plan.arithmetic_lines(made, plan.arithmetic(made, 1000))[-1].endswith(
        "in 15 epochs: at most 76,800 responses"
    )


def test_the_table_shows_what_differs_with_its_origin_aligned():
    made = settings("--rollout_n", "8", "--lr=5e-7")
    assert plan.table(made, made.changed()) == [
        "data.train_files                  p.json   flag --data",
        "actor_rollout_ref.model.path      scratch  flag --model",
        "actor_rollout_ref.actor.optim.lr  5e-7     flag --lr",
        "actor_rollout_ref.rollout.n       8        flag --rollout_n",
    ]


def test_a_long_value_is_cut_in_the_short_table_only():
    made = settings("--system", "x" * 100 + "\nend")
    (row,) = plan.table(made, ["launcher.data.system"])
    assert "x" * 57 + "..." in row
    (row,) = plan.table(made, ["launcher.data.system"], cut=False)
    assert "x" * 100 + " end" in row


def test_the_plan_names_what_has_no_effect_and_what_only_verl_knows():
    made = settings("--n_gpus", "8", "trainer.balance_batch=false")
    text = plan.render(
        made,
        engine="embedded",
        numbers=plan.arithmetic(made, 1000),
        no_effect=["trainer.n_gpus_per_node", "trainer.balance_batch"],
        command=["the command"],
    )
    after = text.partition("No effect on the embedded engine\n")[2]
    assert after.startswith("  trainer.n_gpus_per_node  8  flag --n_gpus\n  trainer.balance_batch=false  override\n")
    assert text.endswith("Would run\n  the command")
    assert "For verl alone\n  trainer.balance_batch=false  override" in text


def test_the_full_plan_shows_every_key():
    made = settings()
    text = plan.render(made, engine="e", numbers=plan.arithmetic(made, 1), no_effect=[], command=[], full=True)
    for key in defaults():
        assert f"\n  {key} " in text


def test_json_holds_every_key_with_value_and_origin():
    made = settings("--lr", "5e-7", "trainer.balance_batch=false")
    read = json.loads(plan.to_json(made, engine="embedded", command=["a", "b"]))
    assert list(read) == ["engine", "values", "command"]
    assert (read["engine"], read["command"]) == ("embedded", ["a", "b"])
    assert set(read["values"]) == {*defaults(), "trainer.balance_batch"}
    assert read["values"]["actor_rollout_ref.actor.optim.lr"] == {"value": 5e-7, "origin": "flag --lr"}
    assert read["values"]["data.val_files"] == {"value": None, "origin": "default"}
    assert read["values"]["trainer.balance_batch"] == {"value": "trainer.balance_batch=false", "origin": "override"}
