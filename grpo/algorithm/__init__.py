"""The maths of GRPO and its relatives as pure functions on tensors: rewards, advantages, losses, KL, aggregation.

Left out: sampling, the model, the optimizer, and every decision about settings. Nothing here reads a config, picks a
device, logs or writes. Numbers are verl 0.9.1's (tests/grpo/test_algorithm_equals_verl.py holds the two side by side).

Shapes
    B  responses in the batch (of one micro-batch where a function says so)
    G  groups in the batch, that is prompts
    R  response tokens, padded to one width
    N  tokens, flattened
    V  vocabulary
    uid            [B]     int    which group a response belongs to; any integers, in any order
    rewards        [B]     float  what compute_score returned
    token_rewards  [B, R]  float  the same at the last token of each response, less the KL of every token if it is due
    advantages     [B]     float  reward relative to what was expected; or [B, R] where tokens have their own
    log_prob, ...  [B, R]  float  of the tokens that were sampled
    response_mask  [B, R]  bool or 0/1; 1 where we train, stop token included
"""

from __future__ import annotations

from grpo.algorithm.advantages import (
    ADV_ESTIMATORS,
    WHITENED,
    advantages_of,
    discounted_returns,
    gdpo_advantages,
    gpg_advantages,
    group_advantages,
    opo_advantages,
    passk_advantages,
    rloo_advantages,
    whiten,
)
from grpo.algorithm.aggregation import LOSS_AGG_MODES, aggregate
from grpo.algorithm.groups import group_std, groups_with_signal, zero_std_fraction
from grpo.algorithm.kl import adapted_kl_coef, kl_penalty
from grpo.algorithm.objectives import (
    LOSS_MODES,
    cispo_loss,
    clipped_policy_loss,
    gpg_loss,
    gspo_loss,
    policy_loss,
    sapo_loss,
)
from grpo.algorithm.rewards import normalized, overlong_penalty, rewards_minus_kl, token_rewards
from grpo.algorithm.token_probs import entropy_of, log_probs_of

__all__ = [
    "ADV_ESTIMATORS",
    "LOSS_AGG_MODES",
    "LOSS_MODES",
    "WHITENED",
    "adapted_kl_coef",
    "advantages_of",
    "aggregate",
    "cispo_loss",
    "clipped_policy_loss",
    "discounted_returns",
    "entropy_of",
    "gdpo_advantages",
    "gpg_advantages",
    "gpg_loss",
    "group_advantages",
    "group_std",
    "groups_with_signal",
    "gspo_loss",
    "kl_penalty",
    "log_probs_of",
    "normalized",
    "opo_advantages",
    "overlong_penalty",
    "passk_advantages",
    "policy_loss",
    "rewards_minus_kl",
    "rloo_advantages",
    "sapo_loss",
    "token_rewards",
    "whiten",
    "zero_std_fraction",
]
