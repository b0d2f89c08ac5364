"""The command line and the environment: which setting, which text, where from; and the help text."""

from __future__ import annotations

import re

import pytest

from grpo import flags, help
from grpo.flags import Given, environment, load_flags, parse
from grpo.values import defaults

S2_NAMES = {  # S2-12 .. S2-20: the requirement's names and the keys they must reach
    "ROLLOUT_N": "actor_rollout_ref.rollout.n",
    "NORM_ADV_BY_STD": "algorithm.norm_adv_by_std_in_grpo",
    "USE_KL_LOSS": "actor_rollout_ref.actor.use_kl_loss",
    "KL_LOSS_COEF": "actor_rollout_ref.actor.kl_loss_coef",
    "KL_LOSS_TYPE": "actor_rollout_ref.actor.kl_loss_type",
    "TRAIN_BATCH_SIZE": "data.train_batch_size",
    "LEARNING_RATE": "actor_rollout_ref.actor.optim.lr",
    "TOTAL_EPOCHS": "trainer.total_epochs",
    "MAX_RESPONSE_LENGTH": "data.max_response_length",
}


def given(*words: str) -> dict[str, tuple[str | None, str]]:
    line = parse(words)
    assert line.problems == []
    return {setting.key: (setting.text, setting.origin) for setting in line.given}


@pytest.mark.parametrize("flag", [flag for flag in load_flags() if flag.key], ids=lambda flag: flag.name)
def test_every_flag_and_alias_reaches_its_key(flag: flags.Flag):
    assert flag.key in defaults()
    for spelling in (flag.name, *flag.aliases):
        assert given(f"--{spelling}=7")[flag.key] == ("7", f"flag --{spelling}")
        if not flag.values:
            assert given(f"--{spelling}", "7")[flag.key] == ("7", f"flag --{spelling}")


@pytest.mark.parametrize(("name", "key"), S2_NAMES.items())
def test_the_names_of_the_requirement_are_environment_variables_and_flags(name: str, key: str):
    """S2-10, S2-12 to S2-20."""
    assert environment({name: "3"}) == [Given(key, "3", f"env {name}")]
    assert given(f"--{name.lower()}", "3")[key] == ("3", f"flag --{name.lower()}")


def test_every_environment_name_in_lower_case_is_a_flag():
    spellings = flags.by_spelling()
    assert [flag.env for flag in load_flags() if flag.env and flag.env.lower() not in spellings] == []


def test_the_short_flags_of_the_requirement():
    """S2-05, S2-07, S2-08."""
    line = "--model Qwen/Qwen2.5-7B --rollout_n 8 --epochs 20 --kl_coef 0.01 --lr 5e-7 --n_gpus 8"
    assert given(*line.split()) == {
        "actor_rollout_ref.model.path": ("Qwen/Qwen2.5-7B", "flag --model"),
        "actor_rollout_ref.rollout.n": ("8", "flag --rollout_n"),
        "trainer.total_epochs": ("20", "flag --epochs"),
        "actor_rollout_ref.actor.kl_loss_coef": ("0.01", "flag --kl_coef"),
        "actor_rollout_ref.actor.optim.lr": ("5e-7", "flag --lr"),
        "trainer.n_gpus_per_node": ("8", "flag --n_gpus"),
    }


def test_flags_and_overrides_stand_in_any_order():
    """S2-09."""
    line = parse(["data.seed=3", "--top_k", "-1", "+a.b=1", "--dry_run", "++c.d=[1,2]", "~e.f", "--lr=-1e-6"])
    assert line.problems == []
    assert line.overrides == ["data.seed=3", "+a.b=1", "++c.d=[1,2]", "~e.f"]
    assert [setting.text for setting in line.given] == ["-1", "-1e-6"]
    assert line.dry_run == "changed"


def test_dashes_in_a_flag_are_underscores():
    assert given("--train-batch-size", "8") == given("--train_batch_size", "8")


def test_an_optional_value_is_taken_only_when_it_is_one():
    assert parse(["--dry_run", "full"]).dry_run == "full"
    assert parse(["--dry_run=json"]).dry_run == "json"
    assert given("--resume", "disable")["trainer.resume_mode"][0] == "disable"
    line = parse(["--resume", "data.seed=1"])
    assert (line.given[0].text, line.overrides) == ("auto", ["data.seed=1"])
    assert given("--debug")["launcher.debug"] == ("true", "flag --debug")


def test_a_reward_file_may_name_its_function():
    """S2-06."""
    path, name = flags.REWARD_PATH, flags.REWARD_NAME
    assert given("--reward_func", "./my_reward.py:score") == {
        path: ("./my_reward.py", "flag --reward_func"),
        name: ("score", "flag --reward_func"),
    }
    # Without a name, the function that an earlier file had must not be looked for in this one.
    assert given("--reward_func", "./my_reward.py")[name] == (None, "flag --reward_func")
    assert given("--reward_func", "C:/x/r.py")[path] == ("C:/x/r.py", "flag --reward_func")


def test_an_empty_environment_variable_is_not_set():
    assert environment({"ROLLOUT_N": "", "LEARNING_RATE": "  ", "PATH": "/bin"}) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rolout_n", "8"], "--rolout_n is no flag; did you mean --rollout_n?"),
        (["--roll", "8"], "--roll is no flag; did you mean --rollout_n?"),  # no abbreviations
        (["-lr", "8"], "-lr is no flag; did you mean --lr?"),
        (
            ["--tensor_model_parallel_size", "2"],
            "--tensor_model_parallel_size is no flag; the key is written without dashes: "
            "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        ),
        (
            ["--tp=2"],
            "--tp is no flag; the key is written without dashes: "
            "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        ),
        (
            ["--balance-batch=true"],
            "--balance-batch is no flag; the key is written without dashes: trainer.balance_batch=true",
        ),
        (["--path", "x"], "--path is no flag; --help lists all flags"),  # the last part of several
        (["--data.seed=8"], "--data.seed is no flag; a key is written without dashes: data.seed=VALUE"),
        (["--lr"], "--lr needs a value; write --learning_rate VALUE or --learning_rate=VALUE"),
        (["--data="], "--data needs a value; write --data FILE or --data=FILE"),
        (
            ["--data", "--model", "m"],
            "--data needs a value, but the next word is the flag --model; write --data FILE or --data=FILE",
        ),
        (
            ["--model", "data.seed=3"],
            "--model needs a value, but the next word is the override data.seed=3; write --model PATH or --model=PATH",
        ),
        (["--dry_run=ful"], "--dry_run=ful: dry_run is full or json, or stands alone"),
        (["p.jsonl#5"], "p.jsonl#5 is no flag, no key=value and no sub-command; did you mean --data p.jsonl#5?"),
        (["my.yaml"], "my.yaml is no flag, no key=value and no sub-command; did you mean --config my.yaml?"),
        (["dta"], "dta is no flag, no key=value and no sub-command; did you mean ./train.sh data?"),
        (["rollout_n"], "rollout_n is no flag, no key=value and no sub-command; did you mean --rollout_n?"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_what_was_probably_meant(words: list[str], problem: str):
    assert parse(words).problems == [problem]


def test_all_mistakes_are_told_at_once():
    assert len(parse(["--foo", "1", "--lr", "--bar=2", "word"]).problems) == 4


def test_the_last_of_two_equal_flags_counts_and_is_said():
    line = parse(["--lr", "1e-5", "--learning_rate", "2e-5"])
    assert line.given[-1].text == "2e-5"
    assert line.notes == ["--learning_rate is given more than once: the last value, 2e-5, counts"]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 120])
def test_help_shows_for_every_flag_its_default_environment_name_and_key(width: int, lang: str):
    """S2-44 for the Chinese one."""
    text = help.render(width=width, lang=lang)
    entries = dict(re.findall(r"^  --(\w+)(.*?)(?=^  --|^\S|\Z)", text, re.MULTILINE | re.DOTALL))
    for flag in load_flags():
        assert flag.name in entries
        for fact in (flag.key, flag.env, *flag.aliases, flag.key and help.default_text(flag.key)):
            assert fact is None or fact in entries[flag.name], flag.name
    assert max(map(help.columns, text.splitlines())) <= width
    assert "\033" not in text


def test_help_lists_the_most_used_first_and_says_what_else_there_is():
    text = help.render()
    assert text.index("--data FILE") < text.index("--seed")
    assert "Sub-commands" in text
    assert "loss_agg_mode=seq-mean-token-sum-norm" in text  # a raw override, S2-30


def test_help_with_a_word_shows_only_what_mentions_it_also_keys_without_a_flag():
    text = help.render("lora")
    assert "--learning_rate" in text
    assert "actor_rollout_ref.model.lora_adapter_path=null" in text
    assert "--n_gpus" not in text


def test_help_with_a_mistyped_word_names_the_nearest():
    assert help.render("rolout_n") == "Nothing in --help mentions 'rolout_n'. Try --help rollout_n."


def test_help_is_chinese_where_the_locale_is():
    assert help.language({"LANG": "zh_CN.UTF-8"}) == "zh"
    assert help.language({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}) == "en"
    assert help.render(lang="zh").splitlines()[2].startswith("输入提示")


def test_defaults_are_shown_as_people_write_them():
    assert help.default_text("actor_rollout_ref.actor.optim.lr") == "1e-6"
    assert help.default_text("actor_rollout_ref.actor.use_kl_loss") == "true"
    assert help.default_text("actor_rollout_ref.actor.ppo_mini_batch_size") == "= data.train_batch_size"
    assert help.default_text("data.train_files") is None
