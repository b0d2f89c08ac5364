"""./train.sh convert-config: the printed script, --write, both languages, verl's and OpenRLHF's scripts, mistakes."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from grpo.__main__ import main
from grpo.convert import tables
from grpo.convert.conversion import convert_file
from grpo.convert.reading import read
from grpo.values import defaults
from tests import coming_from_page
from tests.grpo.convert_examples import PADDLE, planned, script_of, words_of

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

VERL = """
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-0.5B-Instruct}
max_response_length=$((512 * 2))
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$PWD/train.json \\
    data.train_batch_size=64 \\
    data.max_response_length=${max_response_length} \\
    data.val_batch_size=1312 \\
    actor_rollout_ref.model.path=$MODEL_PATH \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.ppo_micro_batch_size=16 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size=16 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.max_model_len=2048 \\
    custom_reward_function.path=my_reward.py \\
    reward_model.enable=True reward_model.model.path=org/judge \\
    reward_model.reward_manager=dapo \\
    trainer.critic_warmup=0 \\
    trainer.logger=['console','clearml'] \\
    trainer.n_gpus_per_node=4 \\
    +trainer.val_before_train=False \\
    trainer.use_legacy_worker_impl=auto \\
    trainer.experiment_name="$(date +%s)" $@
"""
OPENRLHF = """
SAVE=./exp
ARGS=( --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3 )
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 4 --vllm_num_engines 4 --pretrain Qwen/Qwen2.5-0.5B-Instruct \\
   --remote_rm_url reward.py --advantage_estimator group_norm --eps_clip_low_high 0.2 0.27 ${ARGS[@]} \\
   --rollout_batch_size 64 --n_samples_per_prompt 8 --train_batch_size 256 --micro_train_batch_size 2 \\
   --prompt_data train.json --input_key prompt --label_key ground_truth --apply_chat_template \\
   --reward_clip_range -5 5 --overlong_buffer_len 128 \\
   --save_path $SAVE/out --ckpt_path $SAVE/ckpt --actor_learning_rate 5e-7 --zero_stage 3 --bf16
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with prompts and a reward."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": f"{n + 1}"} for n in range(80)]
    (tmp_path / "train.json").write_text(json.dumps([row | {"data_source": "math"} for row in rows]))
    (tmp_path / "my_reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    )
    return tmp_path


@pytest.mark.slow
def test_a_script_of_verl_keeps_its_keys_under_todays_names(folder: Path, capsys: pytest.CaptureFixture[str]):
    script = script_of(folder / "run.sh", VERL, capsys)
    words = [word.replace("${PWD}", str(folder)) for word in words_of(script)]
    plan = planned(words, capsys)
    expected = {
        "launcher.engine": "verl",
        "data.train_files": str(folder / "train.json"),
        "data.train_batch_size": 64,
        "data.max_response_length": 1024,
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B-Instruct",
        f"{ACTOR}.ppo_mini_batch_size": 32,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,  # 16 over 4 GPUs
        f"{ACTOR}.use_dynamic_bsz": False,
        f"{ACTOR}.use_kl_loss": True,
        f"{ROLLOUT}.n": 4,
        "reward.custom_reward_function.path": "my_reward.py",
        "trainer.logger": ["console", "file"],
        "trainer.n_gpus_per_node": 4,
        "trainer.val_before_train": False,
        "data.truncation": "left",  # what verl does with prompts that it does not filter
        "trainer.total_epochs": 30,  # verl's own default
    }
    assert {key: plan[key] for key in expected} == expected
    assert plan[f"{ROLLOUT}.max_model_len"].endswith("=2048")
    assert plan[f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"].endswith("=4")
    for said in (
        "data.val_batch_size=1312: verl evaluates all in one go",
        "trainer.use_legacy_worker_impl",
        "reward_model.enable=True, reward_model.model.path=org/judge: every reward worker of verl would load the model",
        "without clearml",
        "trainer.experiment_name: its value is $(date +%s), which is not run",
        "reward_model.reward_manager=dapo: the launcher's own counts",
    ):
        assert said in script


def test_micro_batches_by_count_are_dropped_where_verl_cuts_by_tokens(tmp_path: Path):
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.use_dynamic_bsz=True "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.log_prob_micro_batch_size=8"
    )
    (tmp_path / "run.sh").write_text(text)
    done = convert_file(read(tmp_path / "run.sh"))
    assert [key for key in done.settings if "micro" in key] == []
    assert done.settings[f"{ACTOR}.use_dynamic_bsz"] is True


@pytest.mark.slow
def test_a_script_of_openrlhf_keeps_its_values(folder: Path, capsys: pytest.CaptureFixture[str]):
    words = words_of(script_of(folder / "run.sh", OPENRLHF, capsys))
    plan = planned([*words, "--reward_func", "my_reward.py"], capsys)
    expected = {
        "trainer.n_gpus_per_node": 4,
        "data.train_batch_size": 64,
        f"{ACTOR}.ppo_mini_batch_size": 32,  # 256 responses, 8 to a prompt
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2,
        f"{ROLLOUT}.n": 8,
        "algorithm.adv_estimator": "grpo",
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_coef": 0.001,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.clip_ratio_low": 0.2,
        f"{ACTOR}.clip_ratio_high": 0.27,
        f"{ACTOR}.optim.lr": 5e-7,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ACTOR}.optim.min_lr_ratio": 0.1,
        f"{ACTOR}.optim.betas": [0.9, 0.95],
        "launcher.output_dir": "./exp/out",
        "reward.reward_kwargs.overlong_buffer_cfg.len": 128,
        "trainer.total_epochs": 1,
    }
    assert {key: plan[key] for key in expected} == expected


def test_the_dotted_names_of_todays_openrlhf_mean_the_same(tmp_path: Path):
    text = (
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m --actor.num_gpus_per_node 2 "
        "--rollout.batch_size 64 --rollout.n_samples_per_prompt 8 --train.batch_size 256 --data.max_len 3000 "
        "--rollout.max_new_tokens 2000 --actor.adam.lr 1e-6 --algo.kl.init_coef 0 --algo.advantage.estimator rloo "
        "--ds.packing_samples --logger.wandb.key abc"
    )
    (tmp_path / "run.sh").write_text(text)
    done = convert_file(read(tmp_path / "run.sh"))
    expected = {
        "actor_rollout_ref.model.path": "m",
        "trainer.n_gpus_per_node": 2,
        "data.train_batch_size": 64,
        f"{ACTOR}.ppo_mini_batch_size": 32,
        "data.max_prompt_length": 1000,  # what a response of 2000 leaves of 3000
        "data.max_response_length": 2000,
        f"{ACTOR}.use_kl_loss": False,
        "algorithm.adv_estimator": "rloo",
        "trainer.logger": ["console", "file", "wandb"],
    }
    assert {key: done.settings[key] for key in expected} == expected


def test_without_use_kl_loss_openrlhf_takes_the_kl_from_the_reward(tmp_path: Path):
    (tmp_path / "run.sh").write_text("python -m openrlhf.cli.train_ppo_ray --init_kl_coef 0.01 --kl_target 0.2")
    got = convert_file(read(tmp_path / "run.sh")).settings
    assert (got["algorithm.use_kl_in_reward"], got[f"{ACTOR}.use_kl_loss"]) == (True, False)
    assert (got["algorithm.kl_ctrl.kl_coef"], got["algorithm.kl_ctrl.target_kl"]) == (0.01, 0.2)
    assert got["algorithm.kl_ctrl.type"] == "adaptive"


def test_a_reward_model_is_a_reward_by_name_where_one_process_trains(tmp_path: Path):
    """S0-07"""
    (tmp_path / "p.yaml").write_text("rl_algorithm: grpo\nuse_rm_server: false\nreward_model_name_or_path: org/judge\n")
    assert convert_file(read(tmp_path / "p.yaml")).settings["launcher.reward.names"] == ["reward_model:org/judge"]
    (tmp_path / "s.sh").write_text("swift rlhf --rlhf_type grpo --reward_funcs format --reward_model org/judge")
    names = convert_file(read(tmp_path / "s.sh")).settings["launcher.reward.names"]
    assert names == ["format", "reward_model:org/judge"]  # appended last, as there


def test_the_printed_script_is_a_script(folder: Path, capsys: pytest.CaptureFixture[str]):
    """bash reads it as one command with the words that our tests read."""
    script = script_of(folder / "p.yaml", PADDLE.replace("kk-grpo-run", 'a run\'s "name" $HOME'), capsys)
    shown = script.replace("./train.sh", "printf '%s\\n'", 1)
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == words_of(script)
    assert 'trainer.experiment_name=a run\'s "name" $HOME' in words_of(script)


def test_a_variable_of_the_outside_is_left_to_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "swift rlhf --rlhf_type grpo --model $HOME/m --dataset d.json"
    assert '--model "${HOME}/m"' in script_of(tmp_path / "s.sh", text, capsys)
    assert main(["convert-config", str(tmp_path / "s.sh"), "--write", str(tmp_path / "s.yaml")]) == 0
    tree = yaml.safe_load((tmp_path / "s.yaml").read_text())
    assert tree["actor_rollout_ref"]["model"]["path"] == "${oc.env:HOME}/m"


@pytest.mark.slow
def test_the_written_file_makes_the_same_plan_as_the_printed_command(folder: Path, capsys: pytest.CaptureFixture[str]):
    printed = words_of(script_of(folder / "run.sh", OPENRLHF, capsys))
    assert main(["convert-config", "run.sh", "--write", "converted.yaml"]) == 0
    assert "./train.sh --config converted.yaml" in capsys.readouterr().out
    reward = ["--reward_func", "my_reward.py"]
    plans = [planned([*words, *reward], capsys) for words in (printed, ["--config", "converted.yaml"])]
    assert plans[0] == plans[1]


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "t.yaml").write_text("num_generations: 8\nbeta: 0\n")
    assert main(["convert-config", "t.yaml", "--write", "t.yaml"]) == 2
    assert capsys.readouterr().err == "error: t.yaml is there already; name another file\n"


def test_an_unknown_option_and_a_wrong_value_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "num_generations: 8\nlearning_rat: 1\nmy_thing: 2\nlearning_rate: fast\noptim: lion\n"
    script = script_of(tmp_path / "t.yaml", text, capsys)
    assert "learning_rat=1: not known; did you mean learning_rate?" in script
    assert "my_thing=2: no option of TRL that we know" in script
    assert "learning_rate=fast: actor_rollout_ref.actor.optim.lr=fast is not a number" in script
    assert "optim=lion: AdamW alone" in script


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: FILE"),
        (("x.yaml", "--from", "paddel"), "invalid choice: 'paddel'"),
        (("x.yaml", "--gpus", "0"), "--gpus: is a whole number of at least 1"),
    ],
)
def test_mistakes_on_the_command_line_are_answered_in_a_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["convert-config", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_the_comments_can_be_chinese(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """S2-44"""
    (tmp_path / "t.yaml").write_text("num_generations: 8\nfp16: true\n")
    assert main(["convert-config", str(tmp_path / "t.yaml"), "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "fp16=true: float32 或 bfloat16" in out
    assert shlex.split(out.partition("\n#\n")[0], comments=True)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_pages_tables_are_those_of_the_converter(lang: str):
    page = coming_from_page.PAGES[lang].read_text(encoding="utf-8")
    assert coming_from_page.filled(page, lang) == page, "write them again: python -m tests.coming_from_page"


def test_every_sentence_is_used_and_in_both_languages():
    source = "".join(path.read_text(encoding="utf-8") for path in tables.FOLDER.glob("*.py"))
    used = {option.why for name in tables.TOOLS for option in tables.tool(name).all()}
    unused = {name for name in tables.texts() if name not in used and f'"{name}"' not in source}
    assert unused == set()
    assert all(set(texts) == {"en", "zh"} for texts in tables.texts().values())


@pytest.mark.parametrize("name", tables.TOOLS)
def test_every_key_of_a_table_exists(name: str):
    from grpo.verl_backend.settings.keys import verl_keys

    keys = {key for option in tables.tool(name).all() for key in tables.keys_of(option)}
    assert keys - set(defaults()) - set(verl_keys()) == set()
