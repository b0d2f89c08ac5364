"""Layers, origins, kinds of values, unknown keys: from words to settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError

from grpo import flags
from grpo.config import ConfigError, Draft, Settings, read_recipe, read_yaml, recipe_files, recipe_line
from grpo.hydra_text import hydra_value
from grpo.resolve import Resolved, resolve
from grpo.values import WrongKind, convert, defaults

BATCH, N, LR = "data.train_batch_size", "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.optim.lr"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
NAMED = ("--data", "prompts.json", "--model", "scratch")  # so that no recipe stands in


def resolved(*words: str, **environ: str) -> Resolved:
    return resolve(flags.parse([*NAMED, *words]), environ)


def settings(*words: str, **environ: str) -> Settings:
    return resolved(*words, **environ).settings()


def got(key: str, *words: str, **environ: str) -> tuple[object, str]:
    made = settings(*words, **environ)
    return made[key], made.origins[key]


def problems(*words: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings(*words, **environ)
    return list(caught.value.problems)


@pytest.mark.slow
def test_a_later_layer_wins_and_the_value_remembers_which(in_folder: Path):
    """S2-10: override > flag > environment > --config > recipe > default."""
    Path("my.yaml").write_text("actor_rollout_ref:\n  actor:\n    use_kl_loss: true\n    optim: {lr: 1e-4}\n")
    key = "actor_rollout_ref.actor.use_kl_loss"
    words = ["--recipe", "drgrpo"]
    assert got(key) == (True, "default")
    assert got(key, *words) == (False, "recipe drgrpo")
    words += ["--config", "my.yaml"]
    assert got(key, *words) == (True, "my.yaml")
    assert got(key, *words, USE_KL_LOSS="no") == (False, "env USE_KL_LOSS")
    words += ["--use_kl_loss", "true"]
    assert got(key, *words, USE_KL_LOSS="no") == (True, "flag --use_kl_loss")
    words = [f"{key}=false", *words]
    assert got(key, *words, USE_KL_LOSS="1") == (False, "override")
    assert got(LR, *words) == (1e-4, "my.yaml")


def test_defaults_are_those_of_the_requirement():
    """S2-12 to S2-20, S0-20."""
    made = settings()
    actor = "actor_rollout_ref.actor"
    assert {key: made[key] for key in (N, BATCH, LR, "trainer.total_epochs", "data.max_response_length")} == {
        N: 5,
        BATCH: 256,
        LR: 1e-6,
        "trainer.total_epochs": 15,
        "data.max_response_length": 1024,
    }
    assert made["algorithm.norm_adv_by_std_in_grpo"] is True
    assert (made[f"{actor}.use_kl_loss"], made[f"{actor}.kl_loss_coef"]) == (True, 0.001)
    assert made[f"{actor}.kl_loss_type"] == "low_var_kl"
    assert made["launcher.seed"] == 42


def test_checkpoints_go_to_the_folder_of_the_requirement():
    """S2-11."""
    assert settings()["trainer.default_local_dir"] == "outputs/checkpoints"
    assert got("trainer.default_local_dir", "--output_dir", "run 1") == ("run 1/checkpoints", "flag --output_dir")


def test_a_value_that_follows_another_has_its_value_and_its_origin():
    assert got(MINI) == (256, "default")
    assert got(MINI, "--train_batch_size", "64") == (64, "flag --train_batch_size")
    assert got(MINI, "--train_batch_size", "64", MINI_BATCH_SIZE="32") == (32, "env MINI_BATCH_SIZE")
    # clip_ratio_low and _high: verl's own defaults would win over clip_ratio (VERL.md 3.1)
    assert got("actor_rollout_ref.actor.clip_ratio_high", "--clip_ratio=0.3") == (0.3, "flag --clip_ratio")
    assert got("data.seed", "--seed", "7") == (7, "flag --seed")


def test_a_yaml_file_holds_nested_or_dotted_keys_and_references(in_folder: Path):
    """S2-31: the requirement's own snippet, and values that YAML 1.1 readers get wrong."""
    Path("配置.yaml").write_text(
        "actor_rollout_ref:\n  ref:\n    fsdp_config:\n      param_offload: false\n"
        "actor_rollout_ref.actor.optim.lr: 5e-7\n"
        "data: {max_response_length: '${data.max_prompt_length}'}\n"
        "trainer: {logger: [console, file]}\n",
        encoding="utf-8",
    )
    made = settings("--config", "配置.yaml", "--max_prompt_length", "99")
    assert (made["actor_rollout_ref.ref.fsdp_config.param_offload"], made[LR]) == (False, 5e-7)
    assert made["data.max_response_length"] == 99
    assert made.origins["data.max_response_length"] == "配置.yaml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: {a: [1,\n", "bad.yaml, line 2, column 1: not YAML: "),
        ("a: 1\n  b: 2\n", "bad.yaml, line 2, column 4: not YAML: mapping values are not allowed here"),
        ("data: 1\ndata: 2\n", "bad.yaml, line 2, column 1: not YAML: found duplicate key data"),
        ("- 1\n", "bad.yaml: holds no keys"),
    ],
)
def test_a_bad_yaml_file_is_named_with_line_and_column(in_folder: Path, text: str, said: str):
    Path("bad.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(Path("bad.yaml"), said="bad.yaml")
    assert str(caught.value).startswith(said)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_a_missing_or_misencoded_yaml_file_is_named(in_folder: Path):
    Path("gbk.yaml").write_bytes("data: {train_files: 数据.json}".encode("gbk"))
    assert problems("--config", "no.yaml") == [
        "no.yaml: cannot be read (No such file or directory); --config names a YAML file"
    ]
    assert problems("--config", "gbk.yaml") == ["gbk.yaml: byte 20 is not UTF-8; save the file as UTF-8"]


def test_a_file_named_like_one_of_our_origins_is_still_the_users(in_folder: Path):
    Path("default").write_text("data: {train_batch_size: 8}")
    made = settings("--config", "default")
    assert made.origins[BATCH] == "./default"
    assert made.by_user(BATCH)


@pytest.mark.slow
def test_texts_arrive_as_they_were_typed():
    """S2-03; a flag's text is no Hydra and no YAML."""
    for text in ("a, b = [c]: {d}", "${oc.env:HOME}", "007", "3.10", "true", "请解答：\n", "a\\b", "null#", "'quoted'"):
        assert got("launcher.data.system", "--system", text) == (text, "flag --system")
        assert got("launcher.data.system", SYSTEM_PROMPT=text) == (text.strip(), "env SYSTEM_PROMPT")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.train_files=/数据/x.json#500", "/数据/x.json#500"),
        ("data.train_files='/数据/x y.json'", "/数据/x y.json"),
        ('data.train_files="a,b"', "a,b"),
        ("data.train_files=a=b(1).json", "a=b(1).json"),
        ("data.train_files=007", "007"),
        ("data.train_files=1e5", "1e5"),
        ("+data.train_files=true", "true"),
        ("data.train_files=a\\ b", "a b"),
        ("data.train_files='null'", "null"),
        ("data.train_files=${launcher.output_dir}/p.json", "outputs/p.json"),
    ],
)
def test_a_raw_override_of_a_text_means_what_was_typed(override: str, value: str):
    assert got("data.train_files", override) == (value, "override")


def test_raw_overrides_in_every_form_of_hydra(in_folder: Path):
    """S2-09, S2-30: key=value, +key, ++key, lists, groups, null, ~key."""
    made = settings(
        "actor_rollout_ref.model.lora_rank=8",
        "++actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
        "+trainer.logger=[console,'file']",
        "actor_rollout_ref.actor.optim={lr: 1e-4, betas: [0.8,0.9]}",
        "trainer.total_training_steps=1e2",
        "trainer.total_epochs=3",
        "~trainer.total_epochs",
    )
    assert made["actor_rollout_ref.model.lora_rank"] == 8
    assert made["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert made["trainer.logger"] == ["console", "file"]
    assert (made[LR], made["actor_rollout_ref.actor.optim.betas"]) == (1e-4, [0.8, 0.9])
    assert made["trainer.total_training_steps"] == 100
    assert (made["trainer.total_epochs"], made.origins["trainer.total_epochs"]) == (15, "default")
    assert got("trainer.total_training_steps", "--max_steps", "5", "trainer.total_training_steps=null")[0] is None
    assert problems("~trainer.total_epochs=3") == ["override ~trainer.total_epochs=3: trainer.total_epochs is 15"]


def test_an_override_that_is_no_single_value_is_refused():
    assert problems("data.max_prompt_length=1,2", "data.seed@x=1", "data.shuffle=[") == [
        "override data.max_prompt_length=1,2: one value only; a list is written data.max_prompt_length=[a,b]",
        "override data.seed@x=1: packages (@) belong to config groups, which we do not have",
        "override data.shuffle=[: no viable alternative at input '['; quote the value: 'key=\"value\"'",
    ]


def test_report_to_is_a_list_parted_by_commas():
    """S0-10."""
    assert got("trainer.logger", "--report_to", "console, tensorboard")[0] == ["console", "tensorboard"]
    assert got("trainer.logger", "--report_to", "none") == ([], "flag --report_to")
    assert got("trainer.logger", "trainer.logger=wandb,console")[0] == ["wandb", "console"]


@pytest.mark.slow
@pytest.mark.parametrize("word", ["true", "yes", "on", "1", "True", "ON"])
def test_booleans_are_said_in_several_words(word: str):
    key = "algorithm.norm_adv_by_std_in_grpo"
    assert convert(key, word) is True
    assert got(key, NORM_ADV_BY_STD=word)[0] is True
    assert got(key, f"{key}={word}")[0] is True


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (BATCH, "abc", "is not a whole number"),
        (BATCH, "", "is not a whole number"),
        (BATCH, True, "is not a whole number"),
        (BATCH, None, "needs a whole number; its default is 256"),
        (BATCH, [8], "is not a whole number"),
        (N, "2.5", "is not a whole number; 2 and 3 are the nearest"),
        (LR, "fast", "is not a number"),
        (LR, float("nan"), "is not a number"),
        (LR, "inf", "is not a number"),
        (
            "actor_rollout_ref.actor.use_kl_loss",
            "maybe",
            "is not true or false (yes, no, on, off, 1 and 0 are taken too)",
        ),
        ("actor_rollout_ref.actor.use_kl_loss", 2, "is not true or false (yes, no, on, off, 1 and 0 are taken too)"),
        ("trainer.project_name", 7, "is not text; write it in quotes: '7'"),
        ("trainer.project_name", {}, "is not text; write it in quotes: '{}'"),
        ("trainer.logger", 3, "is not a list [a,b]"),
        ("actor_rollout_ref.actor.optim.betas", "0.9,x", "is not a number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(key: str, value: object, said: str):
    with pytest.raises(WrongKind) as caught:
        convert(key, value)
    assert str(caught.value) == said


def test_a_whole_number_may_be_written_as_a_float_and_loses_nothing():
    assert convert(BATCH, "1e3") == 1000
    assert convert(BATCH, 512.0) == 512
    assert convert("launcher.seed", str(2**70 + 1)) == 2**70 + 1
    assert isinstance(convert(LR, 1), float)


def test_all_wrong_values_are_told_at_once_each_with_its_origin():
    assert problems(f"{BATCH}=abc", "--rollout_n", "2.5", "--frobnicate", USE_KL_LOSS="maybe") == [
        "--frobnicate is no flag; --help lists all flags",
        "actor_rollout_ref.actor.use_kl_loss=maybe (env USE_KL_LOSS) "
        "is not true or false (yes, no, on, off, 1 and 0 are taken too)",
        "actor_rollout_ref.rollout.n=2.5 (flag --rollout_n) is not a whole number; 2 and 3 are the nearest",
        "data.train_batch_size=abc (override) is not a whole number",
    ]


def test_a_draft_with_a_mistake_gives_no_settings():
    draft = Draft()
    draft.put(BATCH, "abc", "here")
    with pytest.raises(ConfigError, match=r"train_batch_size=abc \(here\) is not a whole number"):
        draft.settings()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.trian_batch_size=8", "did you mean data.train_batch_size?"),
        ("+data.trian_batch_size=8", "did you mean data.train_batch_size?"),
        ("train_batch_size=8", "did you mean --train_batch_size?"),
        ("optim.lr=1", "did you mean actor_rollout_ref.actor.optim.lr?"),
        ("lora_adapter_path=a", "did you mean actor_rollout_ref.model.lora_adapter_path?"),
        ("reward.reward_manger.name=dapo", "did you mean reward.reward_manager.name?"),  # a key of verl's
        ("~trainer.total_epoch", "did you mean trainer.total_epochs?"),
        ("zzz=1", "--help WORD finds keys"),
    ],
)
def test_a_key_that_nobody_knows_is_refused_with_the_nearest(word: str, said: str):
    (problem,) = problems(word)
    assert problem == f"{word.lstrip('+~').partition('=')[0]} (override) is no key of ours and none of verl's; {said}"


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [  # VERL.md 3.4: verl 0.9.1 accepts some of these and ignores them
        ("custom_reward_function.path=/奖励/a=b,c.py", "reward.custom_reward_function.path", "/奖励/a=b,c.py"),
        ("+custom_reward_function.name=score", "reward.custom_reward_function.name", "score"),
        ("actor_rollout_ref.actor.checkpoint.contents=[model]", f"{ACTOR}.checkpoint.save_contents", ["model"]),
        ("actor_rollout_ref.actor.optim.warmup_style=cosine", f"{ACTOR}.optim.lr_scheduler_type", "cosine"),
        ("actor_rollout_ref.actor.grad_clip=0.5", f"{ACTOR}.optim.clip_grad", 0.5),
    ],
)
def test_an_older_name_of_ours_is_taken_for_the_new_one_and_said(word: str, key: str, value: object):
    made = resolved(word)
    assert made.settings()[key] == value
    (note,) = made.notes
    old = word.lstrip("+").partition("=")[0]
    assert note.startswith(f"{old} (override) is called {key} since verl 0.")


@pytest.mark.parametrize(
    ("word", "passed"),
    [
        ("reward_model.reward_manager=dapo", "reward.reward_manager.name=dapo"),
        ("reward_manager.name=dapo", "reward.reward_manager.name=dapo"),
        ("reward_model.enable=True", "reward.reward_model.enable=True"),
        ("reward_model.model.path=/m", "reward.reward_model.model_path=/m"),
        ("reward_model.sandbox_fusion.url='http://x:1'", "reward.sandbox_fusion.url='http://x:1'"),
        ("sandbox_fusion.url=/a=b", 'reward.sandbox_fusion.url="/a=b"'),
        ("+ray_init.num_cpus=8", "+ray_kwargs.ray_init.num_cpus=8"),
        ("trainer.val_generations_to_log_to_wandb=3", "trainer.log_val_generations=3"),
        ("+reward_model.reward_kwargs.max_resp_len=9", "+reward.reward_kwargs.max_resp_len=9"),
        (
            f"{ROLLOUT}.update_weights_bucket_megabytes=9",
            f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=9",
        ),
    ],
)
def test_an_older_name_of_verls_is_passed_on_under_the_new_one(word: str, passed: str):
    """VERL.md 3.4."""
    made = settings(word)
    assert made.passthrough == {passed.lstrip("+").partition("=")[0]: passed}


def test_older_names_in_a_file_and_in_a_group_are_translated_too(in_folder: Path):
    Path("my.yaml").write_text("custom_reward_function: {path: a.py}\nreward_model: {enable: true}\n")
    made = settings("--config", "my.yaml", "custom_reward_function={name: score}")
    assert made["reward.custom_reward_function.path"] == "a.py"
    assert made["reward.custom_reward_function.name"] == "score"
    assert made.origins["reward.custom_reward_function.path"] == "my.yaml"
    assert made.passthrough == {"reward.reward_model.enable": "++reward.reward_model.enable=True"}


@pytest.mark.parametrize(
    ("word", "said"),
    [  # VERL.md 3.4, where there is no name to translate to
        ("reward_model.launch_reward_fn_async=True", "verl does not read it since 0.7.1; rewards are always computed"),
        (
            "reward_model.micro_batch_size_per_gpu=4",
            "verl does not read it since 0.7.1; a reward model runs in its own",
        ),
        ("reward_model.strategy=fsdp", "verl does not read it since 0.7.1; a reward model runs in its own"),
        ("reward_model.max_length=4", "verl does not read it since 0.7.1; reward models are set up by the keys under"),
        ("algorithm.rollout_is=True", "verl does not read it since 0.6.1; write algorithm.rollout_correction.rollout"),
        ("algorithm.rollout_is_threshold=2", "verl does not read it since 0.6.1; write algorithm.rollout_correction."),
        ("trainer.use_legacy_worker_impl=enable", "verl does not read it since 0.8.0; there is one kind of workers"),
        (
            "data.reward_fn_key=source",
            "verl does not read it since 0.7.1; verl always reads data_source; launcher.data",
        ),
        ("model_engine=megatron", "verl does not read it since 0.9.0; write actor_rollout_ref.actor.strategy=fsdp"),
    ],
)
def test_a_key_that_verl_has_dropped_is_refused_with_what_to_do(word: str, said: str):
    (problem,) = problems(f"+{word}")
    assert problem.startswith(f"{word.partition('=')[0]} (override) cannot be used: {said}")


def test_taking_away_an_older_name_is_refused_with_the_new_one():
    assert problems("~custom_reward_function.path") == [
        "custom_reward_function.path (override) is the name that an older verl had for it; "
        "write reward.custom_reward_function.path"
    ]


def test_an_unknown_key_in_a_file_is_refused_with_the_files_name(in_folder: Path):
    Path("my.yaml").write_text("data: {trian_batch_size: 8}\nactor_rollout_ref: 3\n")
    assert problems("--config", "my.yaml") == [
        "data.trian_batch_size (my.yaml) is no key of ours and none of verl's; did you mean data.train_batch_size?",
        "actor_rollout_ref (my.yaml) is a group of keys, not a value; for example actor_rollout_ref.model.path=...",
    ]


def test_a_key_that_only_verl_knows_is_kept_for_it_word_for_word(in_folder: Path):
    """S2-09: passed through unchanged."""
    Path("my.yaml").write_text('trainer: {balance_batch: false, wandb_proxy: "it\'s \\\\"}\n')
    words = (
        "actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.1",
        "+data.apply_chat_template_kwargs.enable_thinking=False",
        "++reward.reward_kwargs.shortest=128",
        "~trainer.ray_wait_register_center_timeout",
    )
    made = settings(*words)
    assert made.passthrough == {
        "actor_rollout_ref.actor.policy_loss.clip_cov_ratio": words[0],
        "data.apply_chat_template_kwargs.enable_thinking": words[1],
        "reward.reward_kwargs.shortest": words[2],
        "trainer.ray_wait_register_center_timeout": words[3],
    }
    assert set(made.passthrough).isdisjoint(made.values)
    assert made.origins["data.apply_chat_template_kwargs.enable_thinking"] == "override"


def test_a_verl_key_from_a_file_becomes_an_override(in_folder: Path):
    Path("my.yaml").write_text('trainer: {balance_batch: false, rollout_data_dir: "it\'s"}\n')
    assert settings("--config", "my.yaml").passthrough == {
        "trainer.balance_batch": "++trainer.balance_batch=False",
        "trainer.rollout_data_dir": '++trainer.rollout_data_dir="it\'s"',
    }


def test_an_override_that_we_write_is_read_back_by_hydra_as_the_same_value():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    values = [
        "it's",
        "a\\",
        "\\'",
        "数据 x=1",
        "${a.b}",
        "1e3",
        "null",
        3,
        1e-6,
        True,
        None,
        ["a'", 1],
        {"k": "v v"},
        "",
    ]
    for value in values:
        read = OverridesParser.create().parse_override(f"++a.b={hydra_value(value, references=True)}").value()
        assert read == value
        assert type(read) is type(value)


def test_references_that_lead_nowhere_or_to_the_wrong_kind_are_named():
    assert problems("data.max_response_length=${data.nope}") == [
        "data.max_response_length (override) ${data.nope} leads nowhere: Interpolation key 'data.nope' not found"
    ]
    assert problems("data.max_response_length=${data.truncation}") == [
        "data.max_response_length (override) points at error, which is not a whole number"
    ]


def test_the_tree_is_read_only_and_holds_texts_with_dollars():
    config = settings("--system", "pay ${5} \\${x} now").config()
    assert config.launcher.data.system == "pay ${5} \\${x} now"
    assert OmegaConf.to_container(config, resolve=True)["launcher"]["data"]["system"] == "pay ${5} \\${x} now"
    with pytest.raises(ReadonlyConfigError):
        config.data.train_batch_size = 1
    assert list(settings().values) == list(defaults())


def test_changed_lists_what_differs_from_the_default():
    made = settings("--rollout_n", "5", "--train_batch_size", "64")  # 5 is the default
    assert made.changed() == ["data.train_files", BATCH, "actor_rollout_ref.model.path", MINI]


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="no such recipe; did you mean drgrpo"):
        read_recipe("drgpo")
    with pytest.raises(ConfigError, match=r"a file of your own is given as --config my\.yaml"):
        read_recipe("my.yaml")


@pytest.mark.parametrize("path", recipe_files(), ids=lambda path: path.stem)
def test_every_recipe_is_short_documented_and_fits_the_keys(path: Path):
    draft = Draft()
    draft.tree(read_recipe(path.stem), f"recipe {path.stem}")
    draft.settings()
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30
    assert len(recipe_line(path)) > 20
    for word in ("Command", f"--recipe {path.stem}", "Hardware"):
        assert word in text or (word.startswith("--recipe demo"))


def test_drgrpo_sets_all_that_the_paper_needs():
    """S2-30, S2-36."""
    made = settings("--recipe", "drgrpo", "--max_response_length", "300")
    actor = "actor_rollout_ref.actor"
    assert made[f"{actor}.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert made[f"{actor}.loss_scale_factor"] == 300.0  # constant, and follows the length
    assert made["algorithm.norm_adv_by_std_in_grpo"] is False
    assert made[f"{actor}.use_kl_loss"] is False


def test_the_keys_that_hold_a_path_in_a_recipe_are_found_from_any_folder(in_folder: Path, monkeypatch, tmp_path: Path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "r.yaml").write_text("data: {train_files: 'data_prep/arithmetic_train.json#5'}")
    monkeypatch.setattr("grpo.config.RECIPES", tmp_path / "recipes")
    assert read_recipe("r")["data.train_files"] == str(flags.REPO / "data_prep" / "arithmetic_train.json#5")
