"""The probe's thin copies of a model, and what it makes of their times. S1-24."""

from __future__ import annotations

import dataclasses
import itertools
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from grpo import flags
from grpo.embedded import probe
from grpo.embedded.lanes import lanes_for
from grpo.embedded.memory import token_budget
from grpo.engine import EngineError
from grpo.memory import on_embedded
from grpo.memory.job import job_of
from grpo.memory.shape import shape_of
from grpo.resolve import resolve
from tests.embedded.families import FAMILIES

SIZES = probe.Sizes(prompt=4, response=4, lines=4, n=2, layers=2, in_layer=10_000, vocabulary=300, hidden=32)


def config(*words: str):
    words = ("--data", "p.json", "--model", "scratch", "--device", "cpu", "--dtype", "float32", *words)
    return resolve(flags.parse(words), {}).settings().config()


@pytest.mark.parametrize("name", ["qwen2", "gemma2, every other layer a window", "gpt2, dropout", "qwen3-moe"])
def test_a_thin_copy_has_the_models_widths_and_as_many_layers_and_words_as_asked(name: str):
    wanted = FAMILIES[name]
    thin = probe._thin(wanted.to_dict(), 1, 300)
    assert thin.config.num_hidden_layers == 1
    assert tuple(thin.get_input_embeddings().weight.shape) == (300, 32)


@pytest.mark.slow
def test_a_small_model_is_run_as_it_is():
    ticks = itertools.count()
    found: dict[str, Any] = probe.probe(config(), FAMILIES["qwen2"].to_dict(), SIZES, clock=lambda: float(next(ticks)))
    assert (found["decode_lines"], found["few_lines"]) == (4, 1)
    assert (found["prefill_tokens"], found["packed_tokens"]) == (8, 2 * (4 + 2 * 4))
    # a clock that goes on by one whenever it is looked at: every piece of work takes one, and the clipping its own
    assert found["decode"] == (1.0, 0.0, 0.0)
    assert found["forward"] == (1.0, 0.0, 0.0)
    assert found["backward"] == (0.0, 0.0, 0.0)
    assert found["adam_per_weight"] == 1 / SIZES.used
    assert found["bfloat16"] is False


def test_layers_and_words_are_told_apart_by_differences():
    # 1.0 = 0.25 + one layer + 8,192 words
    assert probe.told_apart([1.0, 1.5, 1.25], whole=False, words=8192) == (0.25, 0.5, 0.25 / 8192)
    assert probe.told_apart([1.0, 1.5], whole=False, words=300) == (0.5, 0.5, 0.0)
    assert probe.told_apart([1.0, 0.9, 0.8], whole=False, words=8192) == (1.0, 0.0, 0.0)  # noise
    assert probe.told_apart([1.0], whole=True, words=300) == (1.0, 0.0, 0.0)


@pytest.mark.slow
def test_of_a_large_model_one_and_two_layers_are_run_and_twice_the_words():
    large = {**FAMILIES["qwen2"].to_dict(), "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2_000}
    sizes = probe.Sizes(prompt=4, response=4, lines=4, n=2, layers=2_000, in_layer=10_000, vocabulary=40_000, hidden=8)
    assert sizes.used == 20_320_000
    ticks = itertools.count()
    found = probe.probe(config(), large, sizes, clock=lambda: float(next(ticks)))
    assert found["decode"] == (1.0, 0.0, 0.0)  # as long with each: the clock counts how often it is looked at


def test_a_piece_of_work_that_takes_long_is_not_repeated():
    done, cpu = [], torch.device("cpu")
    seconds = itertools.count(step=3)  # three of them pass whenever the clock is looked at
    assert probe._best(lambda: done.append(1), lambda: float(next(seconds)), cpu) == 3.0
    assert len(done) == 1
    seconds = itertools.count(step=0.25)
    assert probe._best(lambda: done.append(1), lambda: float(next(seconds)), cpu) == 0.25
    assert len(done) == 1 + 4


def test_decoding_that_takes_long_is_ended_after_four_tokens():
    seconds = itertools.count(step=3)
    policy = probe.Policy(
        probe._thin(FAMILIES["qwen2"].to_dict(), 1, 300), None, torch.device("cpu"), torch.float32, [0], 0
    )  # type: ignore[arg-type]
    assert probe._decoding(policy, 2, 3, lambda: float(next(seconds))) == 3.0
    assert next(seconds) == 4 * 3


def test_on_a_cpu_the_copies_of_a_large_model_get_fewer_tokens():
    # Qwen2.5-7B: 2 layers of 233M weights and 16,384 words of 3,584, 525M; 5e9 / (2 x 525M) is 4 tokens, 8 x 4 = 32
    run = {"prompt": 512, "response": 1024, "lines": 256, "n": 8}
    seven = probe.Sizes(**run, layers=28, in_layer=233_057_792, vocabulary=152_064, hidden=3584)
    assert probe._batch_of(seven, torch.device("cpu")).lines == 32
    # Qwen2.5-0.5B: 2 x 14.9M and 16,384 x 896, 44.5M, 56 tokens: 128 as in a real batch
    half = probe.Sizes(**run, layers=24, in_layer=14_912_384, vocabulary=151_936, hidden=896)
    assert probe._batch_of(half, torch.device("cpu")).lines == 128


@pytest.mark.parametrize("width", [32, 4096])
def test_the_plan_takes_the_tokens_of_a_micro_batch_that_the_engine_takes(width: int):
    family = transformers.Qwen2Config(
        vocab_size=300, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(family)
    words = ("--data", "p.json", "--model", "scratch", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10000000")
    settings = resolve(flags.parse(words), {}).settings()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    planned = job_of(settings, engine="embedded", device="cpu", memory=memory, bfloat16=False)
    planned = dataclasses.replace(planned, shape=shape_of(family.to_dict(), "here"))
    for threads in (1, 2, 6):
        planned = dataclasses.replace(planned, threads=threads)
        lanes = lanes_for(planned.shape.weights, threads)
        assert on_embedded.lanes(planned) == lanes
        policy: Any = SimpleNamespace(model=model, device=torch.device("cpu"))
        pair = planned.prompt_tokens + 2 * planned.response_tokens
        assert on_embedded.token_budget(planned) == token_budget(policy, lanes=lanes, pair=pair)


def test_a_model_that_is_no_decoder_or_unknown_is_refused():
    with pytest.raises(EngineError, match="model_type no-such: this version of transformers does not know it"):
        probe.probe(config(), {"model_type": "no-such"}, SIZES)
