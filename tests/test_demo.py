"""`./train.sh` from beginning to end, and GSM8K's path, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.demo_log import LOG

pytestmark = pytest.mark.slow


def _train_sh(repo: Path, *arguments: str) -> str:
    """What ./train.sh says; it runs with the Python that runs the tests."""
    env = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run(
        [repo / "train.sh", *arguments],
        env=env | {"GRPO_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_demo_learns_to_carry_and_says_so(repo, in_folder):  # S2-04, S2-11, S2-12, S2-37
    said = _train_sh(repo)
    out = in_folder / "outputs"
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    accuracy = summary["accuracy"]
    assert accuracy["start"] < 0.05
    assert accuracy["final"] >= max(0.65, accuracy["sft"] + 0.30)
    assert summary["reward_mean"]["final"] > summary["reward_mean"]["sft"]
    assert (summary["engine"], summary["algorithm"], summary["recipe"]) == ("embedded", "grpo", "demo")

    first_line, *_ = said.splitlines()
    assert "no data and no model named" in first_line
    assert "--data" in first_line
    assert "after SFT    after GRPO" in said
    assert f"{accuracy['sft']:.3f}" in said
    assert f"{accuracy['final']:.3f}" in said
    assert "outputs/checkpoints/final" in said
    assert "outputs/report.html" in said
    assert "./train.sh --data prompts.json" in said

    example = summary["example"]
    assert example["ground_truth"] not in example["first"].split()[-1]
    assert example["last"].endswith(example["ground_truth"])
    assert (out / "report.html").stat().st_size < 400_000

    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in steps] == list(range(summary["steps"] + 1))
    for plain, verl in {
        "reward_mean": "critic/rewards/mean",
        "kl_loss": "actor/kl_loss",
        "policy_loss": "actor/pg_loss",
        "response_length": "response_length/mean",
    }.items():
        assert all(line[plain] == line[verl] for line in steps[1:])
    # S0-40: near the published log on any machine, and the same to the last digit where that was made
    published = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in published] == [line["step"] for line in steps]
    assert abs(published[-1]["val_accuracy"] - accuracy["final"]) < 0.2
    # S3-15: always a JSONL
    rows = [json.loads(line) for line in (out / "completions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sum(row["split"] == "train" for row in rows) == summary["steps"] * 64 * 5  # ROLLOUT_N stays 5
    assert {"prompt", "response", "reward", "parts", "length", "step", "uid"} <= rows[0].keys()

    answer = _answers(out / "checkpoints" / "final", "请计算：47 + 38 = ?")
    assert "=" in answer  # it works the sum out
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [
        "final", "global_step_40", "global_step_50", "sft",
    ]  # fmt: skip


def _answers(folder: Path, prompt: str) -> str:
    """What transformers makes of the exported folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], return_tensors="pt", return_dict=True)
    out = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_gsm8k_goes_its_whole_way_through_a_tiny_model(repo, in_folder, shared):  # S2-24, S3-21
    said = _train_sh(repo, "--recipe", "gsm8k_smoke", "--data", f"{shared}/data/gsm8k_train.jsonl#64")
    summary = json.loads(Path("outputs/summary.json").read_text(encoding="utf-8"))
    assert summary["steps"] == 2
    assert summary["recipe"] == "gsm8k_smoke"
    assert "report" in said
    assert Path("outputs/report.html").is_file()
    rows = [json.loads(line) for line in Path("outputs/completions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all("####" in row["ground_truth"] for row in rows)
    assert {row["data_source"] for row in rows} == {"gsm8k"}
