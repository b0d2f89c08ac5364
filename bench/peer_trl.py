"""One training run of TRL's GRPOTrainer for bench/compare.py, in TRL's own environment. Imports nothing of ours.

    python bench/peer_trl.py SPEC.json      written by bench/compare.py; the result goes to spec["result"]

A step is timed from on_step_begin to on_step_end: sampling, reward, reference, update. Nothing is evaluated or saved.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from small_reward import compute_score
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

# What a user may set. `plain` is TRL as it comes, but for fp32 (its default is bf16) and 8 prompts a step: 8 responses
# at a time, activations recomputed. `fast` is the fastest found that also holds the least memory; bench/README.md says
# what the others, tried with `bench/compare.py --peers`, did.
ROWS64 = {"per_device_train_batch_size": 64, "gradient_checkpointing": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fast": ROWS64 | {"per_device_train_batch_size": 16},
    "rows8": ROWS64 | {"per_device_train_batch_size": 8},
    "rows64": ROWS64,
    "compile": ROWS64 | {"torch_compile": True},
    "static": ROWS64 | {"cache_implementation": "static"},
    "continuous": ROWS64 | {"use_transformers_continuous_batching": True},
    "update": ROWS64 | {"per_device_train_batch_size": 16, "scale_rewards": "none"},  # bench/same_update.py
    "spinning": ROWS64,  # with OpenMP's threads as they come: they spin while they wait
}


class StepClock(TrainerCallback):
    """Wall seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def config_of(spec: dict[str, Any]) -> GRPOConfig:
    """TRL's settings for the shape, with those that have a name in SETTINGS over them."""
    own = SETTINGS[spec["settings"]]
    responses = spec["prompts"] * spec["n"]
    rows = min(responses, own.get("per_device_train_batch_size", 8))
    return GRPOConfig(
        **own | {"per_device_train_batch_size": rows},
        gradient_accumulation_steps=responses // rows,
        output_dir=spec["scratch"],
        max_steps=spec["steps"],
        num_generations=spec["n"],
        max_completion_length=spec["response_tokens"],
        generation_kwargs={"min_new_tokens": spec["least_tokens"]},
        beta=spec["kl_coef"],
        learning_rate=spec["lr"],
        lr_scheduler_type="constant",
        bf16=False,
        use_cpu=True,
        seed=spec["seed"],
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Train; seconds and tokens of every step, and what ran."""
    rows = json.loads(Path(spec["data"]).read_text(encoding="utf-8"))
    asked: list[list[str]] = []  # the prompts of every step, one for each response
    response_tokens: list[int] = []

    def reward(prompts: list[str], completions: list[str], completion_ids: list, **_: Any) -> list[float]:
        asked.append(prompts)
        response_tokens.append(sum(len(ids) for ids in completion_ids))
        return [compute_score("bench", text, "train") for text in completions]

    clock = StepClock()
    trainer = GRPOTrainer(
        model=spec["model"],
        reward_funcs=reward,
        args=config_of(spec),
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        callbacks=[clock],
    )
    trainer.train()
    if "save" in spec:
        trainer.save_model(spec["save"])
    read = trainer.processing_class
    return {
        "seconds": clock.seconds,
        "prompt_tokens": [sum(len(ids) for ids in read(prompts)["input_ids"]) for prompts in asked],
        "response_tokens": response_tokens,
        "weights": sum(weight.numel() for weight in trainer.model.parameters()),
        "dtype": str(trainer.model.dtype).removeprefix("torch."),
        "reference": trainer.ref_model is not None,
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("trl", "transformers", "torch", "accelerate")},
    }


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(given["result"]).write_text(json.dumps(main(given)), encoding="utf-8")
