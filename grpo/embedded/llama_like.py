"""Which models are run by what is written out for Llama's build: llama_decoding.py, once a try has shown the same
logits, and llama_reading.py, which packing tries."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from grpo.embedded.decoding import CachedDecoding
from grpo.embedded.llama_decoding import LlamaDecoding

if TYPE_CHECKING:
    from grpo.embedded.policy import Policy

BUILD = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Positions that turn queries and keys by angles which do not depend on how long the text has become.
ROPES = ("default", "linear", "llama3", "yarn")


def of_build(model: PreTrainedModel) -> bool:
    """Whether its layers look like Llama's; that they compute the same is for a try to show."""
    return type(model) in BUILD and not getattr(model, "is_quantized", False)


def can_be_read_out(policy: Policy) -> bool:
    """Whether llama_reading.py is worth a try: on a CPU in float32; elsewhere sums stay in float32 and products not."""
    if policy.device.type != "cpu" or policy.dtype != torch.float32 or not of_build(policy.model):
        return False
    gates = (layer.mlp.act_fn for layer in policy.model.model.layers)
    return all(type(gate).__name__ in ("SiLU", "SiLUActivation") for gate in gates)


def can_be_written_out(policy: Policy) -> bool:
    """Try it on a few tokens, within the policy's arithmetic(). A model of this build that differs is warned about."""
    model = policy.model
    if not of_build(model):
        return False
    if model.model.rotary_emb.rope_type not in ROPES:
        return False
    ids = (torch.arange(8, device=policy.device).view(2, 4) * 7919 + 11) % model.config.vocab_size
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    theirs, ours = CachedDecoding(policy, ids, mask, 2), LlamaDecoding(policy, ids, mask, 2, 2)
    far = _difference(theirs, ours)
    for decoding in (theirs, ours):
        order = decoding.keep(torch.tensor([True, False, True, True], device=policy.device))
        decoding.step(ids.flatten()[order])
        decoding.logits = decoding.logits[order.argsort()]
    far = max(far, _difference(theirs, ours))
    if far < (1e-4 if policy.dtype == torch.float32 else 5e-2):
        return True
    logging.getLogger(__name__).warning(
        "%s: its logits differ by %.0e of their size from those of decoding written out for its build, so it decodes "
        "by transformers' own forward pass, which is slower",
        type(model).__name__,
        far,
    )
    return False


def _difference(theirs, ours) -> float:
    """The largest difference, as a share of the largest logit where that is more than 1."""
    size = theirs.logits.abs().max().clamp(min=1.0)
    return float((theirs.logits - ours.logits).abs().max() / size)
