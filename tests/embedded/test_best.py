"""checkpoints/best holds the weights whose evaluation was best, not the last ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo.__main__ import main
from tests.embedded.tiny_models import llama, model_folder

# What training rewards, evaluation punishes: the more is learned, the worse it gets.
REWARD = """
def compute_score(data_source, solution_str, ground_truth):
    share = sum(c.isascii() for c in solution_str) / max(1, len(solution_str))
    return share if data_source == "math" else -share
"""


def test_a_metric_that_is_not_evaluated_is_refused_with_the_nearest(in_folder: Path, capsys):
    assert main(["--data=p.json", "--model=scratch", "launcher.save_best=val_acuracy", "--dry_run"]) == 2
    assert "launcher.save_best=val_acuracy (override) is none of val_accuracy, val_reward_mean; did you mean" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_the_best_weights_are_kept_however_training_ends(in_folder: Path, capsys):
    model_folder(llama(), in_folder / "base")
    for name, source in (("train", "math"), ("val", "qa")):
        rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": "1", "data_source": source} for n in range(8)]
        Path(f"{name}.json").write_text(json.dumps(rows))
    Path("reward.py").write_text(REWARD)
    words = ["--data=train.json", "--val_data=val.json", "--model=base", "--reward_func=reward.py", "--lr=3e-2"]
    words += ["--max_prompt_length=40", "--max_response_length=8", "--rollout_n=8", "--device=cpu", "--dtype=float32"]
    words += ["--train_batch_size=8", "--max_steps=5", "--test_freq=1", "--save_freq=1", "--keep=9", "--force"]
    sampled = "actor_rollout_ref.rollout.val_kwargs"
    words += [f"{sampled}.do_sample=true", f"{sampled}.temperature=1", f"{sampled}.n=8"]
    assert main([*words, "--algorithm=gspo", "launcher.save_best=val_reward_mean"]) == 0
    said = capsys.readouterr().out
    lines = [json.loads(line) for line in Path("outputs/metrics.jsonl").read_text().splitlines()]
    values = {line["step"]: line["val_reward_mean"] for line in lines if line["step"] and "val_reward_mean" in line}
    assert list(values) == [1, 2, 3, 4, 5]
    best = max(values, key=lambda step: values[step])  # the earliest of equals
    assert values[best] > values[5]
    summary = json.loads(Path("outputs/summary.json").read_text())
    assert summary["algorithm"] == "gspo"
    assert summary["best"] == {"metric": "val_reward_mean", "step": best, "value": values[best]}
    assert f"step {best}: the best val_reward_mean so far, {values[best]:.4g}; kept in best" in said
    assert "best      outputs/checkpoints/best" in said
    kept, then, last = (
        load_file(f"outputs/checkpoints/{name}/model.safetensors") for name in ("best", f"global_step_{best}", "final")
    )
    assert all(torch.equal(kept[key], then[key]) for key in then)
    assert not all(torch.equal(kept[key], last[key]) for key in last)
    state = json.loads(Path("outputs/checkpoints/global_step_5/trainer_state.json").read_text())
    assert state["outcome"]["best"] == summary["best"]  # so a resumed run does not take a worse one for better
