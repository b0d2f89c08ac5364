"""More of the real verl on a CPU, for `make test-verl-full`: LoRA, ranks, machines, resuming, interrupting, recipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.conftest import REPO
from tests.verl_backend.real import lines, start, train, verl_processes, words

pytestmark = pytest.mark.verl_full

QUICK = ("trainer.val_before_train=false", "--hang_minutes", "10")


@pytest.fixture(scope="module", autouse=True)
def _verl_is_installed(missing: Callable[[str], NoReturn]) -> None:
    from grpo.verl_backend.installation.environment import find_environment

    if find_environment("cpu") is None:
        missing("real verl needs `./train.sh setup --engine verl --device cpu`")


def opened(folder: Path) -> dict:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_lora_trains_and_is_merged_or_kept_as_an_adapter(in_folder: Path):
    """S2-09, S2-32, S3-20."""
    words = ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16", *QUICK)
    train(in_folder, *words, "--max_steps", "2", "--lr", "1e-2")
    base, merged = opened(in_folder / "模型"), opened(in_folder / "outputs" / "checkpoints" / "final")
    changed = [name for name, weight in base.items() if not weight.equal(merged[name])]
    assert changed
    assert all("proj" in name for name in changed)  # linear layers alone
    export = [str(REPO / "train.sh"), "export", "--from", "global_step_2", "--lora", "adapter", "--to", "适配器"]
    subprocess.run(export, cwd=in_folder, env=os.environ | {"GRPO_PYTHON": sys.executable}, check=True)
    adapter = json.loads((in_folder / "适配器" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (adapter["r"], adapter["lora_alpha"]) == (8, 16)
    assert adapter["base_model_name_or_path"] == str(in_folder / "模型")


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_two_ranks_share_the_model_and_the_responses(in_folder: Path, tensor_parallel: int):
    """S2-08."""
    parallel = f"actor_rollout_ref.rollout.tensor_model_parallel_size={tensor_parallel}"
    train(in_folder, "--n_gpus", "2", parallel, "--max_steps", "2", "--test_freq", "2", *QUICK)
    shards = sorted(path.name for path in (in_folder / "outputs/checkpoints/global_step_2/actor").glob("model_*.pt"))
    assert shards == ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"]
    assert len(lines(in_folder / "outputs" / "completions.jsonl")) == 2 * 8 * 4 + 8
    assert opened(in_folder / "outputs" / "checkpoints" / "final")


def test_a_resumed_run_sees_the_prompts_of_an_undisturbed_one_and_goes_on_from_its_state(in_folder: Path):
    """What vLLM samples is another matter: its generator begins anew, and its order depends on the machine's load."""
    words = ("--max_steps", "4", "--save_freq", "2", *QUICK)
    train(in_folder, *words, output="undisturbed")
    first = start(in_folder, *words)
    tracker = in_folder / "outputs" / "checkpoints" / "latest_checkpointed_iteration.txt"
    while first.poll() is None and not tracker.exists():
        time.sleep(0.2)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate()
    assert first.returncode == 130, said
    assert "go on with: ./train.sh --resume" in said
    train(in_folder, *words)

    def prompts(folder: str) -> list[tuple[int, str]]:
        return sorted({(row["step"], row["prompt"]) for row in lines(in_folder / folder / "completions.jsonl")})

    assert prompts("outputs") == prompts("undisturbed")
    ours, theirs = (lines(in_folder / folder / "metrics.jsonl") for folder in ("outputs", "undisturbed"))
    assert [(row["step"], row["lr"], row["epoch"]) for row in ours] == [
        (row["step"], row["lr"], row["epoch"]) for row in theirs
    ]
    assert ours[0]["kl_loss"] == 0  # a fresh policy is its reference
    assert ours[2]["kl_loss"] > 1e-5  # the first step after the pause is no fresh policy's


def test_ctrl_c_ends_everything_and_says_how_to_go_on(in_folder: Path):
    process = start(in_folder, "--max_steps", "50", *QUICK)
    metrics = in_folder / "outputs" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and len(lines(metrics)) >= 1):
        time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130
    assert time.monotonic() - began < 60
    assert "there is no checkpoint yet; go on with: ./train.sh --resume --output_dir outputs" in said
    assert verl_processes() == []


def test_the_script_of_a_dry_run_trains_by_itself(in_folder: Path):
    environment = os.environ | {"GRPO_PYTHON": sys.executable}
    planned = words(in_folder, "--max_steps", "1", *QUICK, "--dry_run")
    subprocess.run(planned, cwd=in_folder, env=environment, check=True)
    bare = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    done = subprocess.run(
        ["bash", "outputs/launch.sh"], cwd=in_folder, env=bare, capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert [row["step"] for row in lines(in_folder / "outputs" / "verl_metrics.jsonl")] == [1]


def test_two_machines_train_one_model(in_folder: Path):
    """S0-37, in small: the script for each node, run twice here, as two Ray nodes with a rank each."""
    environment = os.environ | {"GRPO_PYTHON": sys.executable, "RAY_PORT": "26379"}
    settings = ("--nnodes", "2", "--max_steps", "2", *QUICK)
    subprocess.run(words(in_folder, *settings, "--dry_run"), cwd=in_folder, env=environment, check=True)
    script = ["bash", "outputs/launch_node.sh", "127.0.0.1"]
    other = subprocess.Popen([*script, "1"], cwd=in_folder, env=environment)
    try:
        head = subprocess.run([*script, "0"], cwd=in_folder, env=environment, capture_output=True, text=True)
        assert head.returncode == 0, head.stdout + head.stderr
        assert "train: 2/2" in head.stdout
        assert other.wait(120) == 0
    finally:
        other.terminate()
    actor = in_folder / "outputs" / "checkpoints" / "global_step_2" / "actor"
    assert len(list(actor.glob("model_world_size_2_rank_*.pt"))) == 2
    assert opened(in_folder / "outputs" / "checkpoints" / "final")
    deadline = time.monotonic() + 180  # Ray's dashboard agent of a node that went takes over a minute to notice
    while verl_processes() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert verl_processes() == []


RECIPES = sorted(path.stem for path in (REPO / "recipes").glob("*.yaml"))
ROOM = ("--max_prompt_length", "448")  # for a system prompt, a token for each byte
# What a recipe asks of its user beside a model and a reward.
MORE = {
    "deepseek_r1_zero_format": ROOM,
    "gdpo": ("trainer.use_v1=False", "algorithm.gdpo_reward_keys=[digits,long]"),
    "paddle_kk": ("--data", "src.json", "--max_response_length", "64"),
    "swift_r1": ("--data", "problem.json", *ROOM),
    "trl_gsm8k": ("--data", "question.json", *ROOM),
}
COLUMNS = {"src": "tgt", "problem": "solution", "question": "answer"}


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in ("demo", "gsm8k", "gsm8k_smoke")])
def test_each_recipe_that_verl_knows_makes_two_steps(in_folder: Path, recipe: str):
    for prompt, answer in COLUMNS.items():
        rows = [{prompt: f"{number} + 1 =", answer: f"#### {number + 1}"} for number in range(24)]
        (in_folder / f"{prompt}.json").write_text(json.dumps(rows), encoding="utf-8")
    more = ("--recipe", recipe, *MORE.get(recipe, ()), *QUICK)
    planned = subprocess.run(
        words(in_folder, *more, "--dry_run"),
        cwd=in_folder,
        env=os.environ | {"GRPO_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    if planned.returncode == 2 and "embedded" in planned.stderr:
        pytest.skip(f"verl does not have it: {planned.stderr}")
    assert planned.returncode == 0, planned.stderr
    shutil.rmtree(in_folder / "outputs")
    train(in_folder, *more, "--max_steps", "2")
    assert [row["step"] for row in lines(in_folder / "outputs" / "metrics.jsonl")] == [1, 2]
