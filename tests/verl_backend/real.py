"""What the tests that start real verl share: a tiny model that vLLM takes, a reward file in a Chinese path, a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import REPO

SIZES = ("--train_batch_size", "8", "--rollout_n", "4", "--max_response_length", "16", "--max_prompt_length", "64")
REWARD = '''
"""The share of digits in the response: a model with random weights gets some of it at once."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    digits = sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))
    return {"score": digits, "digits": digits, "long": len(solution_str) > 8}
'''


def tiny_model(folder: Path, *, heads: int = 2) -> Path:
    """A Qwen2 with random weights, of 0.15 million parameters; vLLM on a CPU wants heads of 32 or more."""
    from grpo.embedded.scratch import make_model, make_tokenizer

    tokenizer = make_tokenizer("bytes")
    model = make_model(tokenizer, hidden_size=64, num_layers=2, num_heads=heads, max_length=512, seed=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def reward_file(folder: Path) -> Path:
    """A reward of the user's, where a path with Chinese characters and spaces leads."""
    path = folder / "奖励 函数" / "数字.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(REWARD, encoding="utf-8")
    return path


def python_in_a_spaced_folder(folder: Path) -> Path:
    """verl's Python, by a link `folder/环境 1` to its environment."""
    from grpo.verl_backend.installation.environment import find_environment

    found = find_environment("cpu")
    assert found is not None
    link = folder / "环境 1"
    link.symlink_to(found.python.parent.parent, target_is_directory=True)
    return link / "bin" / "python"


def words(folder: Path, *more: str, output: str = "outputs") -> list[str]:
    """The command line of a small run on verl without a GPU, in `folder`."""
    model = folder / "模型"
    if not model.exists():
        tiny_model(model)
    return [
        *(str(REPO / "train.sh"), "--engine", "verl", "--device", "cpu", "--model", str(model)),
        *("--reward_func", str(reward_file(folder)), "--output_dir", str(folder / output), "--lr", "1e-3"),
        *(*SIZES, "data.val_max_samples=8", "--seed", "7", *more),
    ]


def start(folder: Path, *more: str, output: str = "outputs") -> subprocess.Popen[str]:
    """The run as a process, with its output to read."""
    environment = os.environ | {"GRPO_PYTHON": sys.executable, "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        words(folder, *more, output=output),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train(folder: Path, *more: str, output: str = "outputs", code: int = 0) -> str:
    """Run to the end; what it printed."""
    process = start(folder, *more, output=output)
    said, _ = process.communicate()
    assert process.returncode == code, said
    return said


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def verl_processes() -> list[str]:
    """Command lines of this user's processes that belong to Ray, verl or vLLM."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if any(name in line for name in ("raylet", "gcs_server", "ray::", "main_ppo", "EngineCore", "VLLM::")):
            found.append(line)
    return found
