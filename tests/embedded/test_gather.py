"""Rewards shaped, batches joined, copies moved: the parts of a step, without a run around them."""

from __future__ import annotations

import torch
from torch import tensor
from torch.testing import assert_close

from grpo.embedded.choosing import Sampling
from grpo.embedded.copies import REFERENCE, frozen, move
from grpo.embedded.gather import joined, shaped
from grpo.embedded.rollout import sample
from grpo.embedded.settings import Shaping
from tests.embedded.conftest import ids, tiny_policy


def test_batches_joined_are_padded_alike_and_keep_their_groups():
    policy = tiny_policy()
    parts = [
        sample(policy, ids(policy, *texts), Sampling(n=2, max_length=length), seed=length)
        for texts, length in ((("1+2=?", "3"), 3), (("12+34=?",), 6))
    ]
    whole = joined(parts, pad_id=policy.pad_id)
    assert whole.uid.tolist() == [0, 0, 1, 1, 2, 2]
    assert whole.prompt_ids.shape == (3, 7)
    assert whole.prompt_ids[2].tolist() == ids(policy, "12+34=?")[0]
    assert whole.prompt_mask.sum(1).tolist() == [5, 1, 7]
    for rows, part in ((slice(0, 4), parts[0]), (slice(4, 6), parts[1])):
        width = part.response_ids.shape[1]
        for name in ("response_ids", "response_mask", "log_probs"):
            assert torch.equal(getattr(whole, name)[rows, :width], getattr(part, name))
        assert not whole.response_mask[rows, width:].any()


def test_a_reward_is_limited_first_and_then_pays_for_its_length():
    """S0-29, S0-41: limit 1, buffer 4 of 8 tokens."""
    shaping = Shaping(1.0, {"max_length": 8, "buffer": 4, "factor": 1.0}, normalize=False, mask_truncated=False)
    assert shaped([5.0, -5.0, 0.5, None], tensor([4, 6, 8, 8]), shaping) == [1.0, -1.5, -0.5, None]
    plain = Shaping(None, None, normalize=False, mask_truncated=False)
    assert shaped([5.0, None], tensor([4, 6]), plain) == [5.0, None]


def test_a_copy_moves_the_share_of_the_way_that_it_is_told():
    policy, other = tiny_policy(0), tiny_policy(1)
    mine = frozen(policy, REFERENCE, other.model)
    before = [weight.clone() for weight in mine.model.parameters()]
    move(mine, policy, share=0.25)
    for was, now, target in zip(before, mine.model.parameters(), policy.model.parameters(), strict=True):
        assert_close(now, 0.75 * was + 0.25 * target)
        assert not now.requires_grad
    move(mine, policy, share=1.0)
    assert all(torch.equal(a, b) for a, b in zip(mine.model.parameters(), policy.model.parameters(), strict=True))
