"""A reward that fails on verl: its response trains nothing, its group's other responses are as if it were not there.

Through verl's own agent loop worker, replay buffer and advantages; only the queue between them is a dictionary here,
and nothing is generated.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from grpo.algorithm import group_advantages
from grpo.verl_backend.inside.scoring import scored
from grpo.verl_backend.settings.reward_settings import INSIDE
from reward_funcs import RewardError

# Three groups of four: one call fails, all fail, none fails. The text is the token's.
GROUPS = {"a": ["1", "0", "bad", "1"], "b": ["bad", "bad", "bad", "bad"], "c": ["1", "0", "0", "1"]}

WORKER = """
import asyncio, json, sys
import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from tensordict import TensorDict

store = {"train": {}}

class Queue:
    async def async_kv_put(self, key, partition_id, tag, fields=None):
        store[partition_id].setdefault(key, {}).update(tag=tag)
    async def async_kv_batch_put(self, keys, fields, tags, partition_id):
        for i, key in enumerate(keys):
            row = fields[i]
            store[partition_id][key] = {"tag": tags[i], "rm": row["rm_scores"], "mask": row["response_mask"]}
    def kv_list(self):
        return {name: {k: e["tag"] | ({} if "rm" in e else {"is_prompt": True, "global_steps": 1})
                       for k, e in part.items()} for name, part in store.items()}
    def kv_clear(self, partition_id, keys):
        for key in keys:
            store[partition_id].pop(key, None)

from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.trainer.ppo.reward import load_reward_manager
from verl.trainer.ppo.v1 import agent_loop_tq, replay_buffer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl import DataProto
agent_loop_tq.tq = replay_buffer.tq = Queue()

inside, file, groups = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"<eos>": 0, "0": 1, "1": 2, "bad": 3}, "0")), eos_token="<eos>")
config = OmegaConf.create({
    "data": {"max_response_length": 2}, "trainer": {"experiment_name": "e"},
    "actor_rollout_ref": {"rollout": {"n": 4, "val_kwargs": {"n": 1}}},
    "reward": {"num_workers": 1, "custom_reward_function": {
                   "path": inside + "/reward.py", "name": "compute_score",
                   "reward_kwargs": {"reward": json.dumps({"file": file}), "calls_folder": None}},
               "reward_manager": {"source": "importlib", "name": "naive",
                                  "module": {"path": inside + "/reward_manager.py", "name": None}}}})
class Handle:  # as Ray's: awaited, it gives the result or raises
    class compute_score:
        remote = staticmethod(lambda data: judges[0].run_single(data))

class Worker(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    def __init__(self):
        self.config, self.processor, self.distillation_enabled = config, None, False
        self.reward_loop_worker_handles = [Handle()]
    def _get_mm_processor_kwargs(self, audios):
        return {}
    async def _run_agent_loop(self, sampling_params, *, trajectory, trace, session_id, texts, **kwargs):
        ids = [tokenizer.convert_tokens_to_ids(texts[session_id]), 0]
        output = AgentLoopOutput(prompt_ids=[1], response_ids=ids, response_mask=[1, 1], num_turns=2,
                                 metrics=AgentLoopMetrics(), extra_fields={})
        await self._agent_loop_postprocess(output, False, session_id=session_id, **kwargs)

judges = []

async def roll():
    judges.append(load_reward_manager(config, tokenizer))
    for uid, texts in groups.items():
        prompt = {"uid": uid, "texts": texts, "data_source": "qa", "global_steps": 1,
                  "raw_prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "1"},
                  "extra_info": {"index": 0, "split": "train"}}
        await Worker()._run_prompt(prompt, {}, trajectory={"validate": False})
asyncio.run(roll())

status = {key: entry["tag"]["status"] for key, entry in store["train"].items() if "rm" not in entry}
buffer = replay_buffer.ReplayBuffer("sync", OmegaConf.create({}), None, "drop", OmegaConf.create({}))
kept = dict(store["train"])
batch, _ = buffer.sample(1, "train", len(groups))
keys = sorted(batch.keys)
data = DataProto(TensorDict({
    "token_level_rewards": torch.stack([kept[k]["rm"] for k in keys]),
    "response_mask": torch.stack([kept[k]["mask"] for k in keys])}, batch_size=len(keys)),
    {"uid": np.array([k.split("_")[0] for k in keys], dtype=object)})
out = compute_advantage_for_multi_trajectories(data, keys, "grpo", config=OmegaConf.create({}))
rows = {k: out.batch["advantages"][i].tolist() for i, k in enumerate(keys)}
print("RESULT " + json.dumps({"status": status, "advantages": rows}))
"""


@pytest.mark.verl
def test_an_errored_response_moves_nothing_and_its_peers_are_as_without_it(
    tmp_path: Path, missing: Callable[[str], NoReturn]
):
    # Issue: on verl, whose reward return has no mask, the errored response has no advantage, and its peers' unchanged.
    from grpo.verl_backend.installation.environment import find_environment

    verl = find_environment("cpu")
    if verl is None:
        missing("verl's CPU environment; ./train.sh setup --engine verl --device cpu makes it")
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(solution_str):\n    return float(solution_str)\n", encoding="utf-8")
    done = subprocess.run(
        [verl.python, "-c", WORKER, INSIDE, file, json.dumps(GROUPS)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(line.removeprefix("RESULT "))
    assert found["status"] == {"a": "failure", "b": "failure", "c": "finished"}
    advantages = found["advantages"]
    # a: 1, 0, 1 have mean 2/3 and deviation sqrt(1/3); the third response is in no batch, so no token of it has a
    # gradient. b: nothing is left of the group. c: mean 1/2, deviation sqrt(1/3).
    up, down, half = (1 / 3) / math.sqrt(1 / 3), (-2 / 3) / math.sqrt(1 / 3), 0.5 / math.sqrt(1 / 3)
    expected = {"a_0_0": up, "a_1_0": down, "a_3_0": up, "c_0_0": half, "c_1_0": -half, "c_2_0": -half, "c_3_0": half}
    assert advantages.keys() == expected.keys()
    for key, value in expected.items():
        assert advantages[key] == pytest.approx([value, value], abs=1e-5)
    # the same numbers as the embedded engine's, which leaves the response out of its group's statistics
    ours = group_advantages(torch.tensor([1.0, 0.0, 1.0]), torch.zeros(3, dtype=torch.int64), norm_by_std=True)
    assert ours.tolist() == pytest.approx([advantages[f"a_{k}_0"][0] for k in (0, 1, 3)], abs=1e-6)


@pytest.mark.slow
def test_a_reward_of_lists_gets_lists_of_one_response_and_a_failure_is_that_response_s(tmp_path: Path):
    # verl asks for one response at a time: TRL's shape is called with lists of one, as docs/rewards.md says
    file = tmp_path / "reward.py"
    file.write_text(
        "def lengths(completions, ground_truth, prompts, **columns):\n"
        "    assert len(completions) == len(ground_truth) == len(prompts) == len(columns['level']) == 1\n"
        "    if completions[0] == 'no':\n"
        "        return [None]\n"
        "    return [float(len(completions[0])) + columns['level'][0]]\n",
        encoding="utf-8",
    )
    reward = json.dumps({"file": str(file), "name": "lengths"})

    def score(text: str) -> dict[str, float]:
        info = {"index": 3, "columns": '{"level": 10}'}
        return scored(("qa", text, "truth", info), reward=reward, folder=None, failed="drop")

    assert [score(text) for text in ("", "ab", "abcd")] == [{"score": 10.0}, {"score": 12.0}, {"score": 14.0}]
    with pytest.raises(RewardError, match=r"record 3 gets no reward .* gave None: it does not apply"):
        score("no")
