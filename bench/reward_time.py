"""How long a step waits for its rewards: called while the batch is written (grpo/embedded/scoring.py), and afterwards.

    .venv/bin/python bench/reward_time.py                  # two minutes on two cores
    .venv/bin/python bench/reward_time.py --rounds 5 --record        # and writes bench/results/reward_time.md

A batch of the shape ragged is sampled, scored and asked of the reference, with each reward in turns. judge: each call
waits for 0.2 s, as for a model's answer over HTTP; judge_async: the same as an `async def`; works: each call computes
for 20 ms, which on a CPU takes from the sampling what it gives. Seconds, the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
import shapes
import torch
from machine import facts_lines, machine, processors

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.embedded.choosing import Sampling
from grpo.embedded.memory import token_budget
from grpo.embedded.models import read_model, read_tokenizer
from grpo.embedded.parallel import ALONE
from grpo.embedded.passes import log_probs
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Prompt
from grpo.embedded.rollout import sample
from grpo.embedded.scoring import BatchScoring, lengths_of, responses_text
from reward_funcs import load_reward
from reward_funcs.scoring import Scoring

REWARDS = {
    "judge": "import time\n\ndef compute_score(solution_str):\n    time.sleep(0.2)\n    return len(solution_str)\n",
    "judge_async": "import asyncio\n\nasync def compute_score(solution_str):\n    await asyncio.sleep(0.2)\n"
    "    return len(solution_str)\n",
    "works": "import time\n\ndef compute_score(solution_str):\n    end = time.process_time() + 0.02\n"
    "    while time.process_time() < end:\n        pass\n    return len(solution_str)\n",
}


def main() -> None:
    """Measure each reward, print a row for each, and write them down when asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rewards", nargs="*", default=list(REWARDS), metavar="REWARD")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.rewards) - set(REWARDS):
        parser.error(f"no reward {', '.join(sorted(unknown))}: {', '.join(REWARDS)}")
    torch.set_num_threads(processors())
    heads = ["sampling and reference alone", "reward afterwards", "reward meanwhile", "afterwards / meanwhile"]
    page = [*facts_lines(machine(processors())), "", f"| reward | {' | '.join(heads)} |", "| --- |" + " ---: |" * 4]
    print("\n".join(page), flush=True)
    with tempfile.TemporaryDirectory(prefix="grpo-reward-") as folder:
        shape = shapes.SHAPES["ragged"]
        shapes.write(Path(folder), shape, steps=1, seed=1)
        tokenizer = read_tokenizer(f"{folder}/model")
        ends = [int(tokenizer.eos_token_id)], int(tokenizer.pad_token_id)  # type: ignore[arg-type]
        policy = Policy(read_model(f"{folder}/model"), tokenizer, torch.device("cpu"), torch.float32, *ends)
        rows = json.loads(Path(folder, "train.json").read_text(encoding="utf-8"))
        prompts = [
            Prompt(tokenizer(row["prompt"])["input_ids"], row["prompt"], "m", "", {}) for row in rows[: shape.prompts]
        ]
        bare = median(seconds(policy, prompts, shape, None, early=False) for _ in range(given.rounds + 1))
        for name in given.rewards:
            file = Path(folder, f"{name}.py")
            file.write_text(REWARDS[name], encoding="utf-8")
            taken: dict[bool, list[float]] = {False: [], True: []}
            with Scoring(load_reward(str(file)), workers=processors(), timeout=60) as scoring:
                for number in range(given.rounds + 1):
                    for early, all_ in taken.items():
                        all_.append(seconds(policy, prompts, shape, scoring, early=early))
                        if not number:
                            all_.clear()  # the workers have started
            after, meanwhile = median(taken[False]), median(taken[True])
            cells = f"{bare:.2f} | {after:.2f} | {meanwhile:.2f} | {after / meanwhile:.2f}"
            page.append(f"| {name} | {cells} |")
            print(page[-1], flush=True)
    if given.record:
        text = "\n".join(["# bench/reward_time.py", "", *page, ""])
        (Path(__file__).resolve().parent / "results" / "reward_time.md").write_text(text, encoding="utf-8")


def seconds(
    policy: Policy, prompts: list[Prompt], shape: shapes.Shape, reward: Scoring | None, *, early: bool
) -> float:
    """Of sampling, rewards and reference."""
    sampling = Sampling(n=shape.n, max_length=shape.tokens, min_length=shape.least)
    most = token_budget(policy, lanes=policy.lanes, pair=shape.prompt[1] + 2 * shape.tokens)
    ids = [prompt.ids for prompt in prompts]
    began = time.perf_counter()
    with BatchScoring(ALONE, reward, policy, prompts, shape.n, 0.0) as scoring:
        rollouts = sample(policy, ids, sampling, seed=1, on_ended=scoring.ended if early else None)
        texts, lengths = responses_text(policy, rollouts), lengths_of(rollouts)
        if early:
            scoring.begin(texts, lengths)
        log_probs(policy, rollouts, temperature=1.0, max_tokens=most)
        if reward is not None:
            if not early:
                scoring.begin(texts, lengths)
            scoring.scores()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
