"""Our settings as verl's Hydra overrides: read back by Hydra's own parser, and composed with verl's own YAML."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from grpo import overrides as command_line
from grpo.config import Draft
from grpo.engine import Run
from grpo.hydra_text import hydra_value
from grpo.verl_backend.settings import keys
from grpo.verl_backend.settings.guard import guarded
from grpo.verl_backend.settings.overrides import ONLY_AT_THE_END, PLAIN_TEMPLATE, decided, overrides

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ODD = [
    *("/数据/a=b,c.parquet", "a b", "it's", 'say "so"', "x:y", "f(x)", "[1,2]", "{a: 1}", "1e3", "007", "null", "True"),
    *(
        "",
        " ",
        "a\\",
        "a\\b",
        "\\'",
        '\\"',
        '"',
        "'",
        "${x}",
        "a\\${x}",
        "$5",
        "~/x",
        "two\nlines",
        "nan",
        "#",
        "a@b",
        "%",
    ),
    *("{% for m in messages %}{{ m['content'] }}{% endfor %}", "系统：你好", "?", "*", "+a", "-1", "a\\\\", "ends\n"),
]


def run_of(*words: str, out: Path = Path("/out"), **changes: Any) -> Run:
    """A run with the given key=value words over the defaults."""
    draft = Draft()
    draft.put("actor_rollout_ref.model.path", "Qwen/Qwen2.5-7B", "flag --model")
    command_line.apply(draft, list(words))
    settings = draft.settings()
    given = {"train": out / "data" / "train.parquet", "val": out / "data" / "val.parquet"} | changes
    return Run(settings.config(), settings.origins, out, passthrough=settings.passthrough, **given)


def read_back(words: list[str]) -> dict[str, Any]:
    """Key -> value as Hydra reads the overrides."""
    return {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(words)}


def resolved(value: Any) -> Any:
    """A value as verl sees it, OmegaConf's references followed."""
    return OmegaConf.to_container(OmegaConf.create({"a": value}), resolve=True)["a"]  # type: ignore[call-overload,index]


@pytest.mark.parametrize("text", ODD)
def test_every_text_arrives_at_verl_as_it_was(text: str):  # VERL.md 3.4, quoting
    (got,) = read_back([f"a.b={hydra_value(text)}"]).values()
    assert resolved(got) == text


@pytest.mark.slow
@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00")).filter(lambda text: text != "???"))
def test_any_text_at_all_arrives_at_verl_as_it_was(text: str):
    (got,) = read_back([f"a.b={hydra_value(text)}"]).values()
    assert resolved(got) == text


@pytest.mark.parametrize(
    "value", [1e-6, 1e30, 0.2, -1, 0, True, False, None, [], {}, ["a", "b c", 1, None], {"a": [1]}]
)
def test_every_value_arrives_at_verl_with_its_type(value: object):
    (got,) = read_back([f"a.b={hydra_value(value)}"]).values()
    assert got == value
    assert type(got) is type(value)


def test_the_seed_table_reaches_verl():
    # S2-12..S2-20: the defaults, and verl's own defaults where they agree (kl_loss_coef, kl_loss_type, norm_adv, lr)
    said = read_back(overrides(run_of()))
    defaults = keys.verl_keys()
    wanted = {
        f"{ROLLOUT}.n": 5,
        "algorithm.norm_adv_by_std_in_grpo": True,
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_coef": 0.001,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        "data.train_batch_size": 256,
        f"{ACTOR}.optim.lr": 1e-6,
        "trainer.total_epochs": 15,
        "data.max_response_length": 1024,
    }
    assert {key: said.get(key, defaults[key]) for key in wanted} == wanted


def test_what_verl_leaves_at_harmful_defaults_is_said():  # S2-11
    said = read_back(overrides(run_of(out=Path("/输出"))))
    assert said["algorithm.adv_estimator"] == "grpo"  # verl: gae
    assert said[f"{ROLLOUT}.name"] == "vllm"  # verl: must be given
    assert said[f"{ROLLOUT}.tensor_model_parallel_size"] == 1  # verl: 2, which breaks one GPU
    assert said[f"{ACTOR}.use_dynamic_bsz"] is True
    assert said["trainer.save_freq"] == 20  # verl: -1 saves nothing
    assert said["trainer.default_local_dir"] == "/输出/checkpoints"
    assert said["trainer.max_actor_ckpt_to_keep"] == 2
    assert said[f"{ACTOR}.checkpoint.save_contents"] == ["model", "optimizer", "extra", "hf_model"]
    assert said["trainer.logger"] == ["console", "file"]
    assert said["trainer.rollout_data_dir"] == "/输出/rollouts"
    assert said["trainer.validation_data_dir"] == "/输出/validation"
    assert said["trainer.n_gpus_per_node"] == 1  # verl: 8


def test_what_equals_verls_default_is_not_said():
    said = read_back(overrides(run_of()))
    assert not {"trainer.nnodes", "data.shuffle", f"{ACTOR}.clip_ratio", f"{ACTOR}.ppo_mini_batch_size"} & said.keys()
    assert "data.val_max_samples" not in said  # done when the files were written
    assert not [key for key in said if key.startswith("launcher")]
    assert [key for key, value in said.items() if value is None] == ["hydra.output_subdir"]


def test_clip_ratio_alone_moves_both_ends():  # verl reads only clip_ratio_low and clip_ratio_high
    said = read_back(overrides(run_of(f"{ACTOR}.clip_ratio=0.3")))
    assert (said[f"{ACTOR}.clip_ratio_low"], said[f"{ACTOR}.clip_ratio_high"]) == (0.3, 0.3)


def test_only_at_the_end_is_said_in_a_way_that_verl_understands():
    # verl saves and evaluates at the end only where the frequency is above 0
    said = read_back(overrides(run_of("trainer.save_freq=-1", "trainer.test_freq=-1")))
    assert said["trainer.save_freq"] == said["trainer.test_freq"] == ONLY_AT_THE_END


def test_lora_checkpoints_hold_no_model_under_names_that_nothing_opens():
    said = read_back(overrides(run_of("actor_rollout_ref.model.lora_rank=8")))
    assert f"{ACTOR}.checkpoint.save_contents" not in said  # verl's own: model, optimizer, extra
    assert said[f"{ROLLOUT}.load_format"] == "safetensors"


@pytest.mark.slow
def test_a_ray_that_runs_here_is_joined_only_when_it_is_named():
    address = "ray_kwargs.ray_init.address"
    assert read_back(overrides(run_of()))[address] == "local"
    assert read_back(overrides(run_of("launcher.ray_address=10.0.0.1:6379")))[address] == "10.0.0.1:6379"


@pytest.mark.slow
def test_without_a_gpu_the_same_settings_go_to_verls_cpu_platform():
    said = read_back(overrides(run_of("trainer.device=cpu", "trainer.n_gpus_per_node=2")))
    assert said["trainer.device"] == "cpu"
    assert said["ray_kwargs.ray_init.num_gpus"] == 2  # processes
    assert said[f"{ACTOR}.strategy"] == said["actor_rollout_ref.ref.strategy"] == "fsdp2"
    assert said["actor_rollout_ref.model.use_remove_padding"] is False
    assert said[f"{ACTOR}.fsdp_config.mixed_precision"]["param_dtype"] == "fp32"
    assert said["ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"] == "cpu"  # S0-39
    own = read_back(overrides(run_of("trainer.device=cpu", f"{ACTOR}.strategy=fsdp", "reward.num_workers=3")))
    assert (own[f"{ACTOR}.strategy"], own["reward.num_workers"]) == ("fsdp", 3)


def test_what_nobody_asked_for_is_listed_with_verls_own_default():
    rows = {key: (value, origin) for key, value, origin in decided(run_of(f"{ROLLOUT}.name=sglang"))}
    assert rows["algorithm.adv_estimator"] == ("grpo", "launcher (verl: gae)")
    assert rows["trainer.rollout_data_dir"] == ("/out/rollouts", "launcher (verl: null)")
    assert f"{ROLLOUT}.name" not in rows  # asked for


@pytest.mark.slow
def test_a_model_folder_is_named_from_the_root_and_a_hub_id_as_it_is(in_folder: Path):
    assert read_back(overrides(run_of()))["actor_rollout_ref.model.path"] == "Qwen/Qwen2.5-7B"
    (in_folder / "Qwen" / "Qwen2.5-7B").mkdir(parents=True)
    assert read_back(overrides(run_of()))["actor_rollout_ref.model.path"] == str(in_folder / "Qwen" / "Qwen2.5-7B")


@pytest.mark.parametrize(("template", "means"), [("none", PLAIN_TEMPLATE), ("chat", None), ("{{ x }}", "{{ x }}")])
def test_verl_is_told_what_a_word_for_a_template_means(template: str, means: str | None):  # S0-03, S0-04
    said = read_back(overrides(run_of(f"actor_rollout_ref.model.custom_chat_template='{template}'")))
    assert said["actor_rollout_ref.model.custom_chat_template"] == means


@pytest.mark.slow
def test_an_adapter_to_go_on_with_is_named_from_the_root(in_folder: Path):
    key = "actor_rollout_ref.model.lora_adapter_path"
    (in_folder / "adapter").mkdir()
    assert read_back(overrides(run_of(f"{key}=adapter")))[key] == str(in_folder / "adapter")
    assert key not in read_back(overrides(run_of()))


def test_launcher_keys_are_translated():
    said = read_back(
        overrides(
            run_of("launcher.seed=7", "launcher.dtype=float32", "actor_rollout_ref.model.custom_chat_template=plain")
        )
    )
    assert {key for key, value in said.items() if value == 7} == {
        *("data.seed", f"{ACTOR}.data_loader_seed", f"{ROLLOUT}.seed"),
        *(f"{ACTOR}.fsdp_config.seed", "actor_rollout_ref.ref.fsdp_config.seed"),
    }
    assert said[f"{ROLLOUT}.dtype"] == "float32"
    # fsdp_config.dtype is not read by verl 0.9.1's FSDP engine
    assert said[f"{ACTOR}.fsdp_config.mixed_precision"] == {
        "param_dtype": "fp32",
        "reduce_dtype": "fp32",
        "buffer_dtype": "fp32",
    }
    assert said["actor_rollout_ref.model.custom_chat_template"] == PLAIN_TEMPLATE


def test_counted_micro_batches_are_said_for_all_three_passes():
    said = read_back(overrides(run_of(f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4")))
    assert said[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 4
    assert said[f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"] == 4
    assert said["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] == 4


def test_the_users_overrides_pass_unchanged_and_win():  # S2-09
    words = [
        "actor_rollout_ref.model.lora_rank=8",
        f"{ROLLOUT}.tensor_model_parallel_size=4",
        f"{ROLLOUT}.load_format=auto",
        "++trainer.log_val_generations=3",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "~data.tool_config_path",
    ]
    said = overrides(run_of(*words))
    assert [word for word in words if word not in said] == []
    assert [word for word in said if "load_format" in word] == [f"{ROLLOUT}.load_format=auto"]


def test_a_plus_stands_exactly_where_hydra_asks_for_it():
    run = run_of("data.apply_chat_template_kwargs.enable_thinking=False", "+trainer.val_only=True")
    said, notes = guarded(overrides(run))
    assert notes == [
        "+ before data.apply_chat_template_kwargs.enable_thinking: new to verl, which takes it there",
        "trainer.val_only: without +, since verl has the key",
    ]
    assert "+data.apply_chat_template_kwargs.enable_thinking=False" in said
    assert "trainer.val_only=True" in said


@pytest.fixture(scope="session")
def verl_yaml(missing: Callable[[str], NoReturn]) -> Path:
    """verl's own YAML; never imports verl."""
    folder = keys.config_folder()
    if folder is None or importlib.util.find_spec("hydra") is None:
        missing("verl's configuration files; pip install --no-deps -r requirements/verl-maths.txt")
    return folder


def composed(folder: Path, words: list[str]) -> DictConfig:
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", words)


@pytest.mark.slow
def test_the_shipped_list_of_keys_is_the_packages(verl_yaml: Path):
    assert dict(keys.verl_keys()) == keys.compose(verl_yaml, [])
    assert len(keys.verl_keys()) > 800


@pytest.mark.slow
def test_verl_composes_our_overrides_and_finds_every_value(verl_yaml: Path, in_folder: Path):
    out = in_folder / "a=b,c: (输出)"
    words = [
        "reward.custom_reward_function.path=数据/it's \\${HOME}.py",
        "actor_rollout_ref.model.lora_rank=8",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
        "actor_rollout_ref.ref.fsdp_config.param_offload=false",
        "data.apply_chat_template_kwargs.enable_thinking=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "trainer.logger=[console,tensorboard]",
        "actor_rollout_ref.model.custom_chat_template=plain",
        "launcher.dtype=float32",
    ]
    config = composed(verl_yaml, guarded(overrides(run_of(*words, out=out)))[0])
    assert config.data.train_files == str(out / "data" / "train.parquet")
    custom = config.reward.custom_reward_function
    assert Path(custom.path).is_file()
    assert json.loads(custom.reward_kwargs.reward)["file"].endswith("数据/it's ${HOME}.py")
    assert config.actor_rollout_ref.model.lora_rank == 8
    assert config.actor_rollout_ref.rollout.load_format == "safetensors"
    assert config.actor_rollout_ref.model.custom_chat_template == PLAIN_TEMPLATE
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"
    assert config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz is True  # follows the actor's
    assert config.actor_rollout_ref.rollout.response_length == 1024
    assert config.actor_rollout_ref.ref.fsdp_config.param_offload is False
    assert config.data.apply_chat_template_kwargs.enable_thinking is False
    variables = dict(config.ray_kwargs.ray_init.runtime_env.env_vars)  # S0-39
    assert variables.pop("VERL_FILE_LOGGER_PATH") == str(out / "verl_metrics.jsonl")
    assert Path(variables.pop("PYTHONPATH").split(":")[0], "reward_funcs", "reward_func.py").is_file()
    assert variables == {"PYTHONUTF8": "1", "TOKENIZERS_PARALLELISM": "true", "HYDRA_FULL_ERROR": "1"}
