"""What the launcher decides when little is named: the demo, a model, data, a fitting batch, --debug, --resume alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo import flags
from grpo.config import ConfigError
from grpo.defaults import SHIPPED_TRAIN, SHIPPED_VAL, STANDARD_MODEL, fit_batch, share_batch
from grpo.resolve import Resolved, resolve
from grpo.run_dir import open_run

BATCH, MINI = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
MODEL, TRAIN, VAL = "actor_rollout_ref.model.path", "data.train_files", "data.val_files"


def resolved(*words: str, **environ: str) -> Resolved:
    return resolve(flags.parse(words), environ)


def got(made: Resolved, key: str) -> tuple[object, str]:
    settings = made.settings()
    return settings[key], settings.origins[key]


def test_nothing_named_runs_the_demo_and_says_how_to_train_on_ones_own_data():
    """S2-04: ./train.sh alone, with five samples per prompt."""
    made = resolved()
    assert made.recipe == "demo"
    assert got(made, MODEL) == ("scratch", "recipe demo")
    assert got(made, TRAIN) == (str(SHIPPED_TRAIN), "recipe demo")
    assert got(made, "actor_rollout_ref.rollout.n")[0] == 5
    assert [note for note in made.notes if "./train.sh --data prompts.json --model" in note] == made.notes


def test_the_demo_keeps_the_requirements_defaults():
    """S2-12 to S2-16: it changes only what a tiny model needs."""
    settings = resolved().settings()
    actor = "actor_rollout_ref.actor"
    kept = ("actor_rollout_ref.rollout.n", "algorithm.norm_adv_by_std_in_grpo")
    kept += tuple(f"{actor}.{name}" for name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"))
    assert [settings.origins[key] for key in kept] == ["default"] * 5


def test_other_settings_and_other_recipes_lie_over_the_demo():
    made = resolved("--rollout_n", "8", "--recipe", "drgrpo")
    assert made.recipe == "demo + drgrpo"
    assert got(made, MODEL) == ("scratch", "recipe demo")
    assert got(made, "actor_rollout_ref.actor.use_kl_loss") == (False, "recipe drgrpo")
    assert got(made, "actor_rollout_ref.rollout.n") == (8, "flag --rollout_n")


def test_recipes_lie_over_each_other_in_the_order_given():
    made = resolved("--data", "p.jsonl", "--recipe", "gsm8k", "--recipe=drgrpo")
    assert made.recipe == "gsm8k + drgrpo"
    assert got(made, "launcher.data.prompt_key") == ("question", "recipe gsm8k")
    assert got(made, "actor_rollout_ref.actor.loss_scale_factor") == (512.0, "recipe drgrpo")  # gsm8k's length


def test_data_alone_takes_the_standard_model_and_says_so():
    made = resolved(DATA="p.json")
    assert made.recipe is None
    assert got(made, MODEL) == (STANDARD_MODEL, "launcher")
    assert got(made, BATCH) == (256, "default")  # S2-17
    assert f"no model named: taking {STANDARD_MODEL}; --model names another" in made.notes


def test_a_model_alone_takes_the_shipped_data_and_says_so():
    made = resolved("--model", "some/model")
    assert got(made, TRAIN) == (str(SHIPPED_TRAIN), "launcher")
    assert got(made, VAL) == (str(SHIPPED_VAL), "launcher")
    assert made.notes == ["no data named: taking the shipped arithmetic prompts; --data names yours"]
    assert SHIPPED_TRAIN.is_file()
    assert SHIPPED_VAL.is_file()


def test_verl_alone_takes_the_standard_model_since_it_cannot_make_the_demos():
    made = resolved("--engine", "verl")
    assert (made.recipe, got(made, MODEL)[0]) == (None, STANDARD_MODEL)


def test_a_recipe_for_other_columns_needs_its_data_named():
    with pytest.raises(ConfigError, match=r"prompt_key=question \(recipe gsm8k\) .* give --data FILE"):
        resolved("--recipe", "gsm8k")
    made = resolved("--recipe", "gsm8k", "--data", "gsm8k.jsonl")
    assert got(made, "launcher.data.answer_key") == ("answer", "recipe gsm8k")


def test_settings_from_the_environment_are_said_because_nobody_sees_them():
    made = resolved("--data", "p", "--rollout_n", "3", ROLLOUT_N="8", SEED="7")
    assert made.notes[-1] == "from the environment: SEED=7"  # ROLLOUT_N lost to the flag
    assert made.command == "ROLLOUT_N=8 SEED=7 ./train.sh --data p --rollout_n 3"


def test_the_command_can_be_typed_again():
    assert resolved("--data", "my p.json", "data.val_files='x y'").command == (
        "./train.sh --data 'my p.json' 'data.val_files='\"'\"'x y'\"'\"''"
    )


def test_a_default_batch_shrinks_to_the_data_and_the_mini_batch_follows():
    made = resolved("--data", "p", "--model", "scratch")
    assert fit_batch(made.draft, 93) == ["93 prompts to train on: train_batch_size is 93 instead of 256"]
    assert got(made, BATCH) == (93, "launcher")
    assert got(made, MINI) == (93, "launcher")


def test_a_batch_that_fits_is_left_alone():
    made = resolved("--data", "p", "--model", "scratch")
    assert fit_batch(made.draft, 256) == []
    assert got(made, BATCH) == (256, "default")


def test_one_record_is_enough():
    """S2-02: the requirement's own file has one."""
    made = resolved("--data", "p", "--model", "scratch")
    assert fit_batch(made.draft, 1) == ["1 prompt to train on: train_batch_size is 1 instead of 256"]


def test_a_recipes_batch_shrinks_too_and_its_mini_batch_still_divides():
    made = resolved()  # the demo's 64
    assert fit_batch(made.draft, 10)
    assert got(made, BATCH) == (10, "launcher")
    assert got(made, MINI) == (10, "launcher")


def test_a_batch_that_the_user_set_is_refused_with_the_largest_that_works():
    made = resolved("--data", "p", "--model", "scratch", "--train_batch_size", "100")
    with pytest.raises(ConfigError) as caught:
        fit_batch(made.draft, 93)
    assert str(caught.value) == (
        "data.train_batch_size=100 (flag --train_batch_size) is more than the 93 prompts to train on; "
        "the largest that works is 93"
    )


def test_a_default_batch_keeps_to_the_mini_batch_that_the_user_set():
    made = resolved("--data", "p", "--model", "scratch", "--mini_batch_size", "32")
    fit_batch(made.draft, 93)  # 2 x 32 = 64
    assert (got(made, BATCH), got(made, MINI)) == ((64, "launcher"), (32, "flag --mini_batch_size"))
    made = resolved("--data", "p", "--model", "scratch", "--mini_batch_size", "128")
    with pytest.raises(ConfigError, match=r"ppo_mini_batch_size=128 .* more than the 93 .* works is 93"):
        fit_batch(made.draft, 93)


def test_a_shrunk_batch_can_still_be_shared_by_the_gpus():
    made = resolved("--data", "p", "--model", "m/m", "--rollout_n", "6")
    fit_batch(made.draft, 93, gpus=8)  # 6 responses: 4 prompts fill 8 GPUs evenly, so 92
    assert got(made, BATCH) == (92, "launcher")
    made = resolved("--data", "p", "--model", "m/m")
    with pytest.raises(ConfigError, match="8 prompts or more are needed on 8 GPUs"):
        fit_batch(made.draft, 7, gpus=8)


def test_debug_makes_everything_small_except_what_the_user_set():
    """S1-20."""
    settings = resolved("--debug", "--train_batch_size", "6").settings()
    assert (settings[BATCH], settings.origins[BATCH]) == (6, "flag --train_batch_size")
    assert settings[MINI] == 6
    assert (settings["trainer.total_training_steps"], settings["launcher.sft.steps"]) == (2, 20)
    assert settings.origins["trainer.total_training_steps"] == "launcher"
    assert settings["data.dataloader_num_workers"] == 0
    assert settings["data.max_response_length"] == 32  # the demo's, which is smaller already
    assert resolved("--debug", "--max_steps", "7").settings()["trainer.total_training_steps"] == 7


@pytest.mark.slow
def test_resume_alone_goes_on_with_the_settings_of_the_unfinished_run(in_folder: Path):
    words = ("--lr", "3e-5", "--recipe", "drgrpo", "--output_dir", "运行 1", "--system", "pay ${5}")
    settings = resolved(*words).settings()
    with open_run("运行 1", config=settings.config(), origins=settings.origins, fingerprint={}, command="x"):
        Path("运行 1/metrics.jsonl").write_text("{}\n")
    again = resolved("--resume", "--output_dir", "运行 1")
    assert again.recipe == "demo + drgrpo"
    assert dict(again.settings().values) == dict(settings.values)
    assert got(again, "actor_rollout_ref.actor.optim.lr") == (3e-5, "flag --lr")
    assert again.notes == []


@pytest.mark.slow
def test_the_stored_configuration_starts_another_run_and_what_followed_still_follows(in_folder: Path):
    settings = resolved("--train_batch_size", "32", "--output_dir", "a", "--system", "pay ${5}").settings()
    with open_run("a", config=settings.config(), origins=settings.origins, fingerprint={}, command="x"):
        pass
    again = resolved("--config", "a/config.yaml", "--output_dir", "b", "--seed", "7").settings()
    assert again.origins[BATCH] == "a/config.yaml"
    assert again["trainer.default_local_dir"] == "b/checkpoints"
    assert (again["data.seed"], again["launcher.data.system"]) == (7, "pay ${5}")
    assert resolved("--config", "a/config.yaml", "--train_batch_size", "8").settings()[MINI] == 8


def test_of_a_stored_configuration_the_defaults_are_nobodys_choice(in_folder: Path):
    settings = resolved("--recipe", "drgrpo", "--output_dir", "a").settings()
    with open_run("a", config=settings.config(), origins=settings.origins, fingerprint={}, command="x"):
        pass
    again = resolved("--config", "a/config.yaml", "--output_dir", "b").settings()
    assert again.origins["algorithm.norm_adv_by_std_in_grpo"] == "a/config.yaml"
    assert not again.by_user("actor_rollout_ref.actor.clip_ratio")
    assert {key for key in settings.values if settings[key] != again[key]} == {
        "trainer.default_local_dir",
        "trainer.experiment_name",
        "launcher.output_dir",
    }


def test_resume_alone_where_there_is_nothing_to_go_on_with(in_folder: Path):
    with pytest.raises(ConfigError, match="outputs holds no unfinished run"):
        resolved("--resume")
    assert resolved("--resume", "--data", "p", "--model", "scratch").settings()["trainer.resume_mode"] == "auto"


def test_long_responses_get_room_in_a_micro_batch_unless_the_user_set_it():
    """S0-37: 2k prompt and 30k response."""
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    words = ("--model", "scratch", "--max_prompt_length", "2048", "--max_response_length", "30720")
    made = resolved(*words)
    assert got(made, key) == (32768, "launcher")
    assert f"{key} is 32768, so that one prompt with its response fits" in made.notes
    assert got(resolved(*words, f"{key}=40000"), key) == (40000, "override")
    assert got(resolved("--model", "scratch"), key) == (16384, "default")


def test_a_default_batch_is_one_that_all_gpus_share_evenly():
    """S0-37: 9 machines of 8 GPUs; 256 prompts x 5 responses are not a multiple of 72, 288 x 5 are."""
    made = resolved("--data", str(SHIPPED_TRAIN))
    assert share_batch(made.draft, 72) == ["72 GPUs share a step evenly: train_batch_size is 288 instead of 256"]
    assert got(made, BATCH) == got(made, MINI) == (288, "launcher")
    assert share_batch(made.draft, 8) == []
    own = resolved("--data", str(SHIPPED_TRAIN), "--train_batch_size", "256")
    assert share_batch(own.draft, 72) == []  # the engine refuses it by name
