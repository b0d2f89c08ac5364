"""Evaluation: answer the prompts that training never sees, and score the answers with the same reward."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from grpo.embedded.choosing import Sampling
from grpo.embedded.interrupts import Interrupts
from grpo.embedded.parallel import World, sample_together
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Prompt
from grpo.embedded.rollout import Rollouts
from grpo.engine import Run, reward_arguments
from reward_funcs import Sample, Scores, build_reward, score_batch
from reward_funcs.score import Scorer
from reward_funcs.scoring import Scoring


def responses_text(policy: Policy, rollouts: Rollouts) -> list[str]:
    """The responses as text, without special tokens (the stop token, padding)."""
    lengths = rollouts.response_mask.sum(1).tolist()
    ids = [row[:length] for row, length in zip(rollouts.response_ids.tolist(), lengths, strict=True)]
    return policy.tokenizer.batch_decode(ids, skip_special_tokens=True)


def open_scoring(run: Run, interrupts: Interrupts) -> Scoring:
    """The reward, its calls in worker processes with a deadline; ours, which end by themselves, in this one."""
    reward = build_reward(function=run.reward, **reward_arguments(run.config))
    workers = min(int(run.config.reward.num_workers), os.cpu_count() or 1)
    timeout = float(run.config.launcher.reward.timeout)
    return Scoring(reward, workers=workers, timeout=timeout, ours_here=True, on_wait=interrupts.check)


def score(
    world: World,
    reward: Scorer | None,
    prompts: Sequence[Prompt],
    responses: Sequence[str],
    lengths: Sequence[int],
    *,
    n: int,
    max_errors: float,
) -> Scores:
    """What the reward says of n responses to each prompt, in order; lengths: in tokens.

    The first process alone calls it: a reward may look at the whole batch, hold a model, or count its calls.
    Raises RewardError when too many calls fail.
    """
    owners = [prompt for prompt in prompts for _ in range(n)]
    samples = [
        Sample(prompt.data_source, response, prompt.ground_truth, prompt.extra_info, prompt.text, length)
        for prompt, response, length in zip(owners, responses, lengths, strict=True)
    ]

    def scores() -> Scores:
        assert reward is not None, "the first process has the reward"
        return score_batch(reward, samples, max_errors=max_errors)

    return world.from_first(scores)


def lengths_of(rollouts: Rollouts) -> list[int]:
    """Tokens of each response, the stop token included."""
    return [int(length) for length in rollouts.response_mask.sum(1)]


def rows(
    prompts: Sequence[Prompt], responses: Sequence[str], scores: Scores, rollouts: Rollouts, split: str
) -> list[dict[str, Any]]:
    """The lines of completions.jsonl for these rollouts."""
    n = rollouts.n
    lengths = rollouts.response_mask.sum(1).tolist()
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
    reward: Scorer | None,
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
    rollouts = sample_together(world, policy, ids, sampling, seed=seed, max_rows=max_rows, on_token=on_token)
    texts = responses_text(policy, rollouts)
    scores = score(world, reward, prompts, texts, lengths_of(rollouts), n=sampling.n, max_errors=max_errors)
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
