"""The run files that the requirements name, converted and taken through --dry_run=json: nothing of them is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from grpo.convert.conversion import Conversion, convert_file
from grpo.convert.reading import read
from grpo.convert.tables import Text, tool
from tests.grpo.convert_examples import (
    PADDLE,
    SEQ2SEQ,
    SWIFT_8_GPUS,
    SWIFT_LORA,
    planned,
    script_of,
    words_of,
)

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the run files name: knights and knaves, templated prompts, and a reward."""
    monkeypatch.chdir(tmp_path)
    row = {"src": "<|im_start|>user\nWho is a knight?<|im_end|>\n<think>", "tgt": "(1) Zoey is a knight"}
    for name in ("34567ppl/train.jsonl", "5ppl/test.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("\n".join(json.dumps({**row, "n": n}) for n in range(8)))
    (tmp_path / "my_reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    )
    (tmp_path / "prompt.txt").write_text("Think first.")
    return tmp_path


def conversion(file: Path, text: str) -> Conversion:
    file.write_text(text, encoding="utf-8")
    return convert_file(read(file))


PADDLE_SETTINGS = [
    ("algorithm.adv_estimator", "grpo"),  # S0-01
    (f"{MODEL}.path", "Qwen/Qwen2.5-7B-Instruct-1M"),  # S0-06
    ("launcher.output_dir", "kk-grpo"),  # S0-09
    ("trainer.experiment_name", "kk-grpo-run"),
    ("trainer.logger", ["console", "file", "tensorboard"]),  # S0-10
    ("data.train_files", "34567ppl/train.jsonl"),  # S0-05, S0-11
    ("data.val_files", "5ppl/test.jsonl"),
    ("launcher.data.prompt_key", "src"),  # S0-03
    ("launcher.data.answer_key", "tgt"),
    (f"{MODEL}.custom_chat_template", "none"),
    ("launcher.drop_last", True),  # S0-12
    (f"{MODEL}.use_remove_padding", True),  # S0-14
    (f"{ROLLOUT}.tensor_model_parallel_size", 2),  # S0-15
    ("data.max_prompt_length", 512),  # S0-16
    ("data.truncation", "left"),
    ("data.max_response_length", 4096),
    ("launcher.min_response_length", 32),
    ("launcher.reward.names", ["server:http://127.0.0.1:8731"]),
    (f"{ROLLOUT}.top_p", 1.0),  # S0-18
    (f"{ROLLOUT}.temperature", 0.7),
    (f"{ROLLOUT}.max_num_seqs", 24),  # S0-19
    ("launcher.seed", 42),  # S0-20
    ("data.train_batch_size", 2),  # S0-21
    (f"{ACTOR}.ppo_mini_batch_size", 2),
    (f"{ROLLOUT}.n", 8),  # S0-22
    (f"{ACTOR}.ppo_epochs", 1),
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu", 8),  # S0-23
    ("trainer.total_training_steps", 3600),  # S0-24
    (f"{ACTOR}.optim.lr", 5e-7),
    (f"{ACTOR}.optim.lr_scheduler_type", "constant"),
    (f"{ACTOR}.optim.weight_decay", 0.01),  # S0-25
    (f"{ACTOR}.optim.betas", [0.9, 0.999]),
    (f"{ACTOR}.optim.clip_grad", 1.0),
    ("trainer.save_freq", 300),  # S0-26
    ("algorithm.use_kl_in_reward", False),  # S0-27
    (f"{ACTOR}.use_kl_loss", False),
    ("launcher.pg_loss_coef", 1.0),
    (f"{ACTOR}.entropy_coeff", 0.0),
    (f"{ACTOR}.clip_ratio", 0.2),  # S0-28
    (f"{ACTOR}.clip_ratio_low", 0.2),
    (f"{ACTOR}.clip_ratio_high", 0.2),
    ("launcher.clip_range_score", 10.0),
    ("launcher.normalize_reward", True),  # S0-31
    ("launcher.normalize_advantage", True),
    ("trainer.test_freq", 20),  # S0-33
    (f"{MODEL}.enable_gradient_checkpointing", True),  # S0-35
    ("launcher.dtype", "bfloat16"),  # S0-36
    ("algorithm.filter_groups.enable", False),  # S0-41
    ("algorithm.filter_groups.max_num_gen_batches", 2),
    (f"{OVERLONG}.enable", False),
    (f"{OVERLONG}.len", 256),
    (f"{OVERLONG}.penalty_factor", 1.0),
    ("actor_rollout_ref.ref.fsdp_config.param_offload", True),
    (f"{ACTOR}.fsdp_config.optimizer_offload", False),
]


@pytest.mark.slow
def test_the_yaml_of_paddlenlp_keeps_its_values(folder: Path, capsys: pytest.CaptureFixture[str]):
    words = words_of(script_of(folder / "grpo_argument.yaml", PADDLE, capsys))
    plan = planned([*words, "--engine", "embedded", "--reward_func", "my_reward.py"], capsys)
    assert {key: plan[key] for key, _ in PADDLE_SETTINGS} == dict(PADDLE_SETTINGS)


def test_on_four_gpus_the_yaml_of_paddlenlp_is_for_verl(tmp_path: Path):
    """S0-13, and what verl's sampling cannot do is left out by name."""
    (tmp_path / "p.yaml").write_text(PADDLE)
    done = convert_file(read(tmp_path / "p.yaml"), gpus=4)
    assert (done.settings["launcher.engine"], done.settings["trainer.n_gpus_per_node"]) == ("verl", 4)
    assert done.settings["trainer.balance_batch"] is True
    left_out = {
        option for each in done.outcomes if each.why and each.why.name == "only_embedded" for option in each.options
    }
    assert left_out == {"min_dec_len", "clip_range_score", "normalize_reward", "normalize_advantage", "max_gen_batches"}


def test_its_options_without_a_setting_are_named_with_the_reason(folder: Path):
    done = conversion(folder / "grpo_argument.yaml", PADDLE)
    how = {option: outcome.how for outcome in done.outcomes for option in outcome.options}
    assert {option for option in how if how[option] == "none"} == {
        "wandb_http_proxy",  # an environment variable
        "rollout_quant_type",
        "sequence_parallel",
        "clip_range_value",  # S0-30: there is no critic to clip
        "per_device_value_batch_size",
        "per_device_reward_batch_size",
        "ignore_save_lr_and_optim",
        "use_fused_rms_norm",
        "fp16_opt_level",
        "amp_custom_black_list",
        "amp_custom_white_list",
        "balance_batch",  # of the verl engine, which nothing here asks for
    }
    assert {option for option in how if how[option] == "always"} == {
        *("logging_dir", "logging_steps", "sharding", "sharding_parallel_degree", "sharding_parallel_config"),
        *("pipeline_parallel_degree", "virtual_pp_degree", "max_length", "repetition_penalty", "adam_epsilon"),
        *("per_device_logprob_batch_size", "per_device_eval_batch_size", "use_fp32_compute", "use_flash_attention"),
        *("recompute_granularity", "pg_loss_coeff"),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("grpo_argument.yaml", PADDLE),
        ("swift.sh", SWIFT_8_GPUS),
        ("lora.sh", SWIFT_LORA),
        ("grpo.py", SEQ2SEQ),
    ],
)
def test_every_option_of_an_example_has_an_outcome_and_a_reason_or_a_setting(tmp_path: Path, name: str, text: str):
    done = conversion(tmp_path / name, text)
    answered = [option for outcome in done.outcomes for option in outcome.options]
    assert set(answered) == set(done.file.options)
    for outcome in done.outcomes:
        assert outcome.settings or outcome.why, outcome
    assert set(done.file.options) <= set(done.tool.options)


def test_the_kl_coefficients_of_paddlenlp_are_one_in_the_reward_and_one_in_the_loss(tmp_path: Path):
    """S0-27"""
    text = "rl_algorithm: reinforce_plus_plus\nkl_coeff: 0.01\nkl_loss_coeff: 0.002\n"
    got = conversion(tmp_path / "p.yaml", text).settings
    assert (got["algorithm.use_kl_in_reward"], got["algorithm.kl_ctrl.kl_coef"]) == (True, 0.01)
    assert (got[f"{ACTOR}.use_kl_loss"], got[f"{ACTOR}.kl_loss_coef"]) == (True, 0.002)
    assert got["algorithm.adv_estimator"] == "reinforce_plus_plus"
    alone = conversion(tmp_path / "q.yaml", "rl_algorithm: reinforce_plus_plus\nkl_coeff: 0.01\n").settings
    assert (alone["algorithm.use_kl_in_reward"], alone[f"{ACTOR}.use_kl_loss"]) == (True, False)


def test_a_length_with_no_room_for_prompt_and_response_is_said(tmp_path: Path):
    """S0-17: 4607 is less than 512 + 4096"""
    done = conversion(tmp_path / "p.yaml", "max_prompt_len: 512\nmax_dec_len: 4096\nmax_length: 4607\nrollout_n: 8\n")
    (said,) = [outcome for outcome in done.outcomes if outcome.options == ("max_length",)]
    assert said.why is not None
    assert (said.how, dict(said.why.values)) == ("none", {"room": 4607, "longest": 4608})


SWIFT_SETTINGS = [
    ("launcher.engine", "verl"),
    ("trainer.n_gpus_per_node", 7),  # S3-17, S3-23: as many as train there
    (f"{MODEL}.path", "Qwen/Qwen2.5-7B-Instruct"),
    ("data.train_files", "AI-MO/NuminaMath-TIR#5000"),  # S3-21
    (f"{ROLLOUT}.name", "vllm"),  # S3-16
    (f"{ROLLOUT}.gpu_memory_utilization", 0.7),  # S3-18
    (f"{ROLLOUT}.n", 7),  # S3-12
    ("data.max_response_length", 2048),  # S3-13
    ("launcher.reward.plugins", ["plugin.py"]),
    (
        "launcher.reward.names",
        [
            *("accuracy", "format"),
            "cosine:min_len_value_wrong=0.0:max_len_value_wrong=-0.5:min_len_value_correct=1.0:max_len_value_correct=0.5"
            ":max_len=2048",
            "repetition:n_grams=3:max_penalty=-1.0",
        ],
    ),
    ("launcher.reward.weights", [1.0, 0.2, 0.5, 0.5]),
    ("launcher.data.answer_key", "solution"),  # what accuracy compares with there
    ("launcher.data.system", "prompt.txt"),  # S3-19
    (f"{MODEL}.lora_rank", 0),  # S3-20
    ("data.max_prompt_length", 4096),  # S3-22, from here on
    ("trainer.total_epochs", 1),
    ("data.train_batch_size", 2),  # 1 x 2 x 7 = 14 completions, 7 to a prompt
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1),
    (f"{ACTOR}.optim.lr", 1e-6),
    (f"{ACTOR}.optim.lr_warmup_steps_ratio", 0.05),
    (f"{ROLLOUT}.temperature", 0.9),
    ("trainer.test_freq", 100),
    ("trainer.save_freq", 100),
    ("trainer.max_actor_ckpt_to_keep", 2),
    ("data.dataloader_num_workers", 4),
    ("launcher.dtype", "bfloat16"),
]


@pytest.mark.slow
def test_the_command_of_ms_swift_for_eight_gpus_keeps_its_values(folder: Path, capsys: pytest.CaptureFixture[str]):
    words = words_of(script_of(folder / "swift.sh", SWIFT_8_GPUS, capsys))
    plan = planned([*words, "--reward_func", "my_reward.py"], capsys)
    assert {key: plan[key] for key, _ in SWIFT_SETTINGS} == dict(SWIFT_SETTINGS)
    assert plan[f"{ROLLOUT}.max_model_len"].endswith("=8192")  # verl's own key


def test_what_ms_swift_decides_by_itself_is_said(tmp_path: Path):
    """Its defaults are others than ours: KL 0.04, top_p 0.9, top_k 50, cosine, weight decay 0.1, LoRA."""
    done = conversion(tmp_path / "s.sh", "swift rlhf --rlhf_type grpo --model m --dataset d")
    expected = {
        f"{ACTOR}.kl_loss_coef": 0.04,
        f"{ROLLOUT}.temperature": 0.9,
        f"{ROLLOUT}.top_p": 0.9,
        f"{ROLLOUT}.top_k": 50,
        f"{ROLLOUT}.n": 8,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ACTOR}.optim.weight_decay": 0.1,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
        f"{MODEL}.lora_rank": 8,
        "data.max_response_length": 512,  # S3-13
        "data.train_batch_size": 2,  # 1 x ceil(16 / 1) = 16 completions, 8 to a prompt
    }
    assert {key: done.settings[key] for key in expected} == expected
    assert set(expected) <= done.defaults_said


@pytest.mark.slow
def test_the_lora_command_of_ms_swift_keeps_its_adapter(folder: Path, capsys: pytest.CaptureFixture[str]):
    words = words_of(script_of(folder / "lora.sh", SWIFT_LORA, capsys))
    plan = planned([*words, "--reward_func", "my_reward.py"], capsys)
    adapter = {name: plan[f"{MODEL}.{name}"] for name in ("lora_rank", "lora_alpha", "target_modules")}
    assert adapter == {"lora_rank": 8, "lora_alpha": 32, "target_modules": "all-linear"}
    assert (plan[f"{ACTOR}.optim.lr"], plan["data.train_batch_size"]) == (1e-5, 1)
    assert plan["trainer.n_gpus_per_node"] == 1  # S3-23: the command for one GPU; SWIFT_SETTINGS is that for eight


def test_what_ms_swift_switches_and_is_always_so_here_is_said(tmp_path: Path):
    outcomes = {name: one for one in conversion(tmp_path / "s.sh", SWIFT_8_GPUS).outcomes for name in one.options}
    gathered, logged = outcomes["ds3_gather_for_generation"], outcomes["log_completions"]
    assert (gathered.how, gathered.why) == ("always", Text("zero3"))  # S3-14: nothing is to be gathered
    assert (logged.how, logged.why) == ("always", Text("completions"))  # S3-15


@pytest.mark.parametrize(
    ("options", "arguments", "batch", "mini", "micro"),
    [
        # S4-02, the old count: 1 x 8 x 1 = 8 prompts, each with 8 responses in one forward pass
        ("per_device_train_batch_size: 1\ngradient_accumulation_steps: 8", ("--counts", "prompts"), 8, None, 8),
        # S4-03, the new count: 8 / 8 x 4 = 4 prompts
        ("per_device_train_batch_size: 8\ngradient_accumulation_steps: 4", (), 4, None, 8),
        # S4-04: two GPUs, 8 prompts
        ("per_device_train_batch_size: 8\ngradient_accumulation_steps: 4", ("--gpus", "2"), 8, None, 8),
        # 8 x 4 completions for two optimizer steps of 8 x 2
        (
            "per_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nsteps_per_generation: 4",
            (),
            4,
            2,
            8,
        ),
        # an update over four samplings of 8 completions
        (
            "per_device_train_batch_size: 8\ngradient_accumulation_steps: 4\nsteps_per_generation: 1",
            (),
            4,
            None,
            8,
        ),
    ],
)
def test_the_batches_of_trl_are_counted_in_prompts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: str,
    arguments: tuple[str, ...],
    batch: int,
    mini: int | None,
    micro: int,
):
    script = script_of(tmp_path / "trl.yaml", f"num_generations: 8\n{options}\n", capsys, *arguments)
    words = words_of(script)
    assert words[words.index("--train_batch_size") + 1] == str(batch)
    assert f"{ACTOR}.ppo_micro_batch_size_per_gpu={micro}" in words
    assert (words[words.index("--mini_batch_size") + 1] if mini else None) == (str(mini) if mini else None)


def test_completions_that_fill_no_group_are_rounded_up_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """S3-12: the global batch has to be a multiple of num_generations; 4 x 1 x 1 is none of 8"""
    script = script_of(tmp_path / "t.yaml", "num_generations: 8\nper_device_train_batch_size: 4\n", capsys)
    assert "--train_batch_size 1 " in script
    assert "4 completions is no multiple of num_generations=8" in script


def test_the_steps_of_trl_are_optimizer_steps_and_ours_are_rollouts(tmp_path: Path):
    """Two mini-batches and two passes make four optimizer steps of a rollout: 1000 / 4 = 250."""
    text = (
        "num_generations: 8\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nsteps_per_generation: 4\n"
        "num_iterations: 2\nmax_steps: 1000\nsave_steps: 200\neval_steps: 50\n"
    )
    got = conversion(tmp_path / "t.yaml", text).settings
    assert got["trainer.total_training_steps"] == 250
    assert (got["trainer.save_freq"], got["trainer.test_freq"]) == (50, 13)  # 200 / 4; 50 / 4 rounded up


@pytest.mark.parametrize(
    ("loss", "mode", "factor"),
    [
        ("grpo", "seq-mean-token-mean", None),  # S4-09
        ("dapo", "token-mean", None),
        ("bnpo", "token-mean", None),
        ("dr_grpo", "seq-mean-token-sum-norm", 768),
    ],
)
def test_the_losses_of_trl_are_aggregations_of_ours(tmp_path: Path, loss: str, mode: str, factor: int | None):
    got = conversion(tmp_path / "t.yaml", f"loss_type: {loss}\nmax_completion_length: 768\n").settings
    assert (got[f"{ACTOR}.loss_agg_mode"], got.get(f"{ACTOR}.loss_scale_factor")) == (mode, factor)


@pytest.mark.parametrize(("weight", "on"), [("0.0", False), ("0.04", True)])
def test_beta_is_the_weight_of_the_kl_and_zero_leaves_it_out(tmp_path: Path, weight: str, on: bool):
    got = conversion(tmp_path / "t.yaml", f"num_generations: 8\nbeta: {weight}\n").settings
    assert (got[f"{ACTOR}.use_kl_loss"], got.get(f"{ACTOR}.kl_loss_coef", 0.0)) == (on, float(weight))
    assert got.get(f"{ACTOR}.kl_loss_type", "low_var_kl") == "low_var_kl"  # S4-08: k3


def test_the_parameters_of_the_encoder_decoder_trainer_are_found_in_its_code(tmp_path: Path):
    """S1-07 to S1-10, S1-21"""
    done = conversion(tmp_path / "grpo.py", SEQ2SEQ)
    expected = {
        "launcher.update_old_after": 1000,
        f"{ROLLOUT}.n": 5,
        f"{ACTOR}.clip_ratio": 0.1,
        f"{ACTOR}.kl_loss_coef": 0.04,
        "data.max_response_length": 128,
        "data.train_batch_size": 8,
        "data.dataloader_num_workers": 0,
        "launcher.adv_std": "biased",
    }
    assert {key: done.settings[key] for key in expected} == expected
    how = {option: outcome.how for outcome in done.outcomes for option in outcome.options}
    assert (how["do_sample"], how["num_return_sequences"], how["num_beams"]) == ("always", "always", "none")


def test_every_option_that_the_requirements_name_is_in_a_table():
    """The words of other tools that our requirements use: each is listed in docs/coming_from.md."""
    named = yaml.safe_load((Path(__file__).resolve().parents[1] / "requirements.yaml").read_text(encoding="utf-8"))
    missing = {
        (identity, option)
        for identity, entry in named.items()
        for which, options in entry.get("options", {}).items()
        for option in options
        if option not in tool(which).options
    }
    assert missing == set()
