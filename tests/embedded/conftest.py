"""Small real models for the embedded engine's tests."""

from __future__ import annotations

import pytest
import torch

from grpo.embedded.models import make_policy
from grpo.embedded.policy import Policy
from grpo.embedded.scratch import make_model, make_tokenizer

torch.set_num_threads(1)  # the models here are too small to share, and waiting threads would only slow each other

ALPHABET = "0123456789+=? "


def tiny_policy(seed: int = 0, hidden_size: int = 32) -> Policy:
    """Two layers over digits and signs. The weights are scaled up, so that its choices are far from uniform."""
    tokenizer = make_tokenizer("characters", [ALPHABET])
    model = make_model(tokenizer, hidden_size=hidden_size, num_layers=2, num_heads=2, max_length=128, seed=seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(8.0)
    return make_policy(model, tokenizer, torch.device("cpu"), torch.float32)


@pytest.fixture
def policy() -> Policy:
    return tiny_policy()


def ids(policy: Policy, *texts: str) -> list[list[int]]:
    """Token ids of texts of any length."""
    return [policy.tokenizer(text)["input_ids"] for text in texts]
