"""Sampling alone by the embedded engine, for bench/compare.py: what bench/peer_vllm.py does, and the same result.

python bench/own_sampling.py SPEC.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo.embedded.choosing import Sampling
from grpo.embedded.models import read_model, read_tokenizer
from grpo.embedded.policy import Policy, choose_device, choose_dtype
from grpo.embedded.rollout import sample


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds and response tokens of each round over other prompts; the first one warms up."""
    import torch

    torch.set_num_threads(spec["threads"])
    tokenizer = read_tokenizer(spec["model"])
    device = choose_device("cpu")
    stop, pad = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)  # type: ignore[arg-type]
    policy = Policy(read_model(spec["model"]), tokenizer, device, choose_dtype(spec["dtype"], device), [stop], pad)
    rows = [row["prompt"] for row in json.loads(Path(spec["data"]).read_text(encoding="utf-8"))]
    wanted = Sampling(n=spec["n"], max_length=spec["tokens"], min_length=spec["least"])
    seconds, tokens = [], []
    for number in range(spec["rounds"] + 1):
        some = [tokenizer(row)["input_ids"] for row in rows[number * spec["prompts"] :][: spec["prompts"]]]
        began = time.perf_counter()
        rollouts = sample(policy, some, wanted, seed=number)
        seconds.append(time.perf_counter() - began)
        tokens.append(int(rollouts.response_mask.sum()))
    return {"seconds": seconds[1:], "tokens": tokens[1:]}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(given["result"]).write_text(json.dumps(main(given)), encoding="utf-8")
