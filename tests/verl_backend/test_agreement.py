"""The same update by both engines: from the same weights, prompts, sampled responses and rewards to the same weights.

verl samples and updates; what it updated from is kept by observer.py inside its worker, and the embedded engine makes
the same update. That is what lets a run on a laptop tell about a run on a cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.algorithm import group_advantages
from grpo.embedded.models import make_policy
from grpo.embedded.passes import log_probs
from grpo.embedded.rollout import Rollouts
from grpo.embedded.update import Batch, Objective, mini_batches, update
from reward_funcs import load_reward
from tests.verl_backend.real import reward_file, tiny_model, train

pytestmark = pytest.mark.verl_full

N, LIMIT, LR = 4, 16, 1e-3
ENVIRONMENT = "+ray_kwargs.ray_init.runtime_env.env_vars"
GRPO = {"loss_agg_mode": "token-mean", "kl_loss_coef": 0.001, "norm_by_std": True, "epochs": 1}
DRGRPO = {"loss_agg_mode": "seq-mean-token-sum-norm", "kl_loss_coef": None, "norm_by_std": False, "epochs": 1}
# Two passes: in the first the policy is the reference and the KL is 0; in the second it counts, and ratios are clipped.
KL = {"loss_agg_mode": "token-mean", "kl_loss_coef": 0.5, "norm_by_std": True, "epochs": 2}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(GRPO, (), id="grpo"),
        pytest.param(DRGRPO, ("--recipe", "drgrpo"), id="drgrpo"),
        pytest.param(KL, ("--kl_coef", "0.5", "--ppo_epochs", "2"), id="kl-low_var_kl-in-two-passes"),
    ],
)
def test_one_update_changes_the_weights_alike_on_both_engines(in_folder: Path, settings: dict[str, Any], words):
    before = tiny_model(in_folder / "模型")
    seen = in_folder / "batch.pt"
    train(
        in_folder,
        *("--max_steps", "1", "trainer.val_before_train=false", "--dtype", "float32", *words),
        f'{ENVIRONMENT}.VERL_USE_EXTERNAL_MODULES="grpo.verl_backend.inside.cpu_platform,tests.verl_backend.observer"',
        f'{ENVIRONMENT}.OBSERVED="{seen}"',
    )
    batch = torch.load(seen, weights_only=True)
    model = AutoModelForCausalLM.from_pretrained(before)
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    after = _updated(model, AutoTokenizer.from_pretrained(before), batch, settings, reward_file(in_folder))
    theirs = AutoModelForCausalLM.from_pretrained(in_folder / "outputs" / "checkpoints" / "final").state_dict()

    ours_by = torch.cat([(after[name] - start[name]).flatten() for name in start])
    theirs_by = torch.cat([(theirs[name] - start[name]).flatten() for name in start])
    assert theirs_by.norm() > 0.1
    assert torch.cosine_similarity(ours_by, theirs_by, dim=0) > 0.9999
    assert (ours_by - theirs_by).norm() / theirs_by.norm() < 1e-3


def _updated(model: Any, tokenizer: Any, batch: dict[str, list], settings: dict[str, Any], reward: Path) -> dict:
    """The weights after the embedded engine's update on what verl's worker saw."""
    policy = make_policy(model, tokenizer, torch.device("cpu"), torch.float32)
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(batch["prompts"]):
        groups.setdefault(tuple(prompt.tolist()), []).append(row)
    assert {len(rows) for rows in groups.values()} == {N}  # verl hands them over as they were finished
    order = [row for rows in groups.values() for row in rows]
    responses = _padded(batch["responses"], order, torch.long)
    mask = _padded(batch["response_mask"], order, torch.long)
    texts = [
        tokenizer.decode(ids[kept.bool()], skip_special_tokens=True) for ids, kept in zip(responses, mask, strict=True)
    ]
    score = load_reward(str(reward))
    rewards = tensor([score("math_reasoning", text, "", {}).score for text in texts])
    uid = torch.arange(len(groups)).repeat_interleave(N)
    advantages = group_advantages(rewards, uid, norm_by_std=settings["norm_by_std"])
    theirs = _padded(batch["advantages"], order, torch.float32)
    torch.testing.assert_close(advantages[:, None] * mask, theirs, atol=1e-5, rtol=0)

    width = max(map(len, groups))
    prompt_ids = torch.full((len(groups), width), policy.pad_id)
    for row, prompt in enumerate(groups):
        prompt_ids[row, width - len(prompt) :] = tensor(prompt)
    prompt_mask = tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in groups])
    old = _padded(batch["old_log_probs"], order, torch.float32)
    rollouts = Rollouts(prompt_ids, prompt_mask, responses, mask, old, uid, torch.zeros(len(order), dtype=torch.bool))
    ours = log_probs(policy, rollouts, temperature=1.0, max_tokens=4096)
    torch.testing.assert_close(ours, old * mask, atol=1e-4, rtol=0)

    objective = Objective(
        loss_mode="vanilla",
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        clip_ratio_c=3.0,
        tau_pos=1.0,
        tau_neg=1.05,
        pg_loss_coef=1.0,
        loss_agg_mode=settings["loss_agg_mode"],
        loss_scale_factor=float(LIMIT) if settings["loss_agg_mode"].endswith("-norm") else None,
        entropy_coeff=0.0,
        calculate_entropy=True,
        kl_loss_coef=settings["kl_loss_coef"],
        kl_loss_type="low_var_kl",
        temperature=1.0,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.01)
    whole = Batch(rollouts, advantages, mask.float(), ours if settings["kl_loss_coef"] else None)
    for part in mini_batches(whole, size=len(groups), epochs=settings["epochs"], shuffle_seed=None):
        update(policy, optimizer, part, objective, clip_grad=1.0, max_tokens=4096)
    return model.state_dict()


def _padded(rows: list[torch.Tensor], order: list[int], dtype: torch.dtype) -> torch.Tensor:
    """[B, LIMIT], zeros behind the end."""
    out = torch.zeros(len(order), LIMIT, dtype=dtype)
    for at, row in enumerate(order):
        out[at, : len(rows[row])] = rows[row]
    return out
