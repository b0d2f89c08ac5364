"""Preflight's rules about batches: how prompts and responses are shared by GPUs, mini-batches and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from grpo.engine import Refusal
from grpo.verl_backend.checks.facts import Facts
from grpo.verl_backend.settings.effective import BATCH, MINI, Effective, N
from grpo.verl_backend.settings.renamed import PER_GPU

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
DYNAMIC, LOG_DYNAMIC = f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"
MICRO, LOG_MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
REF_MICRO = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"


def shares(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """Every batch size that cannot be shared out."""
    for rule in (_batches, _counted, _over_all_gpus, _by_tokens):
        yield from rule(values)


def _batches(values: Effective) -> Iterator[Refusal]:
    """validate_config and engine_workers.py: train_mini_batch; every GPU gets the same number of responses."""
    processes, n = ranks(values), values[N]
    unit = processes // math.gcd(n, processes)
    # Without dynamic micro-batches verl also divides a step's responses by the GPUs, not only by the ranks.
    whole = unit if values[DYNAMIC] else math.lcm(unit, values.gpus // math.gcd(n, values.gpus))
    shared = f"x rollout.n={n} cannot be shared evenly by {gpus_of(values)}"
    if values[BATCH] % whole:
        near = multiples_near(whole, values[BATCH])
        yield Refusal(f"{values.said(BATCH)} {shared}; take {either(near)}", {BATCH: near[0]})
    elif values[MINI] % unit:
        near = nearest([size for size in divisors(values[BATCH]) if size % unit == 0], values[MINI])
        yield Refusal(f"{values.said(MINI)} {shared}; take {either(near)}", {MINI: near[0]})
    if values[BATCH] < values[MINI]:
        yield Refusal(
            f"{values.said(MINI)} is more than {values.said(BATCH)}; take {values[BATCH]} or less",
            {MINI: values[BATCH]},
        )


def _counted(values: Effective) -> Iterator[Refusal]:
    """prepare_micro_batches: a GPU's share of responses must be cut into equal micro-batches."""
    processes = ranks(values)
    if values[DYNAMIC]:
        return
    shares = {
        MICRO: values[MINI] * values[N],
        LOG_MICRO: values[BATCH] * values[N],
        REF_MICRO: values[BATCH] * values[N],
    }
    for key, responses in shares.items():
        share, size = responses // processes, values[key]
        if size is None:
            yield Refusal(f"{values.said(key)}: use_dynamic_bsz is off, so say how many responses go at once", {key: 1})
        elif responses % processes == 0 and share % size:
            near = nearest(divisors(share), size)
            yield Refusal(
                f"{values.said(key)} does not divide a GPU's {share} responses; take {either(near)}", {key: near[0]}
            )


def _over_all_gpus(values: Effective) -> Iterator[Refusal]:
    """The deprecated counts over all GPUs: they parse, and a bare assert follows when the model is loaded."""
    for old, new in PER_GPU.items():
        size = values[old]
        if size is not None:
            each = max(1, size * values.ulysses // values.gpus)
            fix = {old: None, new: each} | ({DYNAMIC: False} if new == MICRO else {})
            yield Refusal(
                f"{values.said(old)} counts over all {gpus_of(values)}, which verl no longer does; write {new}={each}",
                fix,
            )


def _by_tokens(values: Effective) -> Iterator[Refusal]:
    """engine_workers.py: init_model; seqlen_balancing.py."""
    if values[DYNAMIC] != values[LOG_DYNAMIC]:
        wanted = values[DYNAMIC]
        yield Refusal(f"{values.said(LOG_DYNAMIC)} must be the same as {values.said(DYNAMIC)}", {LOG_DYNAMIC: wanted})
    longest = values[PROMPT] + values[RESPONSE]
    if values[DYNAMIC] and values[TOKENS] * values.ulysses < longest:
        needed = -(-longest // values.ulysses)
        yield Refusal(
            f"{values.said(TOKENS)} is less than one sequence of {longest} tokens (prompt and response); "
            f"take {needed} or more",
            {TOKENS: needed},
        )


def ranks(values: Effective) -> int:
    """Over how many processes a mini-batch is divided: the GPUs that share a sequence count as one."""
    return max(1, values.gpus // values.ulysses)


def gpus_of(values: Effective) -> str:
    """`8 GPUs`, or processes where there are none."""
    noun = "process" if values.on_cpu else "GPU"
    plural = "processes" if values.on_cpu else "GPUs"
    return f"{values.gpus} {noun if values.gpus == 1 else plural}"


def nearest(candidates: Iterable[int], wish: int) -> list[int]:
    """The largest candidate below `wish` and the smallest above, the closer one first."""
    known = sorted(set(candidates))
    two = [number for number in known if number <= wish][-1:] + [number for number in known if number > wish][:1]
    return sorted(two, key=lambda number: abs(number - wish))


def multiples_near(unit: int, wish: int) -> list[int]:
    """The multiples of `unit` next to `wish`, the closer one first."""
    below = wish // unit * unit
    return nearest([number for number in (below, below + unit) if number > 0], wish)


def divisors(number: int) -> list[int]:
    """All of them, in order."""
    small = [candidate for candidate in range(1, math.isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def either(numbers: Iterable[int]) -> str:
    """`96 or 104`."""
    return " or ".join(map(str, sorted(numbers)))
