"""Sampling alone by vLLM, for bench/compare.py, in verl's environment. Imports nothing of ours.

python bench/peer_vllm.py SPEC.json      {"model", "data", "prompts", "n", "tokens", "least", "rounds", "result"}
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds and response tokens of each round over other prompts; the first one warms up."""
    rows = [row["prompt"] for row in json.loads(Path(spec["data"]).read_text(encoding="utf-8"))]
    engine = LLM(spec["model"], dtype="float32", max_model_len=2048, enforce_eager=spec["eager"], seed=1)
    wanted = SamplingParams(n=spec["n"], temperature=1.0, max_tokens=spec["tokens"], min_tokens=spec["least"])
    seconds, tokens = [], []
    for number in range(spec["rounds"] + 1):
        some = rows[number * spec["prompts"] :][: spec["prompts"]]
        began = time.perf_counter()
        outputs = engine.generate(some, wanted, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
        tokens.append(sum(len(answer.token_ids) for output in outputs for answer in output.outputs))
    return {"seconds": seconds[1:], "tokens": tokens[1:]}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(given["result"]).write_text(json.dumps(main(given)), encoding="utf-8")
