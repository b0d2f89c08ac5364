"""Sampling alone: response tokens/s of the embedded engine on the shapes that it is measured by, on a CPU.

    .venv/bin/python bench/rollout.py                       # small, ragged and long; half-b takes 3 GB and minutes
    .venv/bin/python bench/rollout.py half-b --rounds 2 --threads 2
    .venv/bin/python bench/rollout.py small --transformers  # transformers' own forward pass at every step
    .venv/bin/python bench/rollout.py small --profile       # where the CPU's time goes
    .venv/bin/python bench/rollout.py crowd crowd-b         # more responses than are written side by side
    .venv/bin/python bench/rollout.py crowd crowd-b --in_turn    # ... where the next wait for the last of a batch

The fastest of the rounds counts, and CPU seconds stand beside it, since others may use the machine. "of the bound" is
the time that the products with the weights would take at the rate that was measured beside them (a square product of
1,024), over the CPU seconds: prompts once per group, each response token once, nothing for padding, no attention.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.embedded.choosing import Sampling
from grpo.embedded.llama_decoding import LlamaDecoding
from grpo.embedded.models import make_policy
from grpo.embedded.policy import Policy
from grpo.embedded.rollout import Rollouts, sample
from grpo.embedded.scratch import make_tokenizer

SMALL = {
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip
HALF_B = {
    "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2,
}  # fmt: skip
# model, prompts, responses to each, tokens at least and at most, prompt characters, tokens that end a response
SHAPES = {
    "small": (SMALL, 8, 8, (64, 64), (64, 64), 1),
    "ragged": (SMALL, 16, 8, (8, 256), (32, 512), 4),
    "crowd": (SMALL, 96, 8, (8, 256), (32, 512), 4),
    "crowd-b": (HALF_B, 12, 4, (4, 64), (16, 64), 6000),
    "half-b": (HALF_B, 2, 4, (32, 32), (128, 128), 1),
    "long": (SMALL, 2, 8, (1024, 1024), (256, 256), 1),
}
ROWS = {"crowd-b": 16}  # responses side by side, where that is not 256


def main() -> None:
    """Measure the named shapes, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["small", "ragged", "long"], metavar="SHAPE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--transformers", action="store_true", help="with transformers' own forward pass")
    parser.add_argument("--in_turn", action="store_true", help="no prompt begins before the last response ended")
    parser.add_argument("--profile", action="store_true", help="and torch's profile of one more round")
    given = parser.parse_args()
    if unknown := set(given.shapes) - set(SHAPES):
        parser.error(f"no shape {', '.join(sorted(unknown))}: {', '.join(SHAPES)}")
    torch.set_num_threads(given.threads)
    LlamaDecoding.admits = not given.in_turn
    for name in given.shapes:
        measure(name, given)


def measure(name: str, given: argparse.Namespace) -> None:
    """Print what the shape took."""
    model, count, n, (least, most), characters, ends = SHAPES[name]
    policy = make(model, getattr(torch, given.dtype))
    first = 20 if ends < 10 else 300  # no token of a prompt
    policy.stop_ids = [*policy.stop_ids, *range(first, first + ends - 1)]
    if given.transformers:
        policy._writes_out = False
    draw, rows = random.Random(0), ROWS.get(name, 256)
    prompts = [[draw.randrange(30, 250) for _ in range(draw.randint(*characters))] for _ in range(count)]
    sampling = Sampling(n=n, max_length=most, min_length=least)
    sample(policy, prompts[:1], Sampling(n=1, max_length=2), seed=0)  # what is tried once per run
    wall, cpu, rate = [], [], []
    for _ in range(given.rounds):
        began, began_cpu = time.perf_counter(), time.process_time()
        rollouts = sample(policy, prompts, sampling, seed=7, max_rows=rows)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
        rate.append(product_rate())
    tokens = int(rollouts.response_mask.sum())
    share = products(policy, rollouts) / max(rate) / min(cpu)
    print(
        f"{name}: {tokens} tokens, {tokens / min(wall):,.0f} tokens/s ({min(wall):.2f} s), {min(cpu):.2f} CPU s, "
        f"{share:.0%} of the bound at {max(rate) / 1e9:.0f} GFLOP per CPU second",
        flush=True,
    )
    if given.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            sample(policy, prompts, sampling, seed=7, max_rows=rows)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=40))


def make(shape: dict[str, int], dtype: torch.dtype) -> Policy:
    """A Qwen2 of this shape with random weights; a token for every byte where no other vocabulary is named."""
    tokenizer = make_tokenizer("bytes")
    ends: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    values: dict[str, Any] = {"vocab_size": len(tokenizer), "tie_word_embeddings": True} | shape | ends
    config = Qwen2Config(**values)
    torch.manual_seed(1)
    return make_policy(Qwen2ForCausalLM(config).float(), tokenizer, torch.device("cpu"), dtype)


def products(policy: Policy, rollouts: Rollouts) -> float:
    """FLOPs with the weights that the shape needs; the vocabulary's are not needed within a prompt."""
    head = policy.model.get_parameter("model.embed_tokens.weight").numel()  # tied
    body = sum(weight.numel() for weight in policy.model.parameters() if weight.dim() == 2) - head
    responses, prompts = int(rollouts.response_mask.sum()), int(rollouts.prompt_mask.sum())
    return 2.0 * (body * (responses + prompts) + head * responses)


def product_rate(size: int = 1024) -> float:
    """FLOPs per CPU second of a square product."""
    a = torch.ones(size, size)
    fastest = float("inf")
    for _ in range(5):
        began = time.process_time()
        torch.mm(a, a)
        fastest = min(fastest, time.process_time() - began)
    return 2.0 * size**3 / fastest


if __name__ == "__main__":
    main()
