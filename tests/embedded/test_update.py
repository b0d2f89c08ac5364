"""The update: gradients know neither micro-batches nor padding, and a bad update is never made."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from grpo.embedded import update as update_module
from grpo.embedded.choosing import Sampling
from grpo.embedded.passes import micro_batches
from grpo.embedded.rollout import sample
from grpo.embedded.update import Batch, Objective, learning_rate, mini_batches, update
from grpo.engine import EngineError
from tests.embedded.conftest import ids, tiny_policy

OBJECTIVE = Objective(
    loss_mode="vanilla",
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
    clip_ratio_c=3.0,
    tau_pos=1.0,
    tau_neg=1.05,
    pg_loss_coef=1.0,
    loss_agg_mode="token-mean",
    loss_scale_factor=None,
    entropy_coeff=0.01,
    calculate_entropy=True,
    kl_loss_coef=0.1,
    kl_loss_type="low_var_kl",
    temperature=1.0,
)
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def _batch(policy, n=4, on_policy=False) -> Batch:
    rollouts = sample(policy, ids(policy, "1+2=?", "33+44=?", "5", "6+7=?"), Sampling(n=n, max_length=20), seed=1)
    advantages = torch.linspace(-1.5, 1.5, len(rollouts.uid))
    reference = rollouts.log_probs - 0.1 * rollouts.response_mask
    return Batch(rollouts, advantages, rollouts.response_mask.clone(), reference, on_policy)


def _gradients(policy, batch, objective=OBJECTIVE, **cut):
    sgd = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    stats = update(policy, sgd, batch, objective, **{"max_tokens": 10_000, "clip_grad": 1e9, **cut})
    return [weight.grad.clone() for weight in policy.model.parameters()], stats


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_gradients_do_not_depend_on_the_cut_into_micro_batches(policy, mode):
    objective = Objective(**{**OBJECTIVE.__dict__, "loss_agg_mode": mode})
    whole, stats = _gradients(policy, _batch(policy), objective)
    for cut in ({"max_tokens": 60}, {"max_tokens": 1}, {"max_rows": 4}, {"max_rows": 3}):
        parts, part_stats = _gradients(policy, _batch(policy), objective, **cut)
        for one, other in zip(whole, parts, strict=True):
            assert_close(one, other, atol=3e-5 * float(one.abs().max()) + 1e-7, rtol=1e-3)
        for name, value in stats.items():
            assert part_stats[name] == pytest.approx(value, rel=1e-3, abs=5e-5), name


@pytest.mark.slow
def test_gradients_do_not_depend_on_padding(policy):
    batch = _batch(policy)
    tight, _ = _gradients(policy, batch)
    for name in ("response_ids", "response_mask", "log_probs"):
        matrix = getattr(batch.rollouts, name)
        filler = torch.full((len(matrix), 5), 3 if name == "response_ids" else 0, dtype=matrix.dtype)
        setattr(batch.rollouts, name, torch.cat([matrix, filler], 1))
    batch.mask = torch.nn.functional.pad(batch.mask, (0, 5))
    assert batch.ref_log_probs is not None
    batch.ref_log_probs = torch.nn.functional.pad(batch.ref_log_probs, (0, 5))
    for one, other in zip(tight, _gradients(policy, batch)[0], strict=True):
        assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_every_cut_holds_whole_groups_or_a_part_of_one(policy):
    rollouts = _batch(policy).rollouts
    for max_tokens, max_rows in ((60, None), (10**6, 3)):
        pieces = micro_batches(rollouts, max_tokens=max_tokens, max_rows=max_rows)
        assert torch.cat(pieces).tolist() == list(range(16))
        assert len(pieces) > 1
        for rows in pieces:
            _, counts = (rows // 4).unique_consecutive(return_counts=True)
            assert len(counts.unique()) == 1
            if max_rows:
                assert len(rows) <= 3


@pytest.mark.slow
def test_a_masked_response_teaches_nothing(policy):
    batch = _batch(policy)
    batch.mask[:4] = 0  # the rewards of the first group failed
    masked, stats = _gradients(policy, batch)
    rest = batch.select(torch.arange(4, 16))
    alone, _ = _gradients(policy, rest)
    for one, other in zip(masked, alone, strict=True):
        assert_close(one, other, atol=2e-6, rtol=1e-3)
    assert stats["policy_loss"] != 0


@pytest.mark.slow
def test_one_update_per_batch_has_ratio_one_and_clips_nothing(policy):  # S4-10
    batch = _batch(policy)
    (only,) = mini_batches(batch, size=4, epochs=1, shuffle_seed=None)
    _, stats = _gradients(policy, only)
    assert stats["clip_fraction"] == 0.0
    assert stats["ppo_kl"] == 0.0
    # ratio 1: the policy loss is minus the advantages, averaged over tokens
    expected = -(batch.advantages[:, None] * batch.mask).sum() / batch.mask.sum()
    assert stats["policy_loss"] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.slow
def test_a_second_pass_measures_against_the_log_probs_of_sampling(policy):  # S4-10, S0-22
    batch, sgd = _batch(policy), None
    stats = []
    sgd = torch.optim.SGD(policy.model.parameters(), lr=0.05)
    for part in mini_batches(batch, size=2, epochs=2, shuffle_seed=3):
        stats.append(update(policy, sgd, part, OBJECTIVE, clip_grad=1.0, max_tokens=10_000))
    assert len(stats) == 4  # two mini-batches, twice
    assert abs(stats[0]["ppo_kl"]) < 1e-5
    assert abs(stats[-1]["ppo_kl"]) > 1e-3
    assert stats[-1]["clip_fraction"] > 0


@pytest.mark.slow
def test_a_weight_without_a_gradient_stops_the_run_by_name(policy):  # S1-31
    policy.model.register_parameter("forgotten", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(EngineError, match=r"1 trained weights got no gradient, first forgotten"):
        _gradients(policy, _batch(policy))


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_not_made(policy):
    batch = _batch(policy)
    batch.advantages[3] = float("inf")
    before = [weight.clone() for weight in policy.model.parameters()]
    with pytest.raises(EngineError, match="not finite"):
        update(
            policy, torch.optim.SGD(policy.model.parameters(), lr=1.0), batch, OBJECTIVE, clip_grad=1.0, max_tokens=999
        )
    assert all(torch.equal(one, other) for one, other in zip(before, policy.model.parameters(), strict=True))


def test_the_good_response_becomes_likelier_and_the_bad_one_less():  # S2-29
    policy = tiny_policy(seed=3)
    rollouts = sample(policy, ids(policy, "1+2=?"), Sampling(n=2, max_length=6), seed=1)
    batch = Batch(rollouts, torch.tensor([1.0, -1.0]), rollouts.response_mask, None, on_policy=True)
    objective = Objective(**{**OBJECTIVE.__dict__, "kl_loss_coef": None, "entropy_coeff": 0.0})
    update(policy, torch.optim.SGD(policy.model.parameters(), lr=0.01), batch, objective, clip_grad=1.0, max_tokens=999)
    after, _ = policy.log_probs(
        rollouts.prompt_ids, rollouts.prompt_mask, rollouts.response_ids, rollouts.response_mask, temperature=1.0
    )
    change = ((after - rollouts.log_probs) * rollouts.response_mask).sum(1)
    assert change[0] > 0.01
    assert change[1] < -0.01


PLAIN = Objective(**{**OBJECTIVE.__dict__, "kl_loss_coef": None, "entropy_coeff": 0.0, "calculate_entropy": False})
WITH_ENTROPY = Objective(**{**PLAIN.__dict__, "calculate_entropy": True})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "on_policy", "passes"),  # prompts and responses of each
    [
        (PLAIN, True, [1 + 3]),  # the second prompt's group, less its response without advantage
        (WITH_ENTROPY, True, [1 + 4, 3 + 12]),  # one with gradients, one without
        (PLAIN, False, [1 + 4, 3 + 12]),
        (OBJECTIVE, True, [4 + 16]),  # the reference pulls at all of them
    ],
)
def test_responses_without_advantage_are_left_out_where_that_changes_nothing(
    policy, monkeypatch, objective, on_policy, passes
):
    batch = _batch(policy, on_policy=on_policy)
    batch.advantages = torch.zeros(16)
    batch.advantages[4:8] = torch.tensor([1.0, 0.0, -2.0, 1.0])
    rows = []
    log_probs = policy.log_probs

    def noting(prompt_ids, prompt_mask, response_ids, response_mask, **more):
        rows.append(len(prompt_ids) + int(response_mask.any(1).sum()))
        return log_probs(prompt_ids, prompt_mask, response_ids, response_mask, **more)

    policy.log_probs = noting
    grads, stats = _gradients(policy, batch, objective)
    counted = [*rows]
    monkeypatch.setattr(update_module, "cut_by_need", lambda batch, objective: (batch, None))
    every_grad, every_stat = _gradients(policy, batch, objective)
    assert rows[len(counted) :] == [20]
    assert counted == passes
    for one, other in zip(grads, every_grad, strict=True):
        assert_close(one, other, atol=1e-5 * float(other.abs().max()) + 1e-9, rtol=0)
    assert stats.keys() == every_stat.keys()
    for name, value in every_stat.items():
        assert stats[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


@pytest.mark.slow
def test_with_no_advantage_at_all_the_optimizer_still_goes_on_from_its_moments(monkeypatch):
    weights = []
    for skips in (True, False):
        if not skips:
            monkeypatch.setattr(update_module, "cut_by_need", lambda batch, objective: (batch, None))
        policy = tiny_policy()
        adam = torch.optim.AdamW(policy.trained(), lr=1e-3)
        for advantages in (torch.linspace(-1, 1, 16), torch.zeros(16)):
            batch = _batch(policy, on_policy=True)
            batch.advantages = advantages
            before = [weight.clone() for weight in policy.trained()]
            stats = update(policy, adam, batch, PLAIN, clip_grad=1.0, max_tokens=10_000)
        assert stats["grad_norm"] == 0.0
        weights.append([(weight - old).detach() for weight, old in zip(policy.trained(), before, strict=True)])
    assert max(float(change.abs().max()) for change in weights[0]) > 1e-4
    for one, other in zip(*weights, strict=True):
        assert_close(one, other, atol=1e-7, rtol=0)


@pytest.mark.slow
def test_a_gradient_is_cut_to_the_norm_that_clip_grad_names_and_never_stretched(policy):
    whole, stats = _gradients(policy, _batch(policy))
    for most in (0.5 * stats["grad_norm"], 2 * stats["grad_norm"]):
        cut, after = _gradients(policy, _batch(policy), clip_grad=most)
        assert after["grad_norm"] == pytest.approx(stats["grad_norm"])  # what it was before
        for one, other in zip(whole, cut, strict=True):
            assert_close(other, one * min(1.0, most / stats["grad_norm"]), rtol=1e-4, atol=1e-7)


def test_micro_batches_of_a_packed_row_count_no_padding(policy):
    rollouts = _batch(policy).rollouts
    tokens = rollouts.prompt_mask.sum() + rollouts.response_mask.sum()
    assert len(micro_batches(rollouts, max_tokens=int(tokens), max_rows=None, packed=True)) == 1
    assert len(micro_batches(rollouts, max_tokens=int(tokens), max_rows=None)) > 1
    assert len(micro_batches(rollouts, max_tokens=int(tokens) - 1, max_rows=None, packed=True)) == 2


def test_learning_rates_worked_by_hand():  # S0-24
    rates = [learning_rate(s, lr=1.0, kind="constant", warmup=4, total=10, min_ratio=0.0) for s in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = [learning_rate(s, lr=1.0, kind="cosine", warmup=0, total=4, min_ratio=0.2) for s in (0, 2, 4)]
    assert cosine == pytest.approx([1.0, 0.6, 0.2])
