"""A run that was killed, or stopped, goes on as if nothing had happened: same metrics, same responses, same weights."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo.metrics.names import TIMING_NAMES

pytestmark = pytest.mark.slow

TINY = [
    "--model=scratch",
    "--rollout_n=4",
    "--train_batch_size=4",
    "--lr=1e-3",
    "--max_response_length=8",
    "--max_steps=8",
    "--save_freq=1",
    "--test_freq=3",
    "--device=cpu",
    "--dtype=float32",
    "data.val_max_samples=4",
    "launcher.scratch.hidden_size=16",
    "launcher.scratch.num_layers=1",
    "launcher.scratch.num_heads=2",
    "launcher.scratch.vocabulary=characters",
    "launcher.sft.steps=3",
    "launcher.sft.batch_size=8",
]

# Everything that a run carries from step to step beside weights and optimizer: the weight of the KL in the reward, the
# copy that samples, the reference that follows, and how many batches of prompts the steps took.
CARRIED = [
    *("--algorithm=rloo", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=50"),
    *("algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=2"),
    *("launcher.update_old_after=3", "launcher.update_ref_after=2", "launcher.ref_mixup=0.5"),
]


def _arguments(repo: Path) -> list[str]:
    return [*TINY, f"launcher.sft.files={repo}/data_prep/arithmetic_demonstrations.json"]


def _metrics(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMING_NAMES} for line in lines]


def _same_outcome(one: Path, other: Path) -> None:
    assert _metrics(one) == _metrics(other)
    for name in ("completions.jsonl", "checkpoints/final/model.safetensors"):
        digests = {hashlib.sha256((folder / name).read_bytes()).hexdigest() for folder in (one, other)}
        assert len(digests) == 1, name


@pytest.mark.parametrize(
    "more",
    [[], ["--mini_batch_size=2", "--ppo_epochs=2", "actor_rollout_ref.actor.shuffle=true"], CARRIED],
    ids=["plain", "mini-batches", "state of the algorithm"],
)
def test_killed_at_twenty_random_moments_a_run_ends_with_the_same_weights(tmp_path, repo, more):
    kills = 20 if not more else 6
    command = [sys.executable, str(repo / "tests/embedded/killed_run.py"), tmp_path, str(kills), "1", "--"]
    done = subprocess.run(
        [*command, *_arguments(repo), *more],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repo), "PYTHONUNBUFFERED": "1"},  # a killed process flushes nothing
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["kills"] >= kills
    logs = [(tmp_path / f"killed_{number + 1}.log").read_text(encoding="utf-8") for number in range(outcome["runs"])]
    assert any("going on after step" in log for log in logs)
    assert [line["step"] for line in _metrics(tmp_path / "whole")] == list(range(9))
    for number in range(outcome["runs"]):
        killed = tmp_path / f"killed_{number + 1}"
        _same_outcome(tmp_path / "whole", killed)
        left = sorted(path.name for path in (killed / "checkpoints").iterdir())
        assert left == ["final", "global_step_7", "global_step_8", "sft"]


def _start(repo: Path, folder: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "grpo", *arguments, "--output_dir", str(folder)],
        env={**os.environ, "PYTHONPATH": str(repo), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if (folder / "metrics.jsonl").is_file() and f'"step": {step},' in (folder / "metrics.jsonl").read_text():
            return
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0])


@pytest.mark.parametrize("more", [[], CARRIED], ids=["plain", "state of the algorithm"])
def test_ctrl_c_saves_and_a_bare_resume_goes_on_to_the_same_end(tmp_path, repo, more):
    arguments = [*_arguments(repo), "--max_steps=40", "--save_freq=1000", *more]
    whole, stopped = tmp_path / "整 体", tmp_path / "stopped"
    first = _start(repo, whole, *arguments)
    second = _start(repo, stopped, *arguments)
    _wait_for_step(stopped, 2, second)
    second.send_signal(signal.SIGINT)
    said = second.communicate(timeout=60)[0]
    assert second.returncode == 130, said
    assert "Traceback" not in said
    assert "the checkpoint is saved; go on with: ./train.sh --resume --output_dir" in said
    (saved,) = (stopped / "checkpoints").glob("global_step_*")

    third = _start(repo, stopped, "--resume")
    said = third.communicate(timeout=120)[0]
    assert third.returncode == 0, said
    assert f"going on after step {saved.name[12:]}" in said
    first.communicate(timeout=120)
    assert first.returncode == 0
    _same_outcome(whole, stopped)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, repo):
    folder = tmp_path / "out"
    process = _start(repo, folder, *_arguments(repo), "--max_steps=40")
    _wait_for_step(folder, 4, process)
    process.kill()
    process.communicate()
    newest = max((folder / "checkpoints").glob("global_step_*"), key=lambda path: int(path.name[12:]))
    weights = bytearray((newest / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (newest / "model.safetensors").write_bytes(weights)
    again = _start(repo, folder, "--resume")
    said = again.communicate(timeout=120)[0]
    assert again.returncode == 0, said
    assert f"{newest.name} is damaged (model.safetensors has changed)" in said
    assert f"going on after step {int(newest.name[12:]) - 1}" in said
