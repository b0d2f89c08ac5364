"""Evaluation: answer the prompts that training never sees, and score the answers with the same reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpo.embedded.choosing import Sampling
from grpo.embedded.parallel import World, sample_together
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Prompt
from grpo.embedded.rollout import Rollouts
from grpo.embedded.scoring import BatchScoring, lengths_of, responses_text
from reward_funcs import Scores
from reward_funcs.scoring import Scoring


def rows(
    prompts: Sequence[Prompt], responses: Sequence[str], scores: Scores, rollouts: Rollouts, split: str
) -> list[dict[str, Any]]:
    """The lines of completions.jsonl for these rollouts."""
    n = rollouts.n
    lengths = lengths_of(rollouts)
    return [
        {
            "uid": index // n,
            "prompt": prompts[index // n].text,
            "response": response,
            "reward": scores.scores[index],
            "parts": scores.parts[index],
            "length": lengths[index],
            "ground_truth": prompts[index // n].ground_truth,
            "data_source": prompts[index // n].data_source,
            "split": split,
        }
        for index, response in enumerate(responses)
    ]


def evaluate(
    world: World,
    policy: Policy,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    reward: Scoring | None,
    *,
    seed: int,
    max_rows: int,
    max_errors: float,
    on_token: Callable[[int], None],
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """({"val_accuracy", "val_reward_mean", "val/<data_source>"}, the lines for completions.jsonl).

    val_accuracy: share of responses whose reward is 1 or more; responses whose reward failed are left out.
    """
    ids = [prompt.ids for prompt in prompts]
    how: dict[str, Any] = {"seed": seed, "max_rows": max_rows, "on_token": on_token}
    with BatchScoring(world, reward, policy, prompts, sampling.n, max_errors) as scoring:
        rollouts = sample_together(world, policy, ids, sampling, **how, on_ended=scoring.ended)
        texts = responses_text(policy, rollouts)
        scoring.begin(texts, lengths_of(rollouts))
        scores = scoring.scores()
    lines = rows(prompts, texts, scores, rollouts, "val")
    scored = [line for line in lines if line["reward"] is not None]
    values = {
        "val_accuracy": _mean([float(line["reward"] >= 1.0) for line in scored]),
        "val_reward_mean": _mean([line["reward"] for line in scored]),
    }
    for source in sorted({line["data_source"] for line in scored}):
        values[f"val-core/{source}/reward/mean@{sampling.n}"] = _mean(
            [line["reward"] for line in scored if line["data_source"] == source]
        )
    return values, lines


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
