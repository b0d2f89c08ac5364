"""Groups packed into one row: the numbers and gradients of padded batches and of sequences one by one."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch.testing import assert_close

from grpo.embedded import llama_reading, packing, shared_attention
from grpo.embedded.adapter import Lora, attach
from grpo.embedded.copies import before_adapter
from grpo.embedded.models import make_policy
from grpo.embedded.packing import lay_out
from grpo.embedded.policy import Policy
from grpo.embedded.scratch import make_tokenizer
from grpo.embedded.shared_attention import Group, shared_prompt_attention
from tests.embedded.families import FAMILIES

TOKENIZER = make_tokenizer("bytes")
LENGTHS = [[6, 1, 9, 6], [2, 2, 2, 2], [0, 0, 0, 0], [3, 0, 12, 1]]  # of the responses to each prompt
PROMPTS = [5, 17, 4, 1]


def _policy(config: transformers.PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Policy:
    config = copy.deepcopy(config)
    config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id = len(TOKENIZER), 0, None, 1
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4.0)  # choices far from uniform
    return make_policy(model, TOKENIZER, torch.device("cpu"), dtype)


def _batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """prompt_ids, prompt_mask [4, 17]; response_ids, response_mask [16, 12]."""
    draw = torch.Generator().manual_seed(5)
    prompt_ids, response_ids = (
        torch.randint(3, len(TOKENIZER), shape, generator=draw) for shape in ((4, max(PROMPTS)), (16, 12))
    )
    prompt_mask = torch.arange(17) >= 17 - torch.tensor(PROMPTS)[:, None]
    response_mask = torch.arange(12) < torch.tensor(LENGTHS).flatten()[:, None]
    return prompt_ids, prompt_mask.long(), response_ids, response_mask.long()


def _padded(policy: Policy, batch, **more):
    policy._packs, policy._can_share_prompts = False, lambda: False
    return policy.log_probs(*batch, temperature=0.8, **more)


def _packed(policy: Policy, batch, **more):
    policy._packs = None
    assert policy.packs
    return policy.log_probs(*batch, temperature=0.8, **more)


def _one_by_one(policy: Policy, batch, **_):
    prompt_ids, _, response_ids, _ = batch
    out = torch.zeros(response_ids.shape)
    for row, length in enumerate(torch.tensor(LENGTHS).flatten().tolist()):
        prompt = prompt_ids[row // 4, 17 - PROMPTS[row // 4] :]
        if length:
            ids = torch.cat([prompt, response_ids[row, :length]])[None]
            log_p = (policy.model(ids).logits[0, len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
            out[row, :length] = log_p.gather(1, response_ids[row, :length, None])[:, 0]
    return out, None


def _gradients(how, policy: Policy, **more):
    batch = _batch()
    policy.model.zero_grad()
    log_probs, entropy = how(policy, batch, **more)
    weights = torch.linspace(-1, 2, log_probs.numel()).view(log_probs.shape) * batch[3]
    loss = (log_probs * weights).sum()
    if entropy is not None and entropy.requires_grad:
        loss = loss + 0.3 * (entropy * batch[3]).sum()
    loss.backward()
    grads = {name: w.grad for name, w in policy.model.named_parameters() if w.requires_grad and w.grad is not None}
    return (log_probs * batch[3]).detach(), None if entropy is None else (entropy * batch[3]).detach(), grads


def _assert_same(have, want, share: float = 1e-5) -> None:
    assert_close(have[0], want[0], atol=2e-5, rtol=1e-5)
    assert have[2].keys() == want[2].keys()
    for name, grad in want[2].items():
        assert_close(have[2][name], grad, atol=share * float(grad.abs().max()) + 1e-7, rtol=0, msg=name)


@pytest.mark.parametrize("family", ["llama, grouped queries", "qwen2", "gpt2, dropout"])
def test_packed_padded_and_one_by_one_are_equal_with_their_gradients(family):  # S0-14
    policy = _policy(FAMILIES[family])
    packed = _gradients(_packed, policy)
    _assert_same(packed, _gradients(_padded, policy))
    _assert_same(packed, _gradients(_one_by_one, policy))


@pytest.mark.parametrize("family", ["llama, grouped queries", "smollm, tied embeddings", "qwen2", "qwen3"])
def test_what_is_written_out_for_a_llama_reads_the_row_as_transformers_does(family):
    policy = _policy(FAMILIES[family])
    ours = _gradients(_packed, policy)
    assert policy._read is llama_reading.read_row
    policy._read = packing.read_row
    _assert_same(ours, _gradients(lambda policy, batch: policy.log_probs(*batch, temperature=0.8), policy))


@pytest.mark.parametrize(("family", "dtype"), [("gpt2, dropout", torch.float32), ("qwen2", torch.bfloat16)])
def test_other_models_and_precisions_are_read_by_transformers(family, dtype):
    policy = _policy(FAMILIES[family], dtype)
    assert policy.packs
    assert policy._read is packing.read_row


def test_entropy_and_its_gradient_are_those_of_the_padded_batch():
    policy = _policy(FAMILIES["qwen3"])
    for entropy in ("metric", "loss"):
        packed, padded = (_gradients(how, policy, entropy=entropy) for how in (_packed, _padded))
        _assert_same(packed, padded)
        assert_close(packed[1], padded[1], atol=2e-5, rtol=1e-5)


@pytest.mark.slow
def test_an_adapter_gets_the_gradients_of_the_padded_batch_and_the_reference_is_the_model_without_it():
    policy = _policy(FAMILIES["llama, grouped queries"])
    plain = _gradients(_packed, policy)[0]
    adapted = attach(policy.model, Lora(4, 8, "all-linear", "m"), seed=0)
    policy = make_policy(policy.model, TOKENIZER, torch.device("cpu"), torch.float32, adapted)
    with torch.no_grad():
        for name, weight in policy.own().items():
            weight.fill_(0.05) if "lora_B" in name else weight
    packed = _gradients(_packed, policy)
    _assert_same(packed, _gradients(_padded, policy))
    assert all("lora" in name for name in packed[2])
    assert (packed[0] - plain).abs().max() > 1e-2
    reference = before_adapter(policy, moves=False)
    with torch.no_grad():
        assert_close(_packed(reference, _batch())[0] * _batch()[3], plain, atol=2e-5, rtol=0)
    assert_close(_gradients(_packed, policy)[0], packed[0], atol=0, rtol=0)  # the adapter is on again


def test_recomputed_activations_are_packed_again():  # S0-35
    policy = _policy(FAMILIES["qwen2"])
    plain, calls = _gradients(_packed, policy), []
    policy.recompute_activations()
    policy.model.model.layers[0].self_attn.register_forward_hook(lambda *args: calls.append(args[2][0].shape))
    _assert_same(_gradients(_packed, policy), plain)
    row = sum(PROMPTS) - 4 + sum(max(0, length - 1) for group in LENGTHS for length in group)  # 4: no response to it
    assert calls[-2:] == [(1, row, 32)] * 2  # there and, in the backward pass, again
    assert policy.model.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_bfloat16_is_as_close_to_float32_packed_as_padded():
    exact = _gradients(_packed, _policy(FAMILIES["qwen2"]))[0]
    rough = _policy(FAMILIES["qwen2"], torch.bfloat16)
    far = [float((_gradients(how, rough)[0] - exact).abs().max()) for how in (_packed, _padded)]
    assert 1e-3 < far[0] < 2 * far[1]


def test_a_window_is_kept_to_by_leaving_the_row_where_a_sequence_is_longer():
    policy = _policy(FAMILIES["mistral, sliding window"])
    assert policy.packs  # its first seven tokens are seen by all
    widths, batch = [], _batch()
    query = policy.model.model.layers[0].self_attn.q_proj
    query.register_forward_hook(lambda *args: widths.append(args[1][0].dim()))
    policy.log_probs(*batch, temperature=1.0)
    short = batch[0][:, -2:], batch[1][:, -2:], batch[2][:, :6], batch[3][:, :6]
    policy.log_probs(*short, temperature=1.0)
    assert widths == [3, 2]  # rows of the padded batch, and one of the packed


@pytest.mark.parametrize("family", ["gemma2, every other layer a window", "deepseek-v3"])
def test_a_model_whose_attention_does_more_is_not_packed(family):
    assert not _policy(FAMILIES[family]).packs


def test_every_token_is_in_the_row_once_and_no_padding():
    layout = lay_out(*_batch())
    assert layout.ids.shape == (1, (5 + 5 + 8 + 5) + (17 + 4) + (1 + 2 + 11))
    assert layout.groups == (
        Group(0, 5, 23, ((1, 8), (2, 5))),
        Group(23, 40, 44, ((4, 1),)),
        Group(44, 45, 58, ((1, 11), (1, 2))),
    )
    assert layout.positions[0, :23].tolist() == [*range(5), *range(5, 13), *range(5, 10), *range(5, 10)]
    assert layout.longest == 19
    assert len(layout.rows) == 58 - 23 + 3  # of every group its prompt's last token and all behind
    assert len(layout.tokens) == sum(map(sum, LENGTHS))


def test_both_ways_of_the_attention_are_softmax_over_what_a_token_sees():
    groups = (Group(0, 5, 18, ((1, 7), (2, 3))), Group(18, 20, 20, ()), Group(20, 24, 34, ((2, 5),)))
    owner = [0] * 5 + [1] * 7 + [2] * 3 + [3] * 3 + [4] * 2 + [5] * 4 + [6] * 5 + [7] * 5
    prompt_of = {1: 0, 2: 0, 3: 0, 6: 5, 7: 5}
    seen = torch.tensor(
        [[j <= i and owner[j] in (owner[i], prompt_of.get(owner[i])) for j in range(34)] for i in range(34)]
    )
    draw, results = torch.Generator().manual_seed(1), []
    parts = [torch.randn(1, 34, heads, 8, generator=draw) for heads in (4, 2, 2)]
    slope = torch.randn(1, 4, 34, 8, generator=draw)

    def by_hand(query, key, value):
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        scores = (query @ key.transpose(2, 3) * 0.4).masked_fill(~seen, float("-inf"))
        return scores.softmax(-1) @ value

    def padded(query, key, value):
        return torch.cat([p for group in groups for p in shared_attention._padded(query, key, value, group, 0.4)], 2)

    def joined(query, key, value):
        return shared_prompt_attention(query, key, value, groups, 0.4)

    for how in (by_hand, padded, joined):
        leaves = [part.clone().requires_grad_() for part in parts]
        out = how(*(leaf.transpose(1, 2) for leaf in leaves))
        (out * slope).sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_close(one, two, atol=3e-6, rtol=0)
