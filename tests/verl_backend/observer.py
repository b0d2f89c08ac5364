"""Loaded into verl's workers by the agreement test: keeps the batch of each update beside the run, and changes nothing.

OBSERVED (environment) is the file; verl calls `make_iterator` once for an update, with all of the rank's responses.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from verl.utils import tensordict_utils

FIELDS = ("prompts", "responses", "response_mask", "advantages", "old_log_probs", "ref_log_prob")
_make_iterator = tensordict_utils.make_iterator


def make_iterator(tensordict: Any, *args: Any, **kwargs: Any) -> Any:
    if "advantages" in tensordict.keys():  # noqa: SIM118 - a TensorDict is no dict
        there = set(tensordict.keys())
        kept = {name: [row.clone() for row in tensordict[name].unbind()] for name in FIELDS if name in there}
        torch.save(kept, os.environ["OBSERVED"])
    return _make_iterator(tensordict, *args, **kwargs)


tensordict_utils.make_iterator = make_iterator
