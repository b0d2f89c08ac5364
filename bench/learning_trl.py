"""One training run of TRL's GRPOTrainer for bench/learning.py, in TRL's own environment.

    python bench/learning_trl.py SPEC.json      written by learning_runs.py; the result goes to spec["result"]

Of ours it imports the reward alone. The settings are those of recipes/grpo.yaml. Held-out prompts are answered
greedily at the start and every `every` steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from reward_funcs.reward_func import compute_score

LIMIT = 32  # tokens of a response


def config_of(spec: dict[str, Any]) -> GRPOConfig:
    """recipes/grpo.yaml and the launcher's defaults, in TRL's names."""
    return GRPOConfig(
        output_dir=spec["scratch"],
        per_device_train_batch_size=spec["prompts"] * spec["n"],
        gradient_accumulation_steps=1,
        num_generations=spec["n"],
        max_completion_length=LIMIT,
        temperature=1.0,
        max_steps=spec["steps"],
        learning_rate=spec["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.01,
        max_grad_norm=1.0,
        loss_type="grpo",
        scale_rewards="group",
        beta=0.04,
        epsilon=0.2,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=spec["seed"],
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )


@torch.no_grad()
def answered(model: Any, tokenizer: Any, rows: list[dict[str, str]]) -> dict[str, bool]:
    """Prompt -> whether its greedy answer is right."""
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    tokenizer.padding_side = "left"
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    was_training = model.training
    model.eval()
    ids = model.generate(**inputs, max_new_tokens=LIMIT, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    model.train(was_training)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return {
        row["prompt"]: compute_score(row["data_source"], text, row["ground_truth"]) >= 1
        for row, text in zip(rows, texts, strict=True)
    }


class Look(TrainerCallback):
    """The held-out prompts at step 0 and every so many steps."""

    def __init__(self, spec: dict[str, Any], rows: list[dict[str, str]]) -> None:
        self.spec, self.rows, self.points = spec, rows, []

    def on_train_begin(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        self._look(0, there)

    def on_step_end(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        if state.global_step % self.spec["every"] == 0 or state.global_step == self.spec["steps"]:
            self._look(state.global_step, there)

    def _look(self, step: int, there: dict[str, Any]) -> None:
        right = answered(there["model"], there["processing_class"], self.rows)
        responses = step * self.spec["prompts"] * self.spec["n"]
        self.points.append({"step": step, "responses": responses, "answers": right})
        print(f"step {step}: {sum(right.values()) / len(right):.3f}", flush=True)


def main(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Train; every evaluation."""
    train, val = (json.loads(Path(spec[name]).read_text(encoding="utf-8")) for name in ("train_file", "val_file"))

    def reward(completions: list, ground_truth: list[str], data_source: list[str], **_: Any) -> list[float]:
        return [
            compute_score(source, completion[0]["content"], truth)
            for completion, truth, source in zip(completions, ground_truth, data_source, strict=True)
        ]

    look = Look(spec, val)
    GRPOTrainer(
        model=spec["model"],
        reward_funcs=reward,
        args=config_of(spec),
        train_dataset=Dataset.from_list(
            [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in train]
        ),
        callbacks=[look],
    ).train()
    return look.points


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(given["result"]).write_text(json.dumps(main(given)), encoding="utf-8")
