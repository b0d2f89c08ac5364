"""The policy's log-probs: the same number whichever way the prompt is run, and whatever is padded."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from grpo.embedded import policy as policy_module
from grpo.embedded.choosing import Sampling
from grpo.embedded.policy import choose_device, choose_dtype
from grpo.embedded.rollout import sample
from grpo.engine import EngineError
from tests.embedded.conftest import ids


def _log_probs(policy, rollouts, *, shared: bool, entropy=None):
    policy._packs, policy._can_share_prompts = False, lambda: shared
    return policy.log_probs(
        rollouts.prompt_ids,
        rollouts.prompt_mask,
        rollouts.response_ids,
        rollouts.response_mask,
        temperature=1.0,
        entropy=entropy,
    )


@pytest.mark.slow
def test_running_a_prompt_once_for_its_group_changes_no_value_and_no_gradient(policy):
    rollouts = sample(policy, ids(policy, "1+2=?", "345+678=?"), Sampling(n=3, max_length=16), seed=4)
    mask, grads = rollouts.response_mask.bool(), []
    values = []
    for shared in (True, False):
        policy.model.zero_grad()
        log_probs, _ = _log_probs(policy, rollouts, shared=shared)
        log_probs[mask].sum().backward()
        values.append(log_probs[mask].detach())
        grads.append([weight.grad.clone() for weight in policy.model.parameters()])
    assert policy.model.get_input_embeddings().weight.grad.abs().max() > 0.1
    assert_close(values[0], values[1], atol=2e-5, rtol=1e-5)
    for one, other in zip(*grads, strict=True):
        assert_close(one, other, atol=2e-4, rtol=1e-4)


def test_padding_on_either_side_leaves_the_log_probs_of_a_plain_forward_pass(policy):
    rollouts = sample(policy, ids(policy, "1", "22222222+3=?"), Sampling(n=2, max_length=16), seed=7)
    ours, _ = _log_probs(policy, rollouts, shared=True)
    length = int(rollouts.response_mask[0].sum())
    sequence = torch.tensor([ids(policy, "1")[0] + rollouts.response_ids[0, :length].tolist()])
    plain = policy.model(sequence).logits.log_softmax(-1)[0, :-1].gather(1, sequence[0, 1:, None])[:, 0]
    assert_close(ours[0, :length], plain, atol=2e-5, rtol=1e-5)


def test_entropy_for_the_log_alone_carries_no_gradient(policy):
    rollouts = sample(policy, ids(policy, "1+2=?"), Sampling(n=2, max_length=8), seed=4)
    assert not _log_probs(policy, rollouts, shared=True, entropy="metric")[1].requires_grad
    assert _log_probs(policy, rollouts, shared=True, entropy="loss")[1].requires_grad
    assert _log_probs(policy, rollouts, shared=True)[1] is None


def test_precision_is_chosen_by_what_was_measured_and_not_by_a_flag(monkeypatch):
    cpu = torch.device("cpu")
    for bfloat16_seconds, expected in ((2.6e-1, torch.float32), (4.6e-4, torch.float32), (1.2e-4, torch.bfloat16)):
        seconds = {torch.float32: 1e-3, torch.bfloat16: bfloat16_seconds}
        monkeypatch.setattr(policy_module, "_product_seconds", lambda measured=seconds: measured)
        assert choose_dtype("auto", cpu) == expected
    assert choose_dtype("bfloat16", cpu) == torch.bfloat16  # what the user asked for is done, however slow


def test_the_device_that_was_asked_for_is_taken():
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(EngineError, match="--device gpu: this PyTorch reaches no such device"):
        choose_device("gpu")


def test_bfloat16_arithmetic_stays_close_and_keeps_float32_weights_and_gradients(policy):  # S0-32, S0-36
    rollouts = sample(policy, ids(policy, "1+2=?"), Sampling(n=4, max_length=8), seed=4)
    exact, _ = _log_probs(policy, rollouts, shared=True)
    policy.dtype = torch.bfloat16
    rough, _ = _log_probs(policy, rollouts, shared=True)
    assert rough.dtype == torch.float32
    difference = ((exact - rough) * rollouts.response_mask).abs().max()
    assert 1e-4 < difference < 0.5
    rough.sum().backward()
    assert all(weight.grad.dtype == weight.dtype == torch.float32 for weight in policy.model.parameters())


@pytest.mark.slow
def test_recomputed_activations_are_recomputed_and_change_no_gradient(policy):  # S0-35
    rollouts = sample(policy, ids(policy, "1+2=?", "33+4=?"), Sampling(n=2, max_length=12), seed=4)
    calls, grads = [], []
    policy.model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    for recompute in (False, True):
        if recompute:
            policy.recompute_activations()
        policy.model.zero_grad()
        calls.clear()
        log_probs, _ = policy.log_probs(
            rollouts.prompt_ids, rollouts.prompt_mask, rollouts.response_ids, rollouts.response_mask, temperature=1.0
        )
        forward = len(calls)
        (log_probs * rollouts.response_mask).sum().backward()
        assert len(calls) - forward == (1 if recompute else 0)
        grads.append([weight.grad.clone() for weight in policy.model.parameters()])
    calls.clear()
    again = sample(policy, ids(policy, "1+2=?", "33+4=?"), Sampling(n=2, max_length=12), seed=4)
    assert torch.equal(again.response_ids, rollouts.response_ids)  # sampling still has its cache
    for one, other in zip(*grads, strict=True):
        assert_close(one, other, atol=2e-4, rtol=1e-4)
