"""Decoding written out is transformers' own forward pass: the same logits, whoever is kept, moved or let go."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from grpo.embedded import llama_like
from grpo.embedded.adapter import Lora, attach, matrices
from grpo.embedded.choosing import Sampling, choose
from grpo.embedded.cohort import FIRST_ROOM, filled
from grpo.embedded.decoding import CachedDecoding
from grpo.embedded.few_rows import WORTH, Product, can_pack
from grpo.embedded.llama_decoding import LlamaDecoding
from grpo.embedded.models import make_policy, read_model, read_tokenizer
from grpo.embedded.passes import log_probs
from grpo.embedded.policy import Policy
from grpo.embedded.prompt_keys import blocks_of
from grpo.embedded.rollout import sample
from tests.embedded.conftest import ids
from tests.embedded.families import FAMILIES
from tests.embedded.tiny_models import llama, model_folder

WRITTEN_OUT = ("llama, grouped queries", "smollm, tied embeddings", "qwen2", "qwen3")
LENGTHS = (3, 9, 9, 10, 30)  # a block of one, one of three with padding, one of one


def _policy(config, tmp_path, dtype=torch.float32) -> Policy:
    folder = model_folder(copy.deepcopy(config), tmp_path / "m")
    model, tokenizer = read_model(str(folder)), read_tokenizer(str(folder))
    return make_policy(model, tokenizer, torch.device("cpu"), dtype)


def policy_of(family: str, tmp_path) -> Policy:
    """A small model of one of FAMILIES."""
    return _policy(FAMILIES[family], tmp_path)


def _prompts() -> tuple[torch.Tensor, torch.Tensor]:
    mask = (torch.arange(30) >= 30 - torch.tensor(LENGTHS)[:, None]).long()
    return (torch.arange(150).view(5, 30) * 7 + 5) % 250 * mask, mask


@torch.no_grad()
def _largest_difference(policy: Policy, *, steps: int) -> float:
    """Of the logits, relative to the largest one, while lines leave and change their places."""
    prompts, mask = _prompts()
    generator, far = torch.Generator().manual_seed(0), 0.0
    with policy.arithmetic():
        decodings = CachedDecoding(policy, prompts, mask, 3), LlamaDecoding(policy, prompts, mask, 3, steps + 1)
        alive = torch.arange(len(mask) * 3)  # the lines that go on; each decoding has its own order of them
        orders = [alive, alive]
        for step in range(steps):
            sizes = [len(decoding.logits) for decoding in decodings]
            assert sizes == [len(alive), len(alive)]
            theirs, ours = (decoding.logits[order.argsort()] for decoding, order in zip(decodings, orders, strict=True))
            far = max(far, float((theirs - ours).abs().max() / theirs.abs().max()))
            tokens = torch.randint(5, 250, (len(mask) * 3,), generator=generator)  # of each line, whoever goes on
            if step % 3 == 2 and len(alive) > 2:
                alive = alive[torch.randperm(len(alive), generator=generator)[2:]]
                open_ = [torch.isin(order, alive) for order in orders]
                orders = [o[d.keep(those)] for o, d, those in zip(orders, decodings, open_, strict=True)]
            for decoding, order in zip(decodings, orders, strict=True):
                decoding.step(tokens[order])
    assert len(alive) <= 3
    return far


@pytest.mark.slow
@pytest.mark.parametrize("family", WRITTEN_OUT)
def test_written_out_the_logits_are_those_of_transformers_while_lines_leave_and_move(family, tmp_path):
    """36 steps: the room for keys grows from 32 tokens, groups end, and 15 lines become one."""
    policy = _policy(FAMILIES[family], tmp_path)
    assert _largest_difference(policy, steps=36) < 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("rope", [{"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}])
def test_scaled_positions_are_kept_when_written_out(rope, tmp_path):
    policy = _policy(llama(rope_parameters={"rope_theta": 10_000.0, **rope}), tmp_path)
    assert _largest_difference(policy, steps=20) < 5e-6


@pytest.mark.slow
def test_an_adapter_takes_part_and_leaves_with_its_policy(tmp_path):  # S2-09
    policy = _policy(FAMILIES["qwen2"], tmp_path)
    before = sample(policy, [[9, 8, 7]], Sampling(n=4, max_length=20), seed=1)
    policy.adapter = attach(policy.model, Lora(4, 8, "all-linear", "m"), seed=0)
    with torch.no_grad():
        for weight in matrices(policy.adapter).values():  # a new adapter changes nothing
            weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    assert _largest_difference(policy, steps=20) < 5e-6
    adapted, base = (
        sample(one, [[9, 8, 7]], Sampling(n=4, max_length=20), seed=1) for one in (policy, replace(policy, part=None))
    )
    assert torch.equal(base.response_ids, before.response_ids)
    assert not torch.equal(adapted.response_ids, before.response_ids)


@pytest.mark.slow
def test_in_bfloat16_it_stays_as_close_as_bfloat16_is(tmp_path):
    assert 1e-4 < _largest_difference(_policy(FAMILIES["qwen2"], tmp_path, torch.bfloat16), steps=20) < 5e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_which_models_are_written_out(family, tmp_path):
    policy = _policy(FAMILIES[family], tmp_path)
    prompts, mask = torch.full((1, 6), 7), torch.ones(1, 6, dtype=torch.long)
    with torch.no_grad(), policy.arithmetic():
        kind = type(policy.open_decoding(prompts, mask, 2, 4))
    assert kind is (LlamaDecoding if family in WRITTEN_OUT else CachedDecoding)


def test_a_window_matters_only_to_what_is_longer(tmp_path):
    config = copy.deepcopy(FAMILIES["mistral, sliding window"])
    config.sliding_window = 12
    policy = _policy(config, tmp_path)
    prompts, mask = torch.full((1, 6), 7), torch.ones(1, 6, dtype=torch.long)
    with torch.no_grad(), policy.arithmetic():
        kinds = [type(policy.open_decoding(prompts, mask, 2, most)) for most in (6, 7)]
    assert kinds == [LlamaDecoding, CachedDecoding]


def test_a_model_that_is_not_what_its_class_says_is_decoded_by_transformers_and_it_is_said(policy, caplog):
    layer = policy.model.model.layers[1]
    layer.mlp.register_forward_hook(lambda module, inputs, out: out * 1.01)  # which the written-out step does not know
    with caplog.at_level(logging.WARNING):
        rollouts = sample(policy, ids(policy, "1+2=?"), Sampling(n=2, max_length=8), seed=1)
        sample(policy, ids(policy, "1+2=?"), Sampling(n=2, max_length=8), seed=2)
    assert [record.name for record in caplog.records] == [llama_like.__name__]
    assert "transformers' own forward pass" in caplog.text
    again = log_probs(policy, rollouts, temperature=1.0, max_tokens=10_000)
    assert_close(again, rollouts.log_probs * rollouts.response_mask, atol=2e-5, rtol=0)


def test_weights_laid_out_anew_are_gone_with_the_decoding_and_not_with_a_later_collection(policy):
    prompts, mask = torch.full((1, 6), 7), torch.ones(1, 6, dtype=torch.long)
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad(), policy.arithmetic():
            decoding = LlamaDecoding(policy, prompts, mask, 2, 2 * WORTH)
            decoding.step(torch.tensor([5, 6]))
            kept = [weakref.ref(layer._down.laid_out[0]) for layer in decoding._layers]
            assert all(weight() is not None for weight in kept)
            del decoding
        assert not any(weight() is not None for weight in kept)
    finally:
        gc.enable()


@pytest.mark.slow
def test_both_ways_to_decode_sample_the_same_responses(policy):
    sampling = Sampling(n=6, max_length=40, min_length=2)
    prompts = ids(policy, "1+2=?", "33+44=?", "5", "6+7+8+9=?")
    ours = sample(policy, prompts, sampling, seed=5)
    policy._writes_out = False
    theirs = sample(policy, prompts, sampling, seed=5)
    assert len(ours.response_mask.sum(1).unique()) > 5  # lines left one after the other
    assert torch.equal(ours.response_ids, theirs.response_ids)
    assert_close(ours.log_probs, theirs.log_probs, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_where_lines_end_other_prompts_begin_and_are_answered_as_they_would_be_alone(policy, monkeypatch):
    """More prompts than fit side by side: stragglers go on beside younger lines, with the penalty and without."""
    sample(policy, ids(policy, "5"), Sampling(n=1, max_length=1), seed=1)  # whether it can be written out, is known
    admitted, begin = [], LlamaDecoding.admit

    def noted(decoding, prompts, mask):
        admitted.append([cohort.count for cohort in decoding._cohorts])
        begin(decoding, prompts, mask)
        rooms = [room for cohort in decoding._cohorts for room in (cohort.keys, cohort.values)]
        assert all(room.untyped_storage().nbytes() == room.nbytes for room in rooms)  # none for lines that ended

    monkeypatch.setattr(LlamaDecoding, "admit", noted)
    prompts = ids(policy, *(f"{number}+{number * 37}=?" for number in range(1, 25)))
    for more in ({}, {"repetition_penalty": 1.3, "min_length": 3}):
        sampling = Sampling(n=4, max_length=4 * FIRST_ROOM - 8, **more)
        together = sample(policy, prompts, sampling, seed=7, max_rows=4 * len(prompts))
        assert admitted == [[]]
        admitted.clear()
        done = []
        beside = sample(policy, prompts, sampling, seed=7, max_rows=16, on_token=done.append)
        assert sum(len(ages) >= 1 for ages in admitted) >= 3  # joined lines that were at it
        assert max(map(sum, admitted)) <= 8  # half of the room was free
        assert torch.equal(together.response_ids, beside.response_ids)
        assert torch.equal(together.truncated, beside.truncated)
        assert_close(together.log_probs, beside.log_probs, atol=1e-5, rtol=0)
        assert done == sorted(done)
        assert done[-1] == 4 * len(prompts)
        admitted.clear()


@pytest.mark.slow
def test_the_penalty_knows_nothing_of_padding(policy):
    """S0-18: what pads a short prompt beside a long one is often the stop token, which would come later then."""
    policy = replace(policy, pad_id=policy.stop_ids[0])
    prompts, sampling = ids(policy, "5", "1+2+3+4+5+6+7+8=?"), Sampling(n=8, max_length=24, repetition_penalty=3.0)
    beside = sample(policy, prompts, sampling, seed=3).select(torch.arange(8))
    alone = sample(policy, prompts, sampling, seed=3, chosen=[0])
    assert not alone.truncated.all()
    assert torch.equal(alone.response_ids, beside.response_ids)


def test_rearranged_weights_give_the_same_products(policy):
    """And with them biases, side by side for the layers that read the same input."""
    layers = [torch.nn.Linear(24, 40), torch.nn.Linear(24, 8)]
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([layer(x) for layer in layers], 1).detach()
    for steps in (1, WORTH):
        with torch.no_grad():
            assert_close(Product(layers, policy, steps)(x), expected, atol=1e-6, rtol=1e-5)
    assert not can_pack(torch.device("meta"), torch.float32)


def test_prompts_are_read_together_where_padding_costs_less_than_a_quarter():
    assert blocks_of([10, 10, 10]) == [slice(0, 3)]
    assert blocks_of([8, 10, 20]) == [slice(0, 2), slice(2, 3)]  # 20 for 18 is little, 60 for 38 is much
    assert blocks_of([5]) == [slice(0, 1)]


def test_the_last_lines_take_the_places_of_those_that_ended():
    open_ = torch.tensor([True, False, True, False, True, True])
    assert filled(open_, 4).tolist() == [0, 4, 2, 5]


def test_the_log_prob_is_that_of_the_whole_distribution_however_it_is_drawn_from():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log() * 2  # at temperature 2: 0.5, 0.3, 0.2
    stops, uniform, new = torch.tensor([0]), torch.tensor([0.55]), torch.tensor([0])
    plain = Sampling(n=1, max_length=4, temperature=2.0)
    token, log_prob = choose(logits, uniform, None, stops, plain, new)
    assert (token.item(), round(log_prob.exp().item(), 5)) == (1, 0.3)  # 0.5 < 0.55 < 0.8
    token, log_prob = choose(logits, uniform, None, stops, replace(plain, min_length=1), new)
    assert (token.item(), round(log_prob.exp().item(), 5)) == (1, 0.3)  # 0.55 of the 0.5 that is left is under 0.3
    token, log_prob = choose(logits, torch.tensor([0.7]), None, stops, replace(plain, min_length=1), new)
    assert (token.item(), round(log_prob.exp().item(), 5)) == (2, 0.2)
