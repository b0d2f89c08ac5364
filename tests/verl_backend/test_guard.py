"""Overrides made to fit a version of verl: by the shipped keys, by small YAML folders, and by verl's own YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from grpo.engine import EngineError
from grpo.verl_backend.settings import keys, renamed
from grpo.verl_backend.settings.guard import FRACTIONS, HARMLESS, guarded, misfits

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def problem(word: str, folder: Path | None = None) -> str:
    """What is said about one override, less the override itself."""
    with pytest.raises(EngineError) as caught:
        guarded([word], folder)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{word}: ")
    return line.removeprefix(f"{word}: ")


def verl_of(folder: Path, version: str, yaml: str) -> Path:
    """A verl's YAML folder, as small as can be."""
    config = folder / version / "verl" / "trainer" / "config"
    config.mkdir(parents=True)
    (config / "ppo_trainer.yaml").write_text(yaml, encoding="utf-8")
    (config.parents[1] / "version").mkdir()
    (config.parents[1] / "version" / "version").write_text(f"{version}\n")
    return config


@pytest.fixture
def verl_0_6(tmp_path: Path) -> Path:
    """Keys as verl 0.6.1 has them."""
    return verl_of(
        tmp_path,
        "0.6.1",
        """
data: {train_batch_size: 1024, train_files: a.parquet, seed: null}
custom_reward_function: {path: null, name: compute_score}
reward_model: {reward_manager: naive, launch_reward_fn_async: false, sandbox_fusion: {url: null}}
ray_kwargs: {ray_init: {num_cpus: null}}
actor_rollout_ref:
  actor: {grad_clip: 1.0, loss_agg_mode: token-mean, optim: {clip_grad: 1.0, warmup_style: null}}
  rollout: {update_weights_bucket_megabytes: 512, load_format: dummy}
trainer: {use_legacy_worker_impl: auto, total_epochs: 30}
""",
    )


@pytest.fixture
def verl_0_8(tmp_path: Path) -> Path:
    """Two keys of verl 0.8.0, one with another default than today's."""
    return verl_of(tmp_path, "0.8.0", "actor_rollout_ref: {rollout: {max_num_seqs: 1024, enforce_eager: false}}\n")


@pytest.fixture
def verl_0_4(tmp_path: Path) -> Path:
    """Keys as verl 0.4.0 has them."""
    return verl_of(
        tmp_path,
        "0.4.0",
        """
ray_init: {num_cpus: null}
actor_rollout_ref:
  actor: {grad_clip: 1.0, checkpoint: {contents: [model]}, optim: {lr: 1.0e-6, warmup_style: constant}}
  rollout: {load_format: dummy_dtensor}
trainer: {log_val_generations: 0}
""",
    )


def test_what_fits_stays_as_it_is():
    words = [
        "data.train_batch_size=64",
        f"{ROLLOUT}.engine_kwargs.vllm={{a: 1}}",
        "hydra.run.dir=.",
    ]
    assert guarded(words) == (words, [])
    assert misfits(words) == []


def test_a_new_key_on_purpose_goes_through_and_is_said_to_be_new():
    """Whether verl's code asks for it only verl knows: a YAML of its own does not list it."""
    assert guarded(["+trainer.note='a b'"]) == (
        ["+trainer.note='a b'"],
        ["trainer.note is in no YAML of verl 0.9.1: it counts only where verl's code asks for it"],
    )


def test_an_unknown_key_is_answered_with_the_nearest():
    assert problem("data.trian_batch_size=8") == "verl 0.9.1 has no such key; did you mean data.train_batch_size?"
    assert problem("+data.trian_batch_size=8").endswith("did you mean data.train_batch_size?")
    assert problem("trainer.resume_form_path=/a").endswith("did you mean trainer.resume_from_path?")
    assert problem("~trainer.totl_epochs").endswith("did you mean trainer.total_epochs?")


def test_every_misfit_is_told_at_once():
    with pytest.raises(EngineError) as caught:
        guarded(["data.trian_batch_size=8", "data.train_batch_size=abc"])
    assert len(str(caught.value).splitlines()) == 2


def test_a_plus_is_added_and_taken_away_where_hydra_asks_for_that():
    word = "data.apply_chat_template_kwargs.enable_thinking=False"
    assert guarded([word]) == (
        [f"+{word}"],
        ["+ before data.apply_chat_template_kwargs.enable_thinking: new to verl, which takes it there"],
    )
    assert guarded(["+trainer.val_only=True"]) == (
        ["trainer.val_only=True"],
        ["trainer.val_only: without +, since verl has the key"],
    )
    # S2-09: on purpose
    assert guarded(["++trainer.val_only=True", "+reward.reward_kwargs.max_resp_len=9"])[1] == []


@pytest.mark.parametrize(
    ("word", "said"),
    [  # VERL.md 3.3: verl has no type check, these compose
        ("data.train_batch_size=abc", "verl wants a whole number here; verl's default is 1024"),
        ("data.max_prompt_length=512.0", "verl wants a whole number here; write 512"),
        ("data.max_prompt_length=512.5", "verl wants a whole number here; verl's default is 512"),
        ("data.train_batch_size=True", "verl wants a whole number here; verl's default is 1024"),
        ("trainer.balance_batch=1", "verl wants True or False here; verl's default is True"),
        (f"{ACTOR}.tau_pos=high", "verl wants a number here; verl's default is 1.0"),
        ("trainer.logger=console", "verl wants a list [a,b] here; write trainer.logger=[console]"),
        ("data.prompt_key={a: 1}", "verl wants text here; verl's default is prompt"),
        (
            f"{ROLLOUT}.max_num_batched_tokens=1,2",
            f"one value only; a list is written {ROLLOUT}.max_num_batched_tokens=[a,b]",
        ),
    ],
)
def test_a_value_of_another_kind_than_the_default_is_refused(word: str, said: str):
    assert problem(word) == said


@pytest.mark.parametrize(
    "word",
    [
        *(f"{key}=0.5" for key in FRACTIONS),
        f"{ACTOR}.tau_pos=2",  # a whole number is a number
        f"{ROLLOUT}.max_model_len=512",  # verl's default, null, says nothing
        f"{ROLLOUT}.max_num_batched_tokens=null",
        f"{ROLLOUT}.max_num_batched_tokens=${{data.max_prompt_length}}",
        "data.train_files=[a,b]",
        f"{ROLLOUT}.n_gpus_per_node=4",  # a reference is followed: trainer.n_gpus_per_node
        "trainer.default_local_dir=/out",
    ],
)
def test_a_value_of_the_defaults_kind_passes(word: str):
    assert guarded([word]) == ([word], [])


def test_a_reference_in_verls_default_is_followed_to_its_kind():
    assert problem(f"{ROLLOUT}.n_gpus_per_node=four") == "verl wants a whole number here; verl's default is 8"


@pytest.mark.parametrize("text", ["/数据/a=b,c.parquet", "a:b@c%", "f(x)", "/x y/é.parquet", "007", "1e3", "it's"])
def test_text_arrives_intact_where_verl_wants_text(text: str):  # VERL.md 3.4, quoting
    for key in ("data.train_files", "data.prompt_key", "actor_rollout_ref.model.lora_adapter_path"):
        if key.endswith("adapter_path") and text in ("007", "1e3"):
            continue  # the default, null, does not say that it is text
        (word,), notes = guarded([f"{key}={text}"])
        assert OverridesParser.create().parse_override(word).value() == text
        assert notes == []


@pytest.mark.parametrize(
    ("word", "fitted"),
    [  # VERL.md 3.4: what verl 0.9.1 ignores without a word, or has no more
        ("custom_reward_function.path=/a.py", "reward.custom_reward_function.path=/a.py"),
        ("custom_reward_function.name=f", "reward.custom_reward_function.name=f"),
        ("reward_model.reward_manager=dapo", "reward.reward_manager.name=dapo"),
        ("+reward_manager.name=dapo", "reward.reward_manager.name=dapo"),
        ("reward_model.enable=True", "reward.reward_model.enable=True"),
        ("reward_model.model.path=/m", "reward.reward_model.model_path=/m"),
        ("reward_model.rollout.name=vllm", "reward.reward_model.rollout.name=vllm"),
        ("sandbox_fusion.url=x", "reward.sandbox_fusion.url=x"),
        ("reward_model.sandbox_fusion.url=x", "reward.sandbox_fusion.url=x"),
        ("reward_model.reward_kwargs.max_resp_len=9", "+reward.reward_kwargs.max_resp_len=9"),
        (f"{ACTOR}.checkpoint.contents=[model]", f"{ACTOR}.checkpoint.save_contents=[model]"),
        ("ray_init.num_cpus=8", "ray_kwargs.ray_init.num_cpus=8"),
        (f"{ACTOR}.optim.warmup_style=cosine", f"{ACTOR}.optim.lr_scheduler_type=cosine"),
        (
            f"{ROLLOUT}.update_weights_bucket_megabytes=9",
            f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=9",
        ),
        ("trainer.val_generations_to_log_to_wandb=3", "trainer.log_val_generations=3"),
        (f"{ROLLOUT}.load_format=dummy_dtensor", f"{ROLLOUT}.load_format=dummy"),
    ],
)
def test_an_old_name_or_value_is_translated_and_said(word: str, fitted: str):
    words, notes = guarded([word])
    assert words == [fitted]
    assert len(notes) >= 1
    assert all("since verl" in note or "in verl 0.9.1" in note or "without +" in note for note in notes)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("reward_model.launch_reward_fn_async=True", "since 0.7.1; rewards are always computed beside"),
        ("reward_model.micro_batch_size_per_gpu=1", "since 0.7.1; a reward model runs in its own vLLM"),
        ("reward_model.strategy=fsdp", "since 0.7.1; a reward model runs in its own vLLM"),
        ("algorithm.rollout_is=True", "since 0.6.1; write algorithm.rollout_correction.rollout_is=token"),
        ("trainer.use_legacy_worker_impl=auto", "since 0.8.0; there is one kind of workers now"),
        ("algorithm.filter_groups.max_num_gen_batches=3", "since 0.9.0; verl reads it only to warn; write"),
        (f"{ACTOR}.ppo_micro_batch_size=8", f"write {ACTOR}.ppo_micro_batch_size_per_gpu, this divided by the number"),
        (f"{ROLLOUT}.log_prob_micro_batch_size=8", f"write {ROLLOUT}.log_prob_micro_batch_size_per_gpu, this divided"),
        ("actor_rollout_ref.ref.log_prob_micro_batch_size=8", "_per_gpu, this divided by the number of GPUs"),
    ],
)
def test_a_key_that_does_nothing_any_more_is_refused_with_what_to_do(word: str, said: str):
    assert said in problem(word)


def test_no_key_of_the_dead_groups_goes_through():
    """Every key that verl 0.9.1 keeps in its YAML for its older versions and does not read."""
    dead = [
        key
        for key in keys.verl_keys()
        if key.startswith(("custom_reward_function.", "reward_model.", "sandbox_fusion."))
    ]
    assert len(dead) > 30
    for key in dead:
        fitted = [] if misfits([f"{key}=1"]) else guarded([f"{key}=1"])[0]
        assert not fitted or fitted[0].startswith("reward.")


@pytest.mark.slow
def test_an_older_verl_gets_the_names_that_it_reads(verl_0_6: Path):
    words = [
        "reward.custom_reward_function.path=/a.py",
        "reward.reward_manager.name=dapo",
        "reward.sandbox_fusion.url=x",
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=9",
        "+reward.reward_kwargs.max_resp_len=9",
        f"{ACTOR}.optim.lr_scheduler_type=cosine",
        "reward_model.launch_reward_fn_async=True",  # that version still reads it
        f"{ROLLOUT}.load_format=dummy_megatron",
    ]
    fitted, notes = guarded(words, verl_0_6)
    assert fitted == [
        "custom_reward_function.path=/a.py",
        "reward_model.reward_manager=dapo",
        "reward_model.sandbox_fusion.url=x",
        f"{ROLLOUT}.update_weights_bucket_megabytes=9",
        "+reward_model.reward_kwargs.max_resp_len=9",
        f"{ACTOR}.optim.warmup_style=cosine",
        "reward_model.launch_reward_fn_async=True",
        f"{ROLLOUT}.load_format=dummy",
    ]
    assert "reward.custom_reward_function.path is custom_reward_function.path in verl 0.6.1" in notes


@pytest.mark.slow
def test_before_0_6_and_0_4_1_the_names_were_others_again(verl_0_4: Path):
    words = [
        "ray_kwargs.ray_init.num_cpus=8",
        f"{ACTOR}.checkpoint.save_contents=[model]",
        f"{ACTOR}.optim.lr_scheduler_type=cosine",
        f"{ACTOR}.optim.clip_grad=0.5",
        f"{ROLLOUT}.load_format=dummy_dtensor",
    ]
    assert guarded(words, verl_0_4)[0] == [
        "ray_init.num_cpus=8",
        f"{ACTOR}.checkpoint.contents=[model]",
        f"{ACTOR}.optim.warmup_style=cosine",
        f"{ACTOR}.grad_clip=0.5",
        f"{ROLLOUT}.load_format=dummy_dtensor",
    ]


@pytest.mark.slow
def test_where_two_names_are_read_both_are_written(verl_0_6: Path):
    assert guarded([f"{ACTOR}.optim.clip_grad=0.5"], verl_0_6)[0] == [
        f"{ACTOR}.optim.clip_grad=0.5",
        f"{ACTOR}.grad_clip=0.5",
    ]


@pytest.mark.slow
def test_a_default_that_has_moved_is_said_to_an_older_verl(verl_0_8: Path):
    """VERL.md 3.4: max_num_seqs 1024 -> 256 (0.9.0), use_remove_padding False -> True (0.7.0), and others."""
    assert guarded([], verl_0_8) == (
        [f"{ROLLOUT}.max_num_seqs=256"],
        [f"{ROLLOUT}.max_num_seqs=256 is said, since 1024 is the default of verl 0.8.0"],
    )
    assert guarded([f"{ROLLOUT}.max_num_seqs=64"], verl_0_8) == ([f"{ROLLOUT}.max_num_seqs=64"], [])
    assert guarded([]) == ([], [])


@pytest.mark.slow
def test_a_newer_key_is_left_out_where_nothing_is_lost_and_refused_where_training_would_differ(verl_0_6: Path):
    words = ["trainer.use_v1=True", f"{ROLLOUT}.seed=3", "data.seed=3", f"{ACTOR}.optim.betas=[0.9,0.999]"]
    fitted, notes = guarded(words, verl_0_6)
    assert fitted == ["data.seed=3"]  # this one is there
    assert notes == [
        "trainer.use_v1 is left out: verl 0.6.1 does not have it; it came with 0.9.0",
        f"{ROLLOUT}.seed is left out: verl 0.6.1 does not have it; it came with 0.9.0",
        f"{ACTOR}.optim.betas is left out: verl 0.6.1 does not have it",
    ]
    assert problem(f"{ACTOR}.loss_scale_factor=1024.0", verl_0_6) == (
        "verl 0.6.1 does not have this; it came with 0.7.0; leave it out, or install verl 0.9.1"
    )
    assert problem("trainer.use_v1=False", verl_0_6).startswith("verl 0.6.1 does not have this; it came with 0.9.0")


@pytest.mark.slow
def test_what_hydra_itself_refuses_is_told_in_one_line(verl_0_6: Path):
    with pytest.raises(EngineError, match="verl's configuration does not take these overrides: ") as caught:
        guarded(["~trainer.total_epochs=29"], verl_0_6)
    assert "\n" not in str(caught.value)


def test_every_name_in_the_tables_is_a_key_of_the_supported_verl_today():
    known = keys.verl_keys()
    for _, names in renamed.NAMES:
        here = any(key.startswith(names[0]) if names[0].endswith(".") else key == names[0] for key in known)
        assert here or names[0] == "reward.reward_kwargs.", names[0]
    tables = (*FRACTIONS, *HARMLESS, *renamed.PER_GPU, *renamed.PER_GPU.values(), *renamed.MOVED)
    assert [key for key in tables if key not in known and not key.startswith("ray_kwargs.ray_init.")] == []
    assert [key for key in FRACTIONS if type(known[key]) is not int] == []


def test_versions_are_compared_as_numbers():
    assert keys.older("0.9.1", "0.10.0")
    assert not keys.older("0.9.1", "0.9.1")
    assert not keys.older("0.9.1.post1", "0.9.1")
    assert keys.older("0.9.0rc1", "0.9.1")


def test_references_are_followed_as_far_as_they_go():
    values = {
        "a.b": 1,
        "a.c": "${.b}",
        "d": "${oc.select:a.c,7}",
        "e": "${oc.select:x.y,7}",
        "f": "${oc.select:x,null}",
        "g": "${..b}",
        "h": "${oc.select:x, null}-1",
    }
    assert [keys.follow(values, key) for key in "defh"] == [1, 7, None, "${oc.select:x, null}-1"]


@pytest.mark.slow
def test_every_default_of_verl_fits_verl_itself(missing: Callable[[str], NoReturn]):
    """The guard refuses nothing that verl's own YAML holds, and composing agrees."""
    folder = keys.config_folder()
    if folder is None:
        missing("verl's configuration files; pip install --no-deps -r requirements/verl-maths.txt")
    words = [
        "data.train_files='/数据/a=b,c.parquet'",
        "custom_reward_function.path=/奖励/a=b.py",
        "data.apply_chat_template_kwargs.enable_thinking=False",
        f"{ACTOR}.entropy_coeff=0.01",
    ]
    fitted, _ = guarded(words, folder)
    composed = keys.compose(folder, fitted)
    assert composed["data.train_files"] == "/数据/a=b,c.parquet"
    assert composed["reward.custom_reward_function.path"] == "/奖励/a=b.py"
    assert composed["data.apply_chat_template_kwargs.enable_thinking"] is False
