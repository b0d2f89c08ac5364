"""Functions compiled for the decoding step: the same numbers, and where it cannot be, the function itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo.embedded import compiling
from grpo.embedded.choosing import Sampling, draw_from_all
from grpo.embedded.compiling import compiled
from grpo.embedded.llama_step import step
from grpo.embedded.rollout import noted, sample
from tests.embedded.test_rollout_decoding import WRITTEN_OUT, policy_of

PARTS = (step, draw_from_all, noted)


@pytest.mark.slow
@pytest.mark.parametrize("family", WRITTEN_OUT)
def test_a_compiled_step_gives_the_same_numbers_to_the_last_digit(family, tmp_path, monkeypatch):
    """Prompts of several lengths, lines that end one after the other, and prompts that begin among them."""
    policy = policy_of(family, tmp_path)
    policy.stop_ids = [*policy.stop_ids, *range(20, 60)]
    prompts = [[(7 * i + j) % 250 for j in range(length)] for i, length in enumerate((3, 9, 9, 10, 30))]
    runs, calls = [], []
    sample(policy, prompts, Sampling(n=1, max_length=2), seed=0)  # how it is decoded is tried once

    def plain(function: Callable) -> Callable:
        return lambda *given: calls.append(function) or function(*given)

    for how in (compiled, plain):
        for module in ("llama_decoding", "choosing", "rollout"):
            monkeypatch.setattr(f"grpo.embedded.{module}.compiled", how)
        for temperature, rows in ((1.0, 64), (0.7, 8)):
            sampling = Sampling(n=3, max_length=40, temperature=temperature)
            runs.append(sample(policy, prompts, sampling, seed=5, max_rows=rows))
        assert bool(calls) == (how is plain)
    assert set(calls) == set(PARTS)
    for one, other in zip(runs[:2], runs[2:], strict=True):
        assert len(one.response_mask.sum(1).unique()) > 4
        assert torch.equal(one.response_ids, other.response_ids)
        assert torch.equal(one.log_probs, other.log_probs)
        assert torch.equal(one.truncated, other.truncated)


@pytest.mark.parametrize("function", PARTS)
def test_this_torch_compiles_the_parts_of_a_step(function, caplog):
    assert compiled(function) is not function
    assert compiled(function) is compiled(function)
    assert not caplog.records


def test_what_is_not_compiled_stays_as_it_is_and_it_is_said_once(caplog):
    def varied(*tensors: Tensor) -> Tensor:
        return tensors[0]

    with caplog.at_level(logging.WARNING):
        assert compiled(varied) is varied
        assert compiled(varied) is varied
    assert [record.name for record in caplog.records] == [compiling.__name__]
    assert f"torch {torch.__version__} does not compile varied, so sampling on a CPU is slower: " in caplog.text
    assert "\n" not in caplog.records[0].getMessage()


def test_one_is_compiled_at_a_time(monkeypatch):
    """Lanes ask at the same moment, and Python 3.11 may end with a SystemError where two threads parse."""
    at_once, most, script = [0], [0], torch.jit.script

    def watched(function: Callable) -> Any:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.02)
        found = script(function)
        at_once[0] -= 1
        return found

    monkeypatch.setattr(torch.jit, "script", watched)
    compiling._compiled.cache_clear()
    threads = [threading.Thread(target=compiled, args=(function,)) for function in PARTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
