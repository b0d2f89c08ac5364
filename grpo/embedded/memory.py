"""How many tokens a forward/backward may hold, so that a laptop does not swap."""

from __future__ import annotations

import os

import torch

from grpo.embedded.policy import Policy


def token_budget(policy: Policy, *, lanes: int = 1, pair: int = 0, sharers: int = 1) -> int:
    """Tokens of one micro-batch, or of as many as there are lanes; without padding where the model is packed.

    On a GPU its activations may take two fifths of the memory; on a CPU 128 MB for each lane (lanes.py), since larger
    products are no faster there, but 1,024 tokens at least, and a fifth of the memory at most, which as many processes
    as `sharers` have to share. Where 512 MB hold `pair` tokens, the longest prompt and two of the longest responses,
    so much: a group that is cut into single responses runs its prompt for each.

    Counted from the model's shape and the memory that the machine has, not the memory that is free at the moment:
    the cut of a mini-batch decides the order of rounding, and a rerun must repeat it to the last digit.
    """
    config = policy.model.config.get_text_config()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    per_token = 4 * (layers * (14 * hidden + 4 * inner) + 4 * config.vocab_size)
    if policy.device.type == "cuda":
        memory = 0.4 * torch.cuda.get_device_properties(policy.device).total_memory
    else:
        fifth = 0.2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / sharers
        least = pair * per_token if pair * per_token <= 512e6 else 0
        memory = min(fifth, lanes * max(128e6, 1024 * per_token, least))
    return max(1, int(memory / per_token))
