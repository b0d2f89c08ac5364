"""grpo/algorithm.py and verl 0.9.1 side by side on random inputs: numbers and gradients agree to 1e-6.

verl runs as it was published, from requirements/verl-maths.txt. Where ray is not installed, `import ray` finds a bare
module with one empty class meanwhile: verl's maths never calls it, and what did would fail with AttributeError.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from grpo.algorithm import (
    LOSS_AGG_MODES,
    aggregate,
    clipped_policy_loss,
    entropy_of,
    group_advantages,
    kl_penalty,
    log_probs_of,
    rewards_minus_kl,
)

pytestmark = pytest.mark.slow

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
SEEDS = pytest.mark.parametrize("seed", range(3))
MODES = pytest.mark.parametrize("mode", LOSS_AGG_MODES)
KINDS = [name + plus for name in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3") for plus in ("", "+")]


@pytest.fixture(scope="module", autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """verl sets environment variables when it is imported; no other test is to see them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def verl(missing: Callable[[str], NoReturn]) -> SimpleNamespace:
    """verl's own modules: core_algos, and its torch functions as `functional`."""
    how = "pip install --no-deps -r requirements/verl-maths.txt"
    if find_spec("verl") is None:
        missing(f"verl is not installed: {how}")
    stand_in = find_spec("ray") is None
    if stand_in:
        sys.modules["ray"] = ModuleType("ray")
        sys.modules["ray"].ObjectRef = type("ObjectRef", (), {})  # named in an annotation of verl/protocol.py
    try:
        core_algos = import_module("verl.trainer.ppo.core_algos")
    except ModuleNotFoundError as error:
        missing(f"verl lacks {error.name}: {how}")
    finally:
        if stand_in:
            del sys.modules["ray"]
    installed = sys.modules["verl"].__version__
    if installed != "0.9.1":
        missing(f"verl {installed} is installed, 0.9.1 is what is compared: {how}")
    return SimpleNamespace(
        core_algos=core_algos,
        functional=import_module("verl.utils.torch_functional"),
        actor_config=import_module("verl.workers.config").ActorConfig,
        protocol=import_module("verl.protocol"),
    )


def agree(ours: Tensor, theirs: Tensor) -> None:
    assert torch.isfinite(theirs).all()
    assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def batch(seed: int, dtype: torch.dtype) -> SimpleNamespace:
    """Thirty responses of 0 to 16 tokens in groups of 1 to 8; log-probs from equal to far beyond every clamp."""
    torch.manual_seed(seed)
    b, r = 30, 16
    sizes = torch.tensor([1, 2, 3, 4, 5, 7, 8])
    uid = torch.arange(len(sizes)).repeat_interleave(sizes)[torch.randperm(b)]
    lengths = torch.randint(1, r + 1, (b,))
    lengths[:2] = torch.tensor([0, r])
    log_prob = -torch.rand(b, r, dtype=dtype) * 3
    apart = torch.tensor([0.0, 0.1, 1.0, 30.0], dtype=dtype)  # whole responses at each distance
    distance = apart[torch.arange(b) % 4, None]
    return SimpleNamespace(
        uid=uid,
        rewards=torch.randn(b, dtype=dtype).round(decimals=1),
        advantages=torch.randn(b, dtype=dtype),
        mask=torch.arange(r) < lengths[:, None],
        log_prob=log_prob.requires_grad_(),
        old=(log_prob + distance * torch.randn(b, r, dtype=dtype)).detach(),
        ref=(log_prob + distance * torch.randn(b, r, dtype=dtype)).detach(),
    )


@DTYPES
@SEEDS
@pytest.mark.parametrize("norm_by_std", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_advantage(verl: SimpleNamespace, dtype: torch.dtype, seed: int, norm_by_std: bool, binary: bool):
    """S2-13, S2-28, S4-07: groups of one to eight, mixed; rewards of 0 and 1, or any. verl spreads them over tokens."""
    x = batch(seed, dtype)
    rewards = (x.rewards > 0).to(dtype) if binary else x.rewards
    at_the_end = torch.zeros(x.mask.shape, dtype=dtype)
    at_the_end[:, -1] = rewards
    theirs, _ = verl.core_algos.compute_grpo_outcome_advantage(
        at_the_end, x.mask, x.uid.numpy(), norm_adv_by_std_in_grpo=norm_by_std
    )
    ours = group_advantages(rewards, x.uid, norm_by_std=norm_by_std)
    agree(ours[:, None] * x.mask, theirs)


@DTYPES
@SEEDS
@MODES
def test_aggregation(verl: SimpleNamespace, dtype: torch.dtype, seed: int, mode: str):
    """S2-30, S4-09: given the totals of a mini-batch, and with verl's own (rows without a token do not count)."""
    x = batch(seed, dtype)
    losses = torch.randn(x.mask.shape, dtype=dtype)
    for tokens, responses, factor in ((1000, 64, 512), (int(x.mask.sum()), 29, x.mask.shape[1])):
        totals = {"batch_num_tokens": tokens, "global_batch_size": responses, "loss_scale_factor": factor}
        theirs = verl.core_algos.agg_loss(losses, x.mask, mode, **(totals if tokens == 1000 else {}))
        ours = aggregate(
            losses,
            x.mask,
            loss_agg_mode=mode,
            batch_tokens=tokens,
            batch_responses=responses,
            loss_scale_factor=factor,
        )
        agree(ours, theirs)


@DTYPES
@SEEDS
@MODES
def test_clipped_policy_loss(verl: SimpleNamespace, dtype: torch.dtype, seed: int, mode: str):
    """S2-29: the loss, its gradient and the three statistics, with every clip and clamp at work."""
    x = batch(seed, dtype)
    tokens, responses = int(x.mask.sum()), 40
    config = verl.actor_config(
        strategy="fsdp", rollout_n=5, use_dynamic_bsz=True, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=2.5
    )
    totals = {"batch_num_tokens": tokens, "global_batch_size": responses, "loss_scale_factor": 11}
    config.global_batch_info.update(dp_size=1, **totals)
    spread = x.advantages[:, None].expand(x.mask.shape)
    theirs, metrics = verl.core_algos.compute_policy_loss_vanilla(x.old, x.log_prob, spread, x.mask, mode, config)
    (their_gradient,) = torch.autograd.grad(theirs, x.log_prob)

    losses, statistics = clipped_policy_loss(
        x.log_prob, x.old, x.advantages, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=2.5
    )
    whole = {"batch_tokens": tokens, "batch_responses": responses, "loss_scale_factor": 11}
    ours = aggregate(losses, x.mask, loss_agg_mode=mode, **whole)
    agree(ours, theirs)
    agree(torch.autograd.grad(ours, x.log_prob)[0], their_gradient)
    names = {"clip_fraction": "pg_clipfrac", "clip_fraction_lower": "pg_clipfrac_lower", "ppo_kl": "ppo_kl"}
    assert statistics.keys() == names.keys()
    for name, value in statistics.items():
        mean = aggregate(value, x.mask, loss_agg_mode="token-mean", **whole)
        assert mean.item() == pytest.approx(metrics[f"actor/{names[name]}"], abs=1e-6, rel=1e-6)
        assert mean.item() != 0.0  # each was at work


@DTYPES
@SEEDS
@pytest.mark.parametrize("kind", KINDS)
def test_kl(verl: SimpleNamespace, dtype: torch.dtype, seed: int, kind: str):
    """S2-16, S4-08: every estimate, its gradient, and its straight-through form."""
    x = batch(seed, dtype)
    theirs = verl.core_algos.kl_penalty(x.log_prob, x.ref, kind)
    ours = kl_penalty(x.log_prob, x.ref, kind=kind)
    agree(ours, theirs)
    gradients = [torch.autograd.grad(kl.sum(), x.log_prob)[0] for kl in (ours, theirs)]
    agree(*gradients)


@DTYPES
@SEEDS
@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl"])
def test_kl_in_the_reward(verl: SimpleNamespace, dtype: torch.dtype, seed: int, kind: str):
    """verl's `apply_kl_penalty`, whose file needs ray to be imported: its own text is run against verl's own names."""
    x = batch(seed, dtype)
    apply_kl_penalty = function_of(verl, "ray_trainer.py", "apply_kl_penalty")
    scores = torch.zeros(x.mask.shape, dtype=dtype)
    scores[:, -1] = x.rewards
    data = verl.protocol.DataProto.from_single_dict(
        {
            "response_mask": x.mask.long(),
            "token_level_scores": scores,
            "old_log_probs": x.old,
            "ref_log_prob": x.ref,
        }
    )
    data, _ = apply_kl_penalty(data, verl.core_algos.FixedKLController(0.05), kind)
    theirs = data.batch["token_level_rewards"].sum(-1)
    agree(rewards_minus_kl(x.rewards, x.old, x.ref, x.mask, kl_coef=0.05, kind=kind), theirs)


def function_of(verl: SimpleNamespace, file: str, name: str) -> Callable:
    """One function of a file beside core_algos.py, compiled from verl's text as it lies there."""
    path = os.path.join(os.path.dirname(inspect.getfile(verl.core_algos)), file)
    with open(path, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    names = {
        "torch": torch,
        "core_algos": verl.core_algos,
        "masked_mean": verl.functional.masked_mean,
        "DataProto": verl.protocol.DataProto,
    }
    exec(compile(ast.Module([found], type_ignores=[]), path, "exec"), names)  # noqa: S102  verl's code, not a user's
    return names[name]


@DTYPES
@SEEDS
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs(verl: SimpleNamespace, dtype: torch.dtype, seed: int, temperature: float):
    """S4-11: values and gradients over a vocabulary of 1,000, the logits up to 60 apart."""
    logits, tokens, weights = logits_and_tokens(seed, dtype)
    theirs = verl.functional.logprobs_from_logits(logits / temperature, tokens)
    ours = log_probs_of(logits, tokens, temperature=temperature)
    agree(ours, theirs)
    agree(*(torch.autograd.grad((weights * out).sum(), logits)[0] for out in (ours, theirs)))


@DTYPES
@SEEDS
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropy(verl: SimpleNamespace, dtype: torch.dtype, seed: int, temperature: float):
    """In float32 verl subtracts two numbers near 60, and is 1e-5 off by itself: its formula is taken in float64."""
    logits, _, weights = logits_and_tokens(seed, dtype)
    theirs = verl.functional.entropy_from_logits((logits / temperature).double()).to(dtype)
    ours = entropy_of(logits, temperature=temperature)
    agree(ours, theirs)
    agree(*(torch.autograd.grad((weights * out).sum(), logits)[0] for out in (ours, theirs)))


def logits_and_tokens(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [6, 10, 1000], tokens and the weights of a sum over them [6, 10]."""
    torch.manual_seed(seed)
    logits = (8 * torch.randn(6, 10, 1000, dtype=dtype)).requires_grad_()
    return logits, torch.randint(1000, (6, 10)), torch.randn(6, 10, dtype=dtype)


def test_log_probs_of_half_precision_logits(verl: SimpleNamespace):
    """What verl gets when it casts to float32 first; in bfloat16 itself it would be off in the third digit."""
    torch.manual_seed(0)
    logits, tokens = torch.randn(6, 10, 1000).bfloat16(), torch.randint(1000, (6, 10))
    agree(log_probs_of(logits, tokens), verl.functional.logprobs_from_logits(logits.float(), tokens))
