"""--init_from and LoRA's keys: what a folder stands for, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo import flags, rules
from grpo.config import ConfigError, Settings
from grpo.resolve import checked, resolve

MODEL = "actor_rollout_ref.model"


def settings_of(*words: str) -> Settings:
    return resolve(flags.parse(["--data", "prompts.json", *words]), {}).settings()


def problem_of(*words: str) -> str:
    with pytest.raises(ConfigError) as told:
        checked(resolve(flags.parse(["--data", "prompts.json", *words]), {}))
    return str(told.value)


def warnings_of(*words: str) -> list[str]:
    return rules.warnings(settings_of(*words))


@pytest.fixture
def folder(in_folder: Path) -> Path:
    """A base model, an adapter of it, and runs that left a model, an adapter and shards."""
    for name in ("base", "run/checkpoints/final", "half/checkpoints/global_step_9", "half/checkpoints/global_step_10"):
        (in_folder / name).mkdir(parents=True)
        (in_folder / name / "config.json").write_text("{}")
        (in_folder / name / "tokenizer.json").write_text("{}")
    for name in ("adapter", "lora_run/checkpoints/final"):
        (in_folder / name).mkdir(parents=True)
        adapter = {"peft_type": "LORA", "r": 8, "lora_alpha": 32, "base_model_name_or_path": "base"}
        (in_folder / name / "adapter_config.json").write_text(json.dumps(adapter))
    (in_folder / "verl_run/checkpoints/global_step_5/actor").mkdir(parents=True)
    return in_folder


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("base", "base"),
        ("run", "run/checkpoints/final"),
        ("half", "half/checkpoints/global_step_10"),  # the newest by number, not by letter
        ("half/checkpoints/global_step_9", "half/checkpoints/global_step_9"),
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"),
    ],
)
def test_a_run_a_checkpoint_and_a_model_are_models_to_start_from(given: str, found: str, folder: Path):  # S1-23
    resolved = resolve(flags.parse(["--data", "prompts.json", "--init_from", given]), {})
    assert resolved.settings()[f"{MODEL}.path"] == found
    assert resolved.settings().origins[f"{MODEL}.path"] == "flag --init_from"
    assert (f"starting from {found}" in resolved.notes) is (found != given)


@pytest.mark.parametrize("given", ["adapter", "lora_run"])
def test_an_adapter_brings_its_rank_its_alpha_and_its_model(given: str, folder: Path):  # S3-20
    made = settings_of("--init_from", given)
    assert made[f"{MODEL}.path"] == "base"
    assert (made[f"{MODEL}.lora_rank"], made[f"{MODEL}.lora_alpha"]) == (8, 32)
    assert made[f"{MODEL}.lora_adapter_path"] == ("adapter" if given == "adapter" else "lora_run/checkpoints/final")
    assert settings_of("--init_from", given, "--model", "run/checkpoints/final")[f"{MODEL}.path"].startswith("run")
    checked(resolve(flags.parse(["--data", "prompts.json", "--init_from", given]), {}))


def test_what_cannot_be_started_from_is_said_in_one_line(folder: Path):
    assert "holds verl's shards; first ./train.sh export --from " in problem_of("--init_from", "verl_run")
    assert "no such folder" in problem_of("--init_from", "./nowhere")
    (folder / "empty").mkdir()
    assert "no model, no adapter and no checkpoint in it" in problem_of("--init_from", "empty")
    assert "leave one of them out" in problem_of("--init_from", "run", "--model", "base")
    assert "the adapter adapter has 8; leave it out" in problem_of("--init_from", "adapter", "--lora_rank", "16")
    assert "leave lora_rank out" in problem_of("--init_from", "adapter", "--lora_rank", "0")
    assert "no adapter_config.json there" in problem_of("--model", "base", f"{MODEL}.lora_adapter_path=base")
    inside = problem_of("--init_from", "run", "--output_dir", "run")
    assert "lies in the output folder run, where the new run goes; name another one with --output_dir" in inside
    (folder / "adapter" / "adapter_config.json").write_text('{"r": 8}')
    assert "does not name its model: give --model" in problem_of("--init_from", "adapter")
    (folder / "adapter" / "adapter_config.json").write_text("{")
    assert "adapter_config.json is no JSON file" in problem_of("--init_from", "adapter")


def test_lora_at_the_learning_rate_of_full_training_is_said_with_ten_times_that(folder: Path):  # S3-22
    (said,) = warnings_of("--model", "base", "--lora_rank", "8")
    assert said.endswith("1e-6: LoRA usually wants ten times more, --lr 1e-5")
    assert warnings_of("--model", "base", "--lora_rank", "8", "--lr", "1e-6") == []
    assert warnings_of("--model", "base") == []


def test_alpha_without_lora_is_said(folder: Path):
    (said,) = warnings_of("--model", "base", "--lora_alpha", "32")
    assert (
        said
        == f"{MODEL}.lora_alpha=32 (flag --lora_alpha) changes nothing: {MODEL}.lora_rank=0 (default) trains "
        + ("all weights")
    )
    (said,) = warnings_of("--model", "base", "--target_modules", "q_proj,v_proj")
    assert "target_modules=[q_proj,v_proj] (flag --target_modules) changes nothing" in said


def test_layers_are_named_as_a_list_in_every_spelling(folder: Path):  # S3-20
    key, names = f"{MODEL}.target_modules", ["q_proj", "v_proj"]
    assert settings_of("--target_modules", "q_proj,v_proj")[key] == names
    assert settings_of(f"{key}=[q_proj,v_proj]")[key] == names
    assert settings_of("--target_modules", "[q_proj]")[key] == ["q_proj"]
    assert settings_of("--target_modules", "all-linear")[key] == "all-linear"
    pattern = r".*\.layers\.[0-3]\..*(q|v)_proj"  # one text is a regular expression to peft and to verl
    assert settings_of("--target_modules", pattern)[key] == pattern


def test_rounding_without_an_adapter_or_into_a_merged_model_is_refused(folder: Path):
    assert "is none of 4, 8" in problem_of("--model", "base", "--lora_rank", "8", "launcher.qlora=5")
    assert "it needs --lora_rank" in problem_of("--model", "base", "launcher.qlora=4")
    merged = problem_of("--model", "base", "--lora_rank", "8", "launcher.qlora=4")
    assert merged.endswith("set launcher.export.lora=adapter")


def test_an_export_in_no_known_form_is_refused_before_training(folder: Path):
    assert "is none of float32, bfloat16, float16" in problem_of("--model", "base", "launcher.export.dtype=fp8")
    assert "is none of merge, adapter" in problem_of("--model", "base", "launcher.export.lora=both")


@pytest.mark.slow
def test_an_adapter_over_a_new_small_model_is_refused(folder: Path):
    assert "a new small model has nothing that an adapter could start from" in problem_of(
        "--model", "scratch", "--lora_rank", "8"
    )
