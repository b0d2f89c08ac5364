"""The text of --dry_run."""

from __future__ import annotations

import json

from grpo import flags, plan
from grpo.batches import arithmetic
from grpo.config import Settings
from grpo.resolve import resolve
from grpo.values import defaults


def settings(*words: str) -> Settings:
    return resolve(flags.parse(["--data", "p.json", "--model", "scratch", *words]), {}).settings()


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
        numbers=arithmetic(made, 1000),
        no_effect=["trainer.n_gpus_per_node", "trainer.balance_batch"],
        command=["the command"],
    )
    after = text.partition("No effect on the embedded engine\n")[2]
    assert after.startswith("  trainer.n_gpus_per_node  8  flag --n_gpus\n  trainer.balance_batch=false  override\n")
    assert text.endswith("Would run\n  the command")
    assert "For verl alone" not in text  # it would be said twice, and once wrongly
    text = plan.render(made, engine="verl", numbers=arithmetic(made, 1000), no_effect=[], command=[])
    assert "For verl alone\n  trainer.balance_batch=false  override" in text


def test_a_run_begins_by_naming_what_the_user_set_and_its_engine_makes_nothing_of():
    """Not what a recipe or the launcher set: nobody waits for that."""
    made = settings("--n_gpus", "8", "trainer.balance_batch=false")
    keys = ["trainer.n_gpus_per_node", "trainer.balance_batch", "actor_rollout_ref.rollout.gpu_memory_utilization"]
    (line,) = plan.unused_note(made, "embedded", keys)
    assert line == (
        "no effect on the embedded engine: trainer.n_gpus_per_node=8 (flag --n_gpus), trainer.balance_batch=false "
        "(override)"
    )
    assert plan.unused_note(made, "embedded", keys[2:]) == []


def test_what_was_typed_is_shown_even_where_it_is_the_default():
    standard = str(defaults()["actor_rollout_ref.rollout.n"])
    made = settings("--rollout_n", standard, "data.shuffle=true")
    text = plan.render(made, engine="e", numbers=arithmetic(made, 1000), no_effect=[], command=[])
    rows = [line.split() for line in text.splitlines()]
    assert ["actor_rollout_ref.rollout.n", standard, "flag", "--rollout_n"] in rows
    assert ["data.shuffle", "true", "override"] in rows
    assert not any(row[2:] == ["default"] for row in rows)


def test_the_full_plan_shows_every_key():
    made = settings()
    text = plan.render(made, engine="e", numbers=arithmetic(made, 1), no_effect=[], command=[], full=True)
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
