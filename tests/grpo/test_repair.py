"""--fix: what is refused gets the nearest value that works, and every change is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpo import flags, launch, repair
from grpo.config import ConfigError, one_fix
from grpo.embedded.engine import EmbeddedEngine
from grpo.engine import Engine
from grpo.resolve import Resolved, checked, resolve
from grpo.verl_backend.engine import VerlEngine

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BATCH, MINI = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"


def resolved(*words: str) -> Resolved:
    return resolve(flags.parse(["--data", "p.json", "--model", "Qwen/Qwen2.5-7B", *words]), {})


def accepted(*words: str, engine: Engine | None = None) -> tuple[Resolved, dict[str, object], Sequence[str]]:
    made = resolved(*words)
    settings = repair.accepted(made, engine or VerlEngine(), here=False)
    return made, dict(settings.values), [note for note in made.notes if note.startswith("--fix: ")]


@pytest.mark.slow
def test_a_batch_that_gpus_cannot_share_becomes_the_nearest_and_its_mini_batch_follows():
    _, values, said = accepted("--fix", "--n_gpus", "8", "--train_batch_size", "100")
    assert (values[BATCH], values[MINI]) == (96, 96)
    assert said == ["--fix: data.train_batch_size is 96 instead of 100"]


@pytest.mark.slow
def test_one_repair_uncovers_the_next():
    # 100 -> 96 (a multiple of 8); 30 no longer divides: 32 does, and 32 x 5 = 8 x 20
    _, values, said = accepted("--fix", "--n_gpus", "8", "--train_batch_size", "100", "--mini_batch_size", "25")
    assert (values[BATCH], values[MINI]) == (96, 24)
    assert said == [
        "--fix: data.train_batch_size is 96 instead of 100",
        f"--fix: {MINI} is 24 instead of 25",
    ]


@pytest.mark.slow
def test_without_the_flag_everything_is_refused():
    with pytest.raises(ConfigError, match="take 96 or 104") as caught:
        accepted("--n_gpus", "8", "--train_batch_size", "100")
    assert caught.value.fix == {BATCH: 96}
    with pytest.raises(ConfigError):
        accepted("--fix=false", "--n_gpus", "8", "--train_batch_size", "100")


@pytest.mark.slow
def test_what_has_no_nearest_value_stays_refused_and_nothing_is_changed():
    words = ("--fix", "--n_gpus", "8", "--train_batch_size", "100", "launcher.min_response_length=2")
    made = resolved(*words)
    with pytest.raises(ConfigError) as caught:
        repair.accepted(made, VerlEngine(), here=False)
    assert len(caught.value.problems) == 2
    assert made.settings()[BATCH] == 100
    assert made.notes == []


@pytest.mark.slow
def test_keys_that_only_verl_has_are_repaired_and_left_out():
    made, values, said = accepted(
        "--fix",
        "--n_gpus",
        "4",
        f"{ROLLOUT}.mode=sync",
        f"{ACTOR}.ppo_micro_batch_size=16",
        f"{ROLLOUT}.tensor_model_parallel_size=3",
        f"{ROLLOUT}.log_prob_use_dynamic_bsz=true",
    )
    assert made.settings().passthrough == {
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": f"++{ROLLOUT}.log_prob_use_dynamic_bsz=False"
    }
    assert values[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 4
    assert values[f"{ROLLOUT}.tensor_model_parallel_size"] in (2, 4)
    assert f"--fix: {ROLLOUT}.mode=sync is left out" in said
    assert made.settings().origins[f"{ROLLOUT}.tensor_model_parallel_size"] == "flag --fix"


def test_a_rule_of_both_engines_is_repaired_too():
    made = resolved("--fix", "--mini_batch_size", "100", f"{ACTOR}.kl_loss_type=low_var", "--rollout_n", "1")
    settings = repair.repaired(made, lambda: checked(made))
    # of the divisors of 256, 128 is 28 away from 100, and 64 is 36 away
    assert (settings[MINI], settings[f"{ACTOR}.kl_loss_type"], settings[f"{ROLLOUT}.n"]) == (128, "low_var_kl", 2)


@pytest.mark.slow
def test_a_batch_that_was_set_larger_than_the_data_shrinks():
    data = launch.Data([object()] * 103, [])  # type: ignore[list-item]
    made = resolved("--fix", "--n_gpus", "4", "--train_batch_size", "200")
    settings = repair.fitted(made, data, VerlEngine())
    assert settings[BATCH] == 100  # 103 prompts, in fours
    with pytest.raises(ConfigError, match="the largest that works is 100"):
        repair.fitted(resolved("--n_gpus", "4", "--train_batch_size", "200"), data, VerlEngine())


def test_a_key_that_only_verl_knows_has_no_nearest_value_for_the_embedded_engine():
    with pytest.raises(ConfigError, match="only the verl engine knows this key"):
        accepted("--fix", f"{ROLLOUT}.mode=sync", engine=EmbeddedEngine())


@pytest.mark.slow
def test_repairs_that_go_in_circles_end():
    made, tries = resolved("--fix"), []

    def never() -> None:
        tries.append(1)
        raise ConfigError("no", fix={BATCH: len(tries)})

    with pytest.raises(ConfigError, match="no"):
        repair.repaired(made, never)
    assert len(tries) == repair.ROUNDS + 1


def test_the_fixes_of_several_problems_are_one_and_the_first_word_counts():
    assert one_fix([{"a": 1}, {"a": 2, "b": 3}]) == {"a": 1, "b": 3}
    assert one_fix([{"a": 1}, {}]) == {}
    assert one_fix([]) == {}
