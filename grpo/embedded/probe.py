"""Some seconds of the engine's own work on thin copies of a model, from which grpo/memory/seconds.py estimates a step.

A copy has the model's widths, one or two of its layers and a part of its vocabulary, so that what a layer takes, what
a token of the vocabulary takes and the rest come out by differences; a small model is run as it is. What runs is the
engine's sampling, log-probs and update, so the estimate is of this engine on this machine. Weights mean nothing here.
Leaves out the reward, and reading and writing files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import Any

import torch
from omegaconf import DictConfig
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from grpo.embedded.choosing import Sampling
from grpo.embedded.few_rows import WORTH
from grpo.embedded.lanes import LARGEST, Tell, side_by_side
from grpo.embedded.passes import log_probs
from grpo.embedded.policy import Policy, choose_device, choose_dtype
from grpo.embedded.rollout import Rollouts, sample
from grpo.embedded.settings import settings_of
from grpo.embedded.update import Batch, update
from grpo.engine import EngineError

WORK = ("prefill", "decode", "decode_few", "forward", "backward")
_WHOLE = 20_000_000  # weights of a model that is run as it is
_WORDS = 8192  # of the vocabulary, and twice as many
_FLOPS = {"cpu": 5e9, "cuda": 5e12, "mps": 1e11}  # of one piece of work, about
_TOKENS = 128  # fewer at once would be slower by the token than a real batch
_FEWEST = 32  # of a large model on a CPU, whose copies take seconds with more: 8 x _FLOPS bounds them
_LONG = 2.0  # seconds after which a piece of work is not repeated, nor another token sampled
_TOO_LONG = 600.0  # seconds that a lane waits for another, which may have failed
_STEPS = WORTH  # decoding steps: as few as those for which weights are laid out (few_rows.py)
_ADAM = 4_000_000  # weights that AdamW is timed on


@dataclass(frozen=True)
class Sizes:
    """What the run would do. prompt, response: mean tokens; lines: responses side by side; n: of a group.

    in_layer: weights of a layer that a token uses.
    """

    prompt: int
    response: int
    lines: int
    n: int
    layers: int
    in_layer: int
    vocabulary: int
    hidden: int

    @property
    def used(self) -> int:
        """Weights that a token is multiplied with."""
        return self.layers * self.in_layer + self.vocabulary * self.hidden


def probe(
    config: DictConfig, model: Mapping[str, Any], sizes: Sizes, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """The fields of grpo.memory.seconds.Probed, kinds of work as (fixed, per layer, per token of the vocabulary).

    model: the contents of its config.json; clock: what seconds are. Raises EngineError for a model that this engine
    does not run.
    """
    device = choose_device(config.trainer.device)
    dtype = choose_dtype(config.launcher.dtype, device)
    whole = sizes.used <= _WHOLE
    words = _WORDS if not whole and sizes.vocabulary > 2 * _WORDS else sizes.vocabulary
    forms = [(sizes.layers, words)] if whole else [(1, words), (2, words)]
    if words < sizes.vocabulary:
        forms.append((1, 2 * words))
    batch, runs = None, []
    for form in forms:  # one at a time: a layer of a large model takes a gigabyte
        thin = Policy(_thin(model, *form), None, device, dtype, [0], 0)  # type: ignore[arg-type]
        thin.in_lanes = sizes.used <= LARGEST  # where the model's own work is shared out among threads
        batch = batch or _batch_of(sizes, device, thin.lanes)
        runs.append(_measured(config, thin, batch, clock))
        del thin
    assert batch is not None
    found: dict[str, Any] = {"decode_lines": batch.lines, "few_lines": batch.few}
    found["prefill_tokens"] = batch.prompts * batch.prompt
    found["packed_tokens"] = batch.groups * (batch.prompt + batch.n * batch.response)
    found |= {name: told_apart([run[name] for run in runs], whole=whole, words=words) for name in WORK}
    weights = 6 * found["packed_tokens"] * sizes.used
    backward = sum(
        part * times for part, times in zip(found["backward"], (1, sizes.layers, sizes.vocabulary), strict=True)
    )
    found |= {"flops": weights / max(backward, 1e-9), "bandwidth": _bandwidth(clock)}
    found |= {"adam_per_weight": _adam(min(_ADAM, sizes.used), device, clock), "bfloat16": dtype == torch.bfloat16}
    return found


def told_apart(seconds: Sequence[float], *, whole: bool, words: int) -> tuple[float, float, float]:
    """(fixed, per layer, per token of the vocabulary) of one kind of work.

    seconds: with one layer, with two, and where the vocabulary is cut, with one layer and twice as many `words`;
    of a model that was run as it is (whole), one number.
    """
    if whole:
        return seconds[0], 0.0, 0.0
    layer = max(0.0, seconds[1] - seconds[0])
    word = max(0.0, seconds[2] - seconds[0]) / words if len(seconds) == 3 else 0.0
    return max(0.0, seconds[0] - layer - words * word), layer, word


@dataclass(frozen=True)
class _Sample:
    """What is run of a step. context: tokens before the one that is decoded; prompts: read at once."""

    lines: int
    context: int
    prompts: int
    prompt: int
    groups: int
    n: int
    response: int

    @property
    def few(self) -> int:
        """Responses that are left when most of them have ended."""
        return max(1, self.lines // 8)


def _batch_of(sizes: Sizes, device: torch.device, lanes: int = 1) -> _Sample:
    """As much of a step as there is time for, of which each lane has groups of its own.

    In a small model attention counts as much as the weights, so that responses there are as long as they will be; in a
    thin copy of a large one there are fewer tokens.
    """
    whole = sizes.used <= _WHOLE
    thin = 2 * sizes.in_layer + min(sizes.vocabulary, 2 * _WORDS) * sizes.hidden
    most = int(_FLOPS[device.type] / (2 * (sizes.used if whole else thin)))
    most = max(_FEWEST, most, min(_TOKENS, 8 * most))
    prompt = max(1, min(sizes.prompt, most // 2))
    packed = max(most, min(4 * most, prompt + 2 * sizes.response)) if whole else most
    n = max(1, min(sizes.n, (packed - prompt) // sizes.response))
    response = max(2, min(sizes.response, (packed - prompt) // n))
    groups = lanes * max(1, min(sizes.lines // sizes.n // lanes, packed // (prompt + n * response)))
    lines = max(1, min(sizes.lines, most))
    context = max(1, min(sizes.prompt // sizes.n + sizes.response // 2, (12 if whole else 2) * most // lines))
    prompts = max(1, min(sizes.lines // sizes.n, most // prompt))
    return _Sample(lines, context, prompts, prompt, groups, n, response)


def _thin(model: Mapping[str, Any], layers: int, words: int) -> PreTrainedModel:
    """The model with so many layers and words."""
    family = str(model.get("model_type"))
    if family not in CONFIG_MAPPING:
        raise EngineError(f"model_type {family}: this version of transformers does not know it")
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    plain = {
        key: value for key, value in model.items() if key not in ("model_type", "layer_types", "dtype", "torch_dtype")
    }
    config = AutoConfig.for_model(family, **{**plain, **ids})
    config.num_hidden_layers, config.vocab_size = layers, words
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    try:
        with torch.random.fork_rng(devices=[]):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise EngineError(f"model_type {family}: the time of a step can be probed of decoders only") from error


def _measured(config: DictConfig, policy: Policy, batch: _Sample, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of each kind of work on one thin copy."""
    return {
        "decode": _decoding(policy, batch.lines, batch.context, clock),
        "decode_few": _decoding(policy, batch.few, batch.context, clock),
        "prefill": _best(lambda: _prefill(policy, batch), clock, policy.device),
        **_training(config, policy, batch, clock),
    }


class _Enough(Exception):
    """So many decoding steps have been timed that more are not worth their time."""


def _decoding(policy: Policy, lines: int, context: int, clock: Callable[[], float]) -> float:
    """Seconds of one decoding step of so many lines, in the middle of the responses: the median of a few.

    Lanes share the lines; their steps are timed once all of them have read their prompts.
    """
    lanes = min(policy.lanes, lines)
    alone, ready = dataclasses.replace(policy, in_lanes=False), Barrier(lanes)

    def run(count: int, _: Tell) -> float:
        times: list[float] = []

        def note(_: int) -> None:
            if not times:
                ready.wait(_TOO_LONG)
            times.append(clock())
            if len(times) > 3 and times[-1] - times[0] > _LONG:
                raise _Enough

        prompts = [[1 + (row + at) % 7 for at in range(context)] for row in range(count)]
        sampling = Sampling(n=1, max_length=_STEPS, min_length=_STEPS)
        with contextlib.suppress(_Enough):
            sample(alone, prompts, sampling, seed=0, max_rows=count, on_token=note)
        steps = sorted(after - before for before, after in itertools.pairwise(times[1:]))
        return steps[len(steps) // 2]

    return max(side_by_side([partial(run, -(-(lines - lane) // lanes)) for lane in range(lanes)]))


def _prefill(policy: Policy, batch: _Sample) -> None:
    ids = torch.ones(batch.prompts, batch.prompt, dtype=torch.long, device=policy.device)
    with torch.no_grad(), policy.arithmetic():
        policy.read_prompts(ids, torch.ones_like(ids))


def _training(config: DictConfig, policy: Policy, batch: _Sample, clock) -> dict[str, float]:
    """Log-probs without gradient, and forward and backward of an update."""
    settings, device, rows = settings_of(config), policy.device, batch.groups * batch.n
    ids = torch.ones(batch.groups, batch.prompt, dtype=torch.long, device=device)
    answers = torch.ones(rows, batch.response, dtype=torch.long, device=device)
    zeros, mask = torch.zeros(rows, batch.response, device=device), torch.ones_like(answers)
    uid = torch.arange(batch.groups, device=device).repeat_interleave(batch.n)
    rollouts = Rollouts(ids, torch.ones_like(ids), answers, mask, zeros, uid, torch.zeros(rows, device=device).bool())
    signs = torch.where(torch.arange(rows, device=device) % 2 == 0, 1.0, -1.0)
    reference = zeros if settings.objective.kl_loss_coef is not None else None
    learned = Batch(rollouts, signs[:, None].repeat(1, batch.response), mask, reference, on_policy=True)
    tokens = batch.groups * batch.prompt + rows * batch.response
    forward = _best(lambda: log_probs(policy, rollouts, temperature=1.0, max_tokens=tokens), clock, device)
    optimizer = _NoStep(policy.trained(), lr=0.0)

    def learn() -> None:
        update(policy, optimizer, learned, settings.objective, clip_grad=1.0, max_tokens=tokens)

    backward = _best(learn, clock, device)
    clipping = _best(lambda: torch.nn.utils.clip_grad_norm_(policy.trained(), 1.0), clock, device)
    return {"forward": forward, "backward": max(0.0, backward - clipping)}


class _NoStep(torch.optim.SGD):
    """AdamW is timed by itself: its time goes with the weights, not with the tokens."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing."""


def _adam(weights: int, device: torch.device, clock: Callable[[], float]) -> float:
    """Seconds of AdamW and of clipping, for each weight."""
    weight = torch.nn.Parameter(torch.zeros(weights, device=device))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-9, fused=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()

    return _best(step, clock, device, times=3) / weights


def _best(work: Callable[[], Any], clock: Callable[[], float], device: torch.device, times: int = 4) -> float:
    """Seconds of the fastest of a few, of which the first also warms up; of fewer where each takes long."""
    taken = []
    for _ in range(times):
        began = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(clock() - began)
        if sum(taken) > _LONG:
            break
    return min(taken)


def _bandwidth(clock: Callable[[], float]) -> float:
    """Bytes a second that a copy in memory reads and writes."""
    there = torch.zeros(8_000_000)
    other = torch.empty_like(there)
    return 2 * 4 * len(there) / max(1e-9, _best(lambda: other.copy_(there), clock, torch.device("cpu"), times=3))
