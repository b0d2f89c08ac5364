"""Two processes train as one: the same weights, one display and one set of files; whoever dies, none is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from grpo.embedded.processes import processors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(processors() < 2, reason="two processes are refused on one processor"),
]

# A reward under which nearly every group has a signal, and parts of it.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": sum(map(ord, solution_str)) % 7 / 7, "characters": len(solution_str)}
"""
TINY = [
    "--model=scratch",
    "--reward_func=score.py",
    "--rollout_n=3",
    "--train_batch_size=5",
    "--lr=1e-3",
    "--max_response_length=8",
    "--save_freq=1",
    "--test_freq=3",
    "--device=cpu",
    "--dtype=float32",
    "data.val_max_samples=3",
    "launcher.scratch.hidden_size=16",
    "launcher.scratch.num_layers=1",
    "launcher.scratch.num_heads=2",
    "launcher.scratch.vocabulary=characters",
    "launcher.sft.steps=3",
    "launcher.sft.batch_size=5",
]
# What looks at the whole batch, or is shared in another way: whitened advantages, KL in the reward with a reference
# that moves, groups sampled again, a copy that samples, two passes in mini-batches that leave a process without work.
ALL_AT_ONCE = [
    *("--algorithm=rloo", "algorithm.kl_ctrl.type=adaptive", "launcher.normalize_advantage=true"),
    *("algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=2"),
    *("launcher.update_old_after=2", "launcher.update_ref_after=2", "launcher.ref_mixup=0.5"),
    *("--ppo_epochs=2", "--mini_batch_size=1", "actor_rollout_ref.actor.shuffle=true"),
]


def _start(repo: Path, tmp_path: Path, name: str, *arguments: str) -> subprocess.Popen:
    if not (tmp_path / "score.py").exists():
        (tmp_path / "score.py").write_text(REWARD, encoding="utf-8")
    demonstrations = f"launcher.sft.files={repo}/data_prep/arithmetic_demonstrations.json"
    fresh = [] if arguments == ("--resume",) else [*TINY, demonstrations]
    return subprocess.Popen(
        [sys.executable, "-m", "grpo", *fresh, *arguments, "--output_dir", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repo), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _end(process: subprocess.Popen, code: int = 0) -> str:
    """What it said until it ended."""
    said = process.communicate(timeout=300)[0]
    assert process.returncode == code, said
    assert "Traceback" not in said, said
    return said


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if (folder / "metrics.jsonl").is_file() and f'"step": {step},' in (folder / "metrics.jsonl").read_text():
            return
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0])


def _processes_of(parent: int) -> dict[str, int]:
    """Rank -> process id."""
    rows = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    found = [row.split(None, 2) for row in rows.splitlines()]
    return {args.split()[-3]: int(pid) for pid, mother, args in found if mother == str(parent) and "rank_main" in args}


def _gone(pid: int) -> bool:
    """Ended, though nobody may have asked how."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return state == "" or state.startswith("Z")


def _all_gone(pids: dict[str, int]) -> bool:
    until = time.monotonic() + 20
    while not all(map(_gone, pids.values())) and time.monotonic() < until:
        time.sleep(0.05)
    return all(map(_gone, pids.values()))


def _same_outcome(one: Path, other: Path) -> None:
    """Weights within 1e-5, the same responses and rewards, the same numbers of every step."""
    here, there = (load_file(folder / "checkpoints/final/model.safetensors") for folder in (one, other))
    assert here.keys() == there.keys()
    assert max(float((here[name] - there[name]).abs().max()) for name in here) < 1e-5
    start = load_file(one / "checkpoints/sft/model.safetensors")
    assert max(float((here[name] - start[name]).abs().max()) for name in here) > 1e-3  # there was something to learn
    assert (one / "completions.jsonl").read_text() == (other / "completions.jsonl").read_text()
    for mine, theirs in zip(_metrics(one), _metrics(other), strict=True):
        assert mine.keys() == theirs.keys()
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def _metrics(folder: Path) -> list[dict]:
    from grpo.metrics.names import TIMING_NAMES

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMING_NAMES} for line in lines]


def test_two_processes_end_with_the_weights_of_one(tmp_path: Path, repo: Path) -> None:
    """S2-08."""
    arguments = [*ALL_AT_ONCE, "--max_steps=4"]
    one, two = _start(repo, tmp_path, "one", *arguments), _start(repo, tmp_path, "two", "--n_gpus=2", *arguments)
    _end(one)
    said = _end(two)
    assert "embedded engine on 2 processes, cpu (1 thread) each, float32" in said
    assert said.count("step 4/4") == 1  # one display
    _same_outcome(tmp_path / "one", tmp_path / "two")
    names = [sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("one", "two")]
    assert names[0] == names[1]  # one set of files


def test_an_encoder_decoder_model_trains_on_two_processes_as_on_one(tmp_path: Path, repo: Path) -> None:
    """S1-25."""
    arguments = ["launcher.scratch.architecture=t5", "--max_steps=2"]
    one, two = _start(repo, tmp_path, "one", *arguments), _start(repo, tmp_path, "two", "--n_gpus=2", *arguments)
    _end(one)
    assert "2 processes" in _end(two)
    _same_outcome(tmp_path / "one", tmp_path / "two")


def test_after_a_death_and_after_a_stop_any_number_of_processes_goes_on_to_the_same_end(
    tmp_path: Path, repo: Path
) -> None:
    whole = _start(repo, tmp_path, "whole", "--max_steps=12")
    folder = tmp_path / "ended"
    first = _start(repo, tmp_path, "ended", "--max_steps=12", "--n_gpus=2")
    _wait_for_step(folder, 2, first)
    ours = _processes_of(first.pid)
    assert ours.keys() == {"0", "1"}
    os.kill(ours["1"], signal.SIGKILL)
    said = _end(first, 2)
    assert "error: process 1 of 2 was killed by SIGKILL (out of memory?), so all were ended; the same command" in said
    assert _all_gone(ours)

    second = _start(repo, tmp_path, "ended", "--resume")
    _wait_for_step(folder, 5, second)
    ours = _processes_of(second.pid)
    for pid in (*ours.values(), second.pid):  # as a batch system ends a job; one signal alone is passed on alike
        os.kill(pid, signal.SIGTERM)
    said = _end(second, 130)
    assert said.count("stopping: saving a checkpoint first") == 1
    assert "the checkpoint is saved; go on with: ./train.sh --resume --output_dir ended" in said
    assert _all_gone(ours)

    third = _start(repo, tmp_path, "ended", "--max_steps=12")
    assert "embedded engine on cpu" in _end(third)
    _end(whole)
    _same_outcome(tmp_path / "whole", folder)


def test_no_process_outlives_the_launcher_that_was_killed(tmp_path: Path, repo: Path) -> None:
    launcher = _start(repo, tmp_path, "out", "--max_steps=1000", "--n_gpus=2")
    _wait_for_step(tmp_path / "out", 0, launcher)
    ours = _processes_of(launcher.pid)
    assert len(ours) == 2
    launcher.kill()
    launcher.wait()
    try:
        assert _all_gone(ours)
    finally:
        for pid in ours.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.communicate()


def test_an_error_of_one_process_is_told_as_if_it_were_alone(tmp_path: Path, repo: Path) -> None:
    """The reward works on the gold answers of the check before training, and fails on what the model says."""
    raising = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    raising += "    return 1.0 if solution_str.strip() == ground_truth.strip() else 1 / 0\n"
    (tmp_path / "score.py").write_text(raising, encoding="utf-8")
    said = _end(_start(repo, tmp_path, "out", "--max_steps=2", "--n_gpus=2", "launcher.force=true"), 2)
    assert said.count("error: ") == 1
    assert "3 of 3 reward calls failed, more than --max_reward_errors" in said
    assert "ZeroDivisionError: division by zero (score.py, line 2)" in said
