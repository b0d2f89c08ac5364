"""Advantages: how much better a response, or a token of it, was than expected. One function for each estimator.

Left out: what becomes of a reward before (rewards.py), and the loss (objectives.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpo.algorithm.groups import statistics_of


def group_advantages(
    rewards: Tensor, uid: Tensor, *, norm_by_std: bool, biased: bool = False, eps: float = 1e-6
) -> Tensor:
    """How far each response is above its own group's mean. rewards, uid: [B]; returns [B].

    norm_by_std: divide by the group's standard deviation (GRPO, arXiv 2402.03300, section 4.1.2); without it, DrGRPO
    (arXiv 2503.20783). Same numbers as verl's `compute_grpo_outcome_advantage`: unbiased deviation, `eps` added outside
    the root, and a group of one has mean 0 and deviation 1, so its advantage is its reward. The launcher refuses
    rollout.n = 1, because that last case is plain REINFORCE and not GRPO.
    biased: the deviation with 1/G instead, which verl does not have.
    """
    group, size, mean, std = statistics_of(rewards, uid, biased=biased)
    alone = size == 1
    centered = rewards - mean.masked_fill(alone, 0.0)[group]
    return centered / (std.masked_fill(alone, 1.0)[group] + eps) if norm_by_std else centered


def rloo_advantages(rewards: Tensor, uid: Tensor) -> Tensor:
    """The reward less the mean of the group's other rewards. rewards, uid: [B]; returns [B].

    RLOO (arXiv 2402.14740): with n responses, n / (n - 1) times the distance to the group's mean. Same
    numbers as verl's `compute_rloo_outcome_advantage`; a group of one keeps its reward.
    """
    group, size, mean, _ = statistics_of(rewards, uid)
    alone = size == 1
    others = torch.where(alone, 1.0, size / (size - 1).clamp(min=1))
    return (rewards - mean.masked_fill(alone, 0.0)[group]) * others[group].to(rewards.dtype)


def opo_advantages(rewards: Tensor, uid: Tensor, lengths: Tensor) -> Tensor:
    """The reward less the group's mean weighted by length. rewards, uid, lengths: [B]; returns [B].

    OPO (arXiv 2505.23585): the baseline of least variance when the gradient grows with the length. Same
    numbers as verl's `compute_opo_outcome_advantage`; a group of one keeps its reward.
    """
    _, group, size = uid.unique(return_inverse=True, return_counts=True)
    zeros = rewards.new_zeros(len(size))
    weights = lengths.to(rewards.dtype)
    baseline = zeros.index_add(0, group, weights * rewards) / zeros.index_add(0, group, weights)
    return rewards - baseline.masked_fill(size == 1, 0.0)[group]


def gpg_advantages(rewards: Tensor, uid: Tensor) -> Tensor:
    """The distance to the group's mean, times B over the number of rewards that are not 0. [B]; returns [B].

    GPG (arXiv 2504.02546): responses that earned nothing are not to make the gradient small. Same numbers as verl's
    `compute_gpg_outcome_advantage`, which counts rewards other than 0; the paper counts responses in groups with a
    signal.
    """
    scale = len(rewards) / torch.count_nonzero(rewards).clamp(min=1)
    return scale * group_advantages(rewards, uid, norm_by_std=False)


def passk_advantages(
    rewards: Tensor, uid: Tensor, *, norm_by_std: bool, biased: bool = False, eps: float = 1e-6
) -> Tensor:
    """Only the best of a group: its distance to the second best. rewards, uid: [B]; returns [B].

    Pass@k (arXiv 2503.19595): what this response adds to the best of k. Same numbers as verl's
    `compute_grpo_passk_outcome_advantage`, divided by the group's deviation where norm_by_std. Groups of two or more;
    verl refuses a group of one, here its advantage is 0.
    """
    group, size, _, std = statistics_of(rewards, uid, biased=biased)
    advantages = torch.zeros_like(rewards)
    for number in range(len(size)):
        mine = (group == number).nonzero().squeeze(1)
        if len(mine) > 1:
            (first, second), order = rewards[mine].topk(2)
            advantages[mine[order[0]]] = (first - second) / (std[number] + eps if norm_by_std else 1.0)
    return advantages


def gdpo_advantages(
    parts: Tensor, uid: Tensor, *, weights: Sequence[float] | None, norm_by_std: bool, biased: bool = False
) -> Tensor:
    """Each part of the reward compared within the group by itself, then added up. parts: [B, K]; returns [B].

    GDPO (arXiv 2601.05242): the sum of the parts would give different mixes of them the same advantage. Whitening over
    the batch, its last step, is `whiten`. weights: of the K parts, None = 1 each. NaN: a part that a response does not
    have; it is left out, and where one response alone has it, it says nothing. With a group of one as
    `group_advantages` has it. Same numbers as verl's `compute_gdpo_outcome_advantage` before it whitens.
    """
    total = parts.new_zeros(len(parts))
    _, group, size = uid.unique(return_inverse=True, return_counts=True)
    for column, weight in zip(parts.unbind(1), weights or [1.0] * parts.shape[1], strict=True):
        there = ~column.isnan()
        have = there.new_zeros(len(size), dtype=torch.long).index_add(0, group, there.long())
        there &= ((have > 1) | (size == 1))[group]
        if there.any():
            mine = group_advantages(column[there], uid[there], norm_by_std=norm_by_std, biased=biased)
            total[there] += weight * mine
    return total


def discounted_returns(token_rewards: Tensor, response_mask: Tensor, *, gamma: float) -> Tensor:
    """What is still to come at each token: its reward and gamma times what follows. All [B, R].

    REINFORCE++ (arXiv 2501.03262) with the KL of every token in its reward. A token outside the mask, in the middle of
    a response, passes on what follows. Same numbers as the returns of verl's
    `compute_reinforce_plus_plus_outcome_advantage`.
    """
    mask = response_mask.bool()
    returns = torch.zeros_like(token_rewards)
    following = token_rewards.new_zeros(len(token_rewards))
    for t in reversed(range(token_rewards.shape[1])):
        following = torch.where(mask[:, t], token_rewards[:, t] + gamma * following, following)
        returns[:, t] = torch.where(mask[:, t], following, 0.0)
    return returns


def whiten(values: Tensor, response_mask: Tensor) -> Tensor:
    """Less their mean and divided by their deviation, over all tokens of the batch; 0 outside the mask. All [B, R].

    Same numbers as verl's `masked_whiten`: unbiased variance, 1e-8 inside the root. A single token becomes 0.
    """
    mask = response_mask.bool()
    count = mask.sum()
    mean = torch.where(mask, values, 0.0).sum() / count.clamp(min=1)
    centered = torch.where(mask, values - mean, 0.0)
    variance = centered.square().sum() / (count - 1).clamp(min=1)
    return centered * torch.rsqrt(variance + 1e-8)


def _of_responses(rewards: Tensor, uid: Tensor, lengths: Tensor, **how: bool) -> dict[str, Callable[[], Tensor]]:
    """Estimator -> its advantages of whole responses [B]."""

    def grpo() -> Tensor:
        return group_advantages(rewards, uid, **how)

    return {
        "grpo": grpo,
        "grpo_vectorized": grpo,
        "grpo_passk": lambda: passk_advantages(rewards, uid, **how),
        "rloo": lambda: rloo_advantages(rewards, uid),
        "rloo_vectorized": lambda: rloo_advantages(rewards, uid),
        "opo": lambda: opo_advantages(rewards, uid, lengths),
        "gpg": lambda: gpg_advantages(rewards, uid),
        "reinforce_plus_plus_baseline": lambda: group_advantages(rewards, uid, norm_by_std=False),
    }


ADV_ESTIMATORS = (
    *("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg"),
    *("reinforce_plus_plus_baseline", "gdpo", "reinforce_plus_plus"),
)
# Those that end with whitening over the batch.
WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo")


def advantages_of(
    token_rewards: Tensor,
    response_mask: Tensor,
    uid: Tensor,
    *,
    estimator: str,
    norm_by_std: bool,
    biased: bool = False,
    gamma: float = 1.0,
    normalize: bool | None = None,
    parts: Tensor | None = None,
    part_weights: Sequence[float] | None = None,
) -> Tensor:
    """The advantage of every token by one of ADV_ESTIMATORS. token_rewards: [B, R]; returns [B, R], 0 outside the mask.

    gamma:      the discount of reinforce_plus_plus
    normalize:  whiten over the batch at the end; None = where the estimator does so by itself (WHITENED)
    parts:      [B, K], of gdpo, which reads no token_rewards
    Raises ValueError for an unknown estimator or missing parts.
    """
    mask = response_mask.bool()
    if estimator == "reinforce_plus_plus":
        advantages = discounted_returns(token_rewards, mask, gamma=gamma)
    else:
        how = {"norm_by_std": norm_by_std, "biased": biased}
        of_responses = _of_responses(torch.where(mask, token_rewards, 0.0).sum(-1), uid, mask.sum(-1), **how)
        if estimator == "gdpo" and parts is not None:
            mine = gdpo_advantages(parts, uid, weights=part_weights, **how)
        elif estimator in of_responses:
            mine = of_responses[estimator]()
        else:
            known = ", ".join(ADV_ESTIMATORS)
            raise ValueError(f"unknown estimator {estimator!r}, or gdpo without parts; one of {known}")
        advantages = torch.where(mask, mine[:, None], 0.0)
    whitened = estimator in WHITENED if normalize is None else normalize
    return whiten(advantages, mask) if whitened else advantages
