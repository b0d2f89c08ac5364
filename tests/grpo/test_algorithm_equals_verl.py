"""grpo/algorithm/ and verl 0.9.1 side by side on random inputs: numbers and gradients agree to 1e-6.

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
    ADV_ESTIMATORS,
    LOSS_AGG_MODES,
    LOSS_MODES,
    adapted_kl_coef,
    advantages_of,
    aggregate,
    discounted_returns,
    entropy_of,
    group_advantages,
    groups_with_signal,
    kl_penalty,
    log_probs_of,
    overlong_penalty,
    policy_loss,
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
@pytest.mark.parametrize("norm_by_std", [True, False])
@pytest.mark.parametrize("estimator", ADV_ESTIMATORS)
def test_every_estimator(verl: SimpleNamespace, dtype: torch.dtype, seed: int, norm_by_std: bool, estimator: str):
    """S0-01, S0-02: token rewards with a KL at every token, groups of different size, ragged responses."""
    x = batch(seed, dtype)
    x.mask[:, 0] = True  # verl's length for opo is never 0 in a run
    if estimator in (
        "grpo_passk",
        "grpo_vectorized",
        "rloo_vectorized",
    ):  # verl refuses a group of one, or has 0 for it
        x.uid[x.uid == 0] = 1
    dtype = torch.float32 if estimator == "gdpo" else dtype  # verl's own, for the parts
    parts = torch.randn(30, 3, dtype=dtype)
    rewards = torch.where(x.mask, 0.1 * torch.randn(x.mask.shape, dtype=dtype), 0.0)
    config = {"norm_adv_by_std_in_grpo": norm_by_std, "gamma": 0.9}
    config |= {"gdpo_reward_keys": ["a", "b", "c"], "gdpo_reward_weights": [1.0, 0.5, 2.0]}
    given = {"index": x.uid.numpy(), "norm_adv_by_std_in_grpo": norm_by_std, "config": Config(config)}
    if estimator == "gdpo":
        whole = torch.cat([torch.ones(30, 4), x.mask], 1).long()
        given |= {"non_tensor_batch": {name: parts[:, i].numpy() for i, name in enumerate("abc")}}
        given |= {"batch": {"prompts": torch.zeros(30, 4), "attention_mask": whole}}
    named = inspect.signature(verl.core_algos.get_adv_estimator_fn(estimator)).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in named.values())
    given = {name: value for name, value in given.items() if takes_all or name in named}
    theirs, _ = verl.core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=rewards.clone(), response_mask=x.mask.to(dtype), **given
    )
    ours = advantages_of(
        rewards,
        x.mask,
        x.uid,
        estimator=estimator,
        norm_by_std=norm_by_std,
        gamma=0.9,
        parts=parts,
        part_weights=[1.0, 0.5, 2.0],
    )
    agree(ours, theirs)


class Config(dict):
    """verl reads its configuration both as attributes and with `get`."""

    __getattr__ = dict.__getitem__


def test_returns(verl: SimpleNamespace):
    """S0-02: a token outside the mask within a response passes on what follows."""
    torch.manual_seed(0)
    rewards, mask = torch.randn(4, 6, dtype=torch.float64), torch.rand(4, 6) > 0.4
    mask[:, 0] = True
    _, theirs = verl.core_algos.compute_reinforce_plus_plus_outcome_advantage(
        rewards, mask.double(), config=Config(gamma=0.7)
    )
    agree(discounted_returns(rewards, mask, gamma=0.7), theirs)


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
@pytest.mark.parametrize("loss_mode", LOSS_MODES)
def test_policy_loss(verl: SimpleNamespace, dtype: torch.dtype, seed: int, mode: str, loss_mode: str):
    """S2-29: the loss, its gradient and its statistics, with every clip, gate and clamp at work."""
    x = batch(seed, dtype)
    mode = "seq-mean-token-mean" if loss_mode == "sapo" else mode  # verl knows no other for it
    tokens, responses = int(x.mask.sum()), 40
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 2.5, "tau_pos": 1.0, "tau_neg": 1.05}
    config = verl.actor_config(strategy="fsdp", rollout_n=5, use_dynamic_bsz=True, **clip)
    totals = {"batch_num_tokens": tokens, "global_batch_size": responses, "loss_scale_factor": 11}
    config.global_batch_info.update(dp_size=1, **totals)
    spread = x.advantages[:, None].expand(x.mask.shape)
    theirs, metrics = verl.core_algos.get_policy_loss_fn(loss_mode)(
        x.old, x.log_prob, spread, x.mask.to(dtype), mode, config
    )
    (their_gradient,) = torch.autograd.grad(theirs, x.log_prob)

    losses, statistics = policy_loss(x.log_prob, x.old, x.advantages, x.mask, loss_mode=loss_mode, **clip)
    whole = {"batch_tokens": tokens, "batch_responses": responses, "loss_scale_factor": 11}
    ours = aggregate(losses, x.mask, loss_agg_mode=mode, **whole)
    agree(ours, theirs)
    agree(torch.autograd.grad(ours, x.log_prob)[0], their_gradient)
    names = {"clip_fraction": "pg_clipfrac", "clip_fraction_lower": "pg_clipfrac_lower", "ppo_kl": "ppo_kl"}
    for name, value in statistics.items():
        mean = aggregate(value, x.mask, loss_agg_mode="token-mean", **whole)
        if loss_mode != "gpg":  # verl has no statistics of it
            assert mean.item() == pytest.approx(metrics[f"actor/{names[name]}"], abs=1e-6, rel=1e-6)
        assert mean.item() != 0.0  # each was at work
    assert all(metrics[f"actor/{names[name]}"] == 0 for name in names.keys() - statistics.keys() if metrics)


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
    x.mask[:, 0] = True
    last = torch.arange(16) == x.mask.sum(1, keepdim=True) - 1
    scores = torch.where(last, x.rewards[:, None], 0.0)
    data = verl.protocol.DataProto.from_single_dict(
        {
            "response_mask": x.mask.long(),
            "token_level_scores": scores,
            "old_log_probs": x.old,
            "ref_log_prob": x.ref,
        }
    )
    controller = verl.core_algos.AdaptiveKLController(0.05, target_kl=0.1, horizon=100)
    data, _ = apply_kl_penalty(data, controller, kind)
    ours, mean = rewards_minus_kl(x.rewards, x.old, x.ref, x.mask, kl_coef=0.05, kind=kind)
    theirs = data.batch["token_level_rewards"]
    agree(ours, theirs)
    ours = adapted_kl_coef(0.05, float(mean), target_kl=0.1, horizon=100, responses=len(x.rewards))
    assert ours == pytest.approx(controller.value, rel=1e-6)
    assert ours != 0.05


@pytest.mark.parametrize("kl", [-1.0, 0.0, 0.07, 0.1, 0.13, 5.0])
def test_the_adaptive_weight_of_the_kl(verl: SimpleNamespace, kl: float):
    controller = verl.core_algos.AdaptiveKLController(0.2, target_kl=0.1, horizon=1000)
    controller.update(kl, 64)
    assert adapted_kl_coef(0.2, kl, target_kl=0.1, horizon=1000, responses=64) == pytest.approx(controller.value)


def test_the_overlong_penalty(verl: SimpleNamespace):
    """S0-41. The line of verl's dapo manager that computes it is run as it stands there."""
    path = os.path.join(
        os.path.dirname(sys.modules["verl"].__file__), "experimental/reward_loop/reward_manager/dapo.py"
    )
    with open(path, encoding="utf-8") as stream:
        lines = [line.strip() for line in stream if line.strip().startswith(("exceed_len =", "overlong_reward ="))]
    assert len(lines) == 2
    lengths = torch.arange(0, 101, dtype=torch.long)
    theirs = []
    for length in lengths.tolist():
        names = {"valid_response_length": length, "expected_len": 80, "overlong_buffer_len": 20}
        names["overlong_penalty_factor"] = 0.7
        exec("\n".join(lines), names)  # noqa: S102  verl's code, not a user's
        theirs.append(float(names["overlong_reward"]))
    agree(overlong_penalty(lengths, max_length=100, buffer=20, factor=0.7), torch.tensor(theirs))


@SEEDS
def test_which_groups_dynamic_sampling_keeps(seed: int):
    """S0-41, as verl's ReplayBuffer: a group of several whose deviation is 0 goes (a group of one has no signal)."""
    x = batch(seed, torch.float64)
    rewards = (x.rewards > 0.8).double()
    kept = groups_with_signal(rewards, x.uid)
    for group in x.uid.unique():
        mine = rewards[x.uid == group].numpy()
        assert kept[x.uid == group].all() == (mine.std() > 0)
        assert kept[x.uid == group].any() == (mine.std() > 0)


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
