"""A run folder as training leaves it, through the real MetricsLog, for the tests of what reads it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from grpo.metrics.log import MetricsLog

ATTACK = '<script src="http://127.0.0.1:%d/x.js">alert(1)</script><img src="http://127.0.0.1:%d/x.png">'
CONFIG = """\
# The settings of a run, resolved, each with where it came from. `./train.sh --config FILE` uses them again.
data:
  train_files: "prompts.json#500"  # flag --data
  train_batch_size: 32  # recipe demo
  seed: 42  # default
actor_rollout_ref:
  actor:
    optim:
      lr: 0.0001  # flag --lr
  rollout:
    n: 5  # default
launcher:
  data:
    system: "say # 1: yes  # no"  # environment SYSTEM_PROMPT
"""


def make_run(folder: Path, steps: int, *, attack: str = "", finished: bool = True, length: int = 12) -> Path:
    """A run folder as training leaves it, through the real MetricsLog: rewards rise, KL grows, two evaluations."""
    noise = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    with MetricsLog(folder) as log:
        log.step(0, {"val_accuracy": 0.30, "val_reward_mean": 0.31})
        log.completions(0, _val_rows(attack or "15 + 27 = 32", 0.0, length))
        for step in range(1, steps + 1):
            share = step / steps
            log.step(
                step,
                {
                    "epoch": step // 50,
                    "reward_mean": 0.35 + 0.45 * share + noise.gauss(0, 0.04),
                    "reward_std": 0.40 - 0.25 * share + noise.gauss(0, 0.02),
                    "kl_loss": 0.02 * share**2 + abs(noise.gauss(0, 0.0004)),
                    "policy_loss": noise.gauss(-0.002, 0.01),
                    "response_length": 7.5 + noise.gauss(0, 0.2),
                    "response_clip_fraction": max(0.0, noise.gauss(0.01, 0.01)),
                    "entropy": 0.5 * math.exp(-2 * share) + noise.gauss(0, 0.01),
                    "clip_fraction": 0.0,
                    "clip_fraction_lower": 0.0,
                    "reward_kl": 0.01 * share,
                    "reward_kl_coef": 0.001,
                    "generated_batches": 2,
                    "overlong_penalty": -0.05 * share,
                    "grad_norm": math.nan if step == 3 else abs(noise.gauss(0.8, 0.2)),
                    "lr": 1e-4,
                    "zero_std_fraction": 0.2 + 0.3 * share,
                    "reward/errors": 0,
                    "reward/format": 0.9,
                    "tokens_per_second": 5200 + noise.gauss(0, 100),
                    "seconds_per_step": 0.6 + noise.gauss(0, 0.02),
                },
            )
        if finished:
            log.step(steps, {"val_accuracy": 0.78, "val_reward_mean": 0.79})
            log.completions(steps, _val_rows("15 + 27 = 42", 1.0, length))
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    run = {
        "launcher": "grpo",
        "command": "./train.sh --data prompts.json --lr 1e-4",
        "started": "2026-01-02T03:04:05+00:00",
        "resumed": [{"at": "2026-01-02T04:00:00+00:00", "command": "./train.sh"}],
        "packages": {"torch": "2.13.0", "transformers": "5.10.4"},
        "fingerprint": {"data.train_files": "sha256:" + "ab" * 32},
    }
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    if finished:
        summary = {
            "engine": "embedded",
            "algorithm": "grpo",
            "recipe": "demo",
            "steps": steps,
            "seconds": 151.2,
            "accuracy": {"start": 0.0, "sft": 0.3, "final": 0.78},
            "reward_mean": {"start": 0.0, "sft": 0.31, "final": 0.79},
            "peak_rss_mb": 612,
            "checkpoint": str(folder / "checkpoints" / "final"),
            "example": {"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "first": "32", "last": "42"},
        }
        (folder / "summary.json").write_text(json.dumps(summary, ensure_ascii=False), encoding="utf-8")
    return folder


def _val_rows(response: str, reward: float, length: int) -> list[dict[str, object]]:
    rows = [("请解答：15 + 27 = ?", response, reward), ("What is 3 + 4?", "7", 1.0), ("What is 38 + 5?", "33", 0.0)]
    return [
        {
            "uid": uid,
            "prompt": prompt,
            "response": text,
            "reward": score,
            "parts": {},
            "length": length,
            "ground_truth": "42",
            "data_source": "math_reasoning",
            "split": "val",
        }
        for uid, (prompt, text, score) in enumerate(rows)
    ]
