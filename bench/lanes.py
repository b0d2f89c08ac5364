"""What threads side by side on one copy of the weights (grpo/embedded/lanes.py) bring to a step, on a CPU.

    .venv/bin/python bench/lanes.py                          # small, ragged, long and 30m: some minutes on two cores
    .venv/bin/python bench/lanes.py small half-b --rounds 3 --record       # and writes bench/results/lanes.md

Sampling, the reference's log-probs and the update of one step, with all threads on each product and with the groups
shared out among lanes, in turns; the same prompts and random numbers. The median of the rounds, and the ratio.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
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
from grpo.embedded import policy as policy_module
from grpo.embedded.choosing import Sampling
from grpo.embedded.lanes import lanes_for
from grpo.embedded.memory import token_budget
from grpo.embedded.models import read_model, read_tokenizer
from grpo.embedded.passes import log_probs
from grpo.embedded.policy import Policy
from grpo.embedded.rollout import sample
from grpo.embedded.update import Batch, Objective, update

_MIDDLE = {"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 8, "inner": 1376, "vocabulary": 8192}
SHAPES = {name: shapes.SHAPES[name] for name in ("small", "ragged", "long", "half-b")}
SHAPES["30m"] = shapes.Shape(8, 8, 48, (100, 100), **_MIDDLE)
OBJECTIVE = Objective(
    "vanilla", 0.2, 0.2, 3.0, 1.0, 1.05, "token-mean", None, 1.0, 0.0, False, 0.001, "low_var_kl", 1.0
)
PARTS = ("sampling", "reference", "update")


def main() -> None:
    """Measure the named shapes, print a row for each, and write them down when asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["small", "ragged", "long", "30m"], metavar="SHAPE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.shapes) - set(SHAPES):
        parser.error(f"no shape {', '.join(sorted(unknown))}: {', '.join(SHAPES)}")
    torch.set_num_threads(given.threads)
    lanes = lanes_for(1, given.threads)
    heads = [f"{part}, s: one, {lanes} lanes" for part in PARTS]
    head = "| shape | " + " | ".join(heads) + " | a step |"
    page = [*facts_lines(machine(given.threads)), "", head, "| --- |" + " ---: |" * 4]
    print("\n".join(page), flush=True)
    for name in given.shapes:
        page.append(row(name, *measured(name, given.rounds, lanes)))
        print(page[-1], flush=True)
    if given.record:
        text = "\n".join(["# bench/lanes.py", "", *page, ""])
        (Path(__file__).resolve().parent / "results" / "lanes.md").write_text(text, encoding="utf-8")


def row(name: str, one: list[float], many: list[float]) -> str:
    """Seconds of each part alone and in lanes, and how many times as fast the lanes are."""
    cells = [f"{alone:.2f}, {shared:.2f}: {alone / shared:.2f}x" for alone, shared in zip(one, many, strict=True)]
    return f"| {name} | " + " | ".join([*cells, f"{sum(one) / sum(many):.2f}x"]) + " |"


def measured(name: str, rounds: int, lanes: int) -> tuple[list[float], list[float]]:
    """Median seconds of each part, with all threads on each product and in lanes."""
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory(prefix="grpo-lanes-") as folder:
        shapes.write(Path(folder), shape, steps=1, seed=1)
        tokenizer = read_tokenizer(f"{folder}/model")
        rows = json.loads(Path(folder, "train.json").read_text(encoding="utf-8"))
        prompts = [tokenizer(line["prompt"])["input_ids"] for line in rows]
        ends = [int(tokenizer.eos_token_id)], int(tokenizer.pad_token_id)  # type: ignore[arg-type]
        alone = Policy(
            read_model(f"{folder}/model"), tokenizer, torch.device("cpu"), torch.float32, *ends, in_lanes=False
        )
    policy_module.lanes_of = lambda policy: lanes  # whatever the size of the model
    shared = dataclasses.replace(alone, in_lanes=True)
    optimizer = torch.optim.AdamW(alone.trained(), lr=1e-9, fused=True)
    taken: dict[bool, list[list[float]]] = {False: [], True: []}
    for number in range(rounds + 1):
        for policy in (alone, shared):
            seconds = step(policy, prompts, shape, optimizer)
            if number:  # the first one warms up
                taken[policy.in_lanes].append(seconds)
    one, many = ([median(part) for part in zip(*taken[way], strict=True)] for way in (False, True))
    return one, many


def step(
    policy: Policy, prompts: list[list[int]], shape: shapes.Shape, optimizer: torch.optim.Optimizer
) -> list[float]:
    """Seconds of sampling, reference and update."""
    sampling = Sampling(n=shape.n, max_length=shape.tokens, min_length=shape.least)
    at = [time.perf_counter()]
    rollouts = sample(policy, prompts, sampling, seed=1)
    at.append(time.perf_counter())
    most = token_budget(policy, lanes=policy.lanes, pair=shape.prompt[1] + 2 * shape.tokens)
    reference = log_probs(policy, rollouts, temperature=1.0, max_tokens=most)
    at.append(time.perf_counter())
    signs = torch.where(torch.arange(len(rollouts.uid)) % 2 == 0, 1.0, -1.0)
    batch = Batch(rollouts, signs, rollouts.response_mask, reference, on_policy=True)
    update(policy, optimizer, batch, OBJECTIVE, clip_grad=1.0, max_tokens=most)
    at.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(at)]


if __name__ == "__main__":
    main()
