"""Sampling: what it records is what the model says, and nothing but (seed, prompt, number) decides what comes out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from grpo.embedded.choosing import Sampling, _draw, _filter, choose
from grpo.embedded.passes import log_probs
from grpo.embedded.rollout import sample
from tests.embedded.conftest import ids, tiny_policy

SAMPLING = Sampling(n=4, max_length=24)
PROMPTS = ("1+2=?", "33+44=?", "5", "6+7+8+9=?")


@pytest.mark.slow
def test_recorded_log_probs_are_those_of_the_model_at_the_sampling_temperature(policy):  # S4-12
    for temperature in (1.0, 0.7):
        rollouts = sample(policy, ids(policy, *PROMPTS), replace(SAMPLING, temperature=temperature), seed=1)
        again = log_probs(policy, rollouts, temperature=temperature, max_tokens=10_000)
        assert_close(again, rollouts.log_probs * rollouts.response_mask, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_a_response_depends_neither_on_chunks_nor_on_the_company_it_is_sampled_in(policy):
    together = sample(policy, ids(policy, *PROMPTS), SAMPLING, seed=5)
    one_by_one = sample(policy, ids(policy, *PROMPTS), SAMPLING, seed=5, max_rows=4)
    assert torch.equal(together.response_ids, one_by_one.response_ids)
    assert torch.equal(together.response_mask, one_by_one.response_mask)


@pytest.mark.slow
def test_the_same_seed_repeats_and_another_one_does_not(policy):  # S0-20
    first, again, other = (sample(policy, ids(policy, *PROMPTS), SAMPLING, seed=s) for s in (3, 3, 4))
    assert torch.equal(first.response_ids, again.response_ids)
    assert not torch.equal(first.response_ids[:, :4], other.response_ids[:, :4])


@pytest.mark.slow
def test_the_mask_ends_with_the_stop_token_and_what_was_cut_has_none(policy):
    rollouts = sample(policy, ids(policy, *PROMPTS), replace(SAMPLING, n=16), seed=2)
    stop = policy.stop_ids[0]
    lengths = rollouts.response_mask.sum(1)
    assert 0 < rollouts.truncated.sum() < len(lengths)  # both kinds are there
    for row, length, cut in zip(rollouts.response_ids, lengths.tolist(), rollouts.truncated.tolist(), strict=True):
        assert (row[:length] == stop).sum() == (0 if cut else 1)
        assert cut == (length == SAMPLING.max_length and row[length - 1] != stop)
        assert (row[length:] == policy.pad_id).all()


@pytest.mark.slow
def test_greedy_is_what_transformers_generates(policy):
    prompt = ids(policy, "12+34=?")
    ours = sample(policy, prompt, Sampling(n=1, max_length=20, temperature=0.0), seed=0)
    theirs = policy.model.generate(torch.tensor(prompt), max_new_tokens=20, do_sample=False, pad_token_id=policy.pad_id)
    length = int(ours.response_mask.sum())
    assert ours.response_ids[0, :length].tolist() == theirs[0, len(prompt[0]) :].tolist()[:length]


@pytest.mark.slow
def test_top_k_of_one_is_greedy(policy):  # S0-18
    greedy = sample(policy, ids(policy, *PROMPTS), replace(SAMPLING, temperature=0.0), seed=0)
    top_one = sample(policy, ids(policy, *PROMPTS), replace(SAMPLING, top_k=1), seed=9)
    assert torch.equal(greedy.response_ids, top_one.response_ids)


@pytest.mark.slow
def test_no_response_ends_before_its_minimum_length(policy):  # S0-16
    rollouts = sample(policy, ids(policy, *PROMPTS), replace(SAMPLING, n=16, min_length=7), seed=2)
    lengths = rollouts.response_mask.sum(1)
    assert lengths.min() >= 8  # seven tokens, then at the earliest the stop token
    assert (lengths < 24).any()


def test_top_p_keeps_the_smallest_set_that_holds_it():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    kept = _filter(logits, 0.7, -1).softmax(1)
    assert_close(kept, torch.tensor([[0.625, 0.375, 0.0, 0.0]]))  # 0.5 alone is not 0.7, 0.5 + 0.3 is
    assert_close(_filter(logits, 0.4, -1).softmax(1), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    assert_close(_filter(logits, 1.0, 3).softmax(1)[0, 3], torch.tensor(0.0))


def test_a_token_is_drawn_as_often_as_its_probability_says():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(100_000, 4)
    uniform = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    share = torch.bincount(_draw(logits, uniform), minlength=4) / 100_000
    assert_close(share, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.005, rtol=0)


def test_a_token_that_was_ruled_out_is_never_drawn_not_even_at_the_end_of_the_range():
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(3, 4)
    uniform = torch.tensor([0.0, 0.5, 1.0])  # 1.0 is what rounding can make of the largest random number
    assert _draw(logits, uniform).tolist() == [1, 2, 2]


def test_repetition_penalty_divides_likely_and_multiplies_unlikely_repeats(policy):  # S0-18
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    greedy = Sampling(n=1, max_length=4, temperature=0.0, repetition_penalty=2.0)
    stops = torch.tensor([99])
    token, log_prob = choose(logits, torch.tensor([0.0]), torch.tensor([[0, 2]]), stops, greedy, torch.tensor([0]))
    assert token.tolist() == [1]  # 2.0 / 2 falls under 1.5
    assert_close(log_prob, logits.log_softmax(1)[:, 1])  # the recorded log-prob is the model's own


def test_an_error_from_outside_ends_sampling_at_once(policy):
    with pytest.raises(KeyboardInterrupt):
        sample(
            policy,
            ids(policy, *PROMPTS),
            SAMPLING,
            seed=1,
            on_token=lambda done: (_ for _ in ()).throw(KeyboardInterrupt),
        )


@pytest.mark.parametrize("chosen", [None, [1, 2]])
def test_every_response_is_told_once_when_it_has_ended(policy, chosen):
    told: list[dict[int, list[int]]] = []
    seen: list[int] = []
    how = {"seed": 1, "max_rows": 4, "on_token": lambda done: seen.append(len(told)), "chosen": chosen}
    policy.stop_ids = [*policy.stop_ids, 18, 19, 20]  # so that some end early
    rollouts = sample(policy, ids(policy, *PROMPTS), SAMPLING, **how, on_ended=told.append)
    places = [
        row for index in chosen or range(len(PROMPTS)) for row in range(SAMPLING.n * index, SAMPLING.n * (index + 1))
    ]
    lengths = rollouts.response_mask.sum(1).tolist()
    expected = {place: rollouts.response_ids[row, : lengths[row]].tolist() for row, place in enumerate(places)}
    assert {place: tokens for part in told for place, tokens in part.items()} == expected
    assert sum(map(len, told)) == len(places)
    assert rollouts.truncated.any()
    assert not rollouts.truncated.all()
    assert len(set(seen)) > 2  # while the others go on


def test_selected_groups_lose_the_columns_that_only_others_needed(policy):
    rollouts = sample(policy, ids(policy, "1", "2345678"), Sampling(n=2, max_length=8), seed=0)
    part = rollouts.select(torch.tensor([0, 1]))
    assert part.prompt_ids.tolist() == ids(policy, "1")
    assert part.response_ids.shape[1] == int(part.response_mask.sum(1).max())
    with pytest.raises(AssertionError, match="as many responses"):
        rollouts.select(torch.tensor([0, 1, 2]))


@pytest.mark.slow
def test_another_model_samples_something_else():
    a, b = (sample(p, ids(p, "1+1=?"), SAMPLING, seed=0) for p in (tiny_policy(0), tiny_policy(1)))
    assert a.response_ids.tolist() != b.response_ids.tolist()
