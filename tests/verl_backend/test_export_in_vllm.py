"""What ./train.sh export makes of a run says in vLLM what it says in plain transformers. For `make test-verl-full`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from grpo.__main__ import main
from grpo.verl_backend.installation.environment import find_environment
from tests.verl_backend.real import tiny_model

pytestmark = pytest.mark.verl_full

PROMPTS = [[5, 60, 7, 80, 9, 10], [40, 41, 42], list(range(30, 50))]
TOKENS = 16
IN_VLLM = """
import json, sys

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    prompts, tokens = json.loads(sys.argv[2])
    model = LLM(model=sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=128, disable_log_stats=True)
    greedy = SamplingParams(temperature=0, max_tokens=tokens, logprobs=1, ignore_eos=True)
    outs = model.generate([{"prompt_token_ids": ids} for ids in prompts], greedy, use_tqdm=False)
    found = [(list(out.outputs[0].token_ids), [
        at[token].logprob for at, token in zip(out.outputs[0].logprobs, out.outputs[0].token_ids)]) for out in outs]
    print("FOUND" + json.dumps(found))
"""


@torch.no_grad()
def greedy(folder: Path, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Token by token, by the whole sequence each time: no cache of ours or of theirs is in it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids, log_probs = list(prompt), []
    for _ in range(TOKENS):
        last = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        ids.append(int(last.argmax()))
        log_probs.append(float(last.max()))
    return ids[len(prompt) :], log_probs


def test_a_merged_adapter_says_in_vllm_what_it_says_in_transformers(
    in_folder: Path, missing: Callable[[str], NoReturn]
):
    environment = find_environment("cpu")
    if environment is None:
        missing("real vLLM needs `./train.sh setup --engine verl --device cpu`")
    from grpo.embedded.adapter import Lora, attach, matrices, save
    from grpo.embedded.models import read_model, read_tokenizer

    base = tiny_model(in_folder / "base")
    adapted = attach(read_model(str(base)), Lora(4, 16, "all-linear", str(base)), seed=1)
    for name, weight in matrices(adapted).items():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    step = in_folder / "outputs" / "checkpoints" / "global_step_3"
    save(adapted, step)
    read_tokenizer(str(base)).save_pretrained(step)
    assert main(["export", "--from", "3", "--to", "merged"]) == 0
    Path("in_vllm.py").write_text(IN_VLLM)
    done = subprocess.run(
        [environment.program, "in_vllm.py", "merged", json.dumps([PROMPTS, TOKENS])],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    for prompt, (tokens, log_probs) in zip(PROMPTS, json.loads(line.removeprefix("FOUND")), strict=True):
        want_tokens, want = greedy(Path("merged"), prompt)
        assert tokens == want_tokens
        assert log_probs == pytest.approx(want, abs=1e-3)
        assert greedy(base, prompt)[0] != want_tokens  # the adapter is in it
