"""What to change when memory is short: what each knob saves, in the order to try, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.memory import constants, on_embedded, on_verl
from grpo.memory.job import PART, Job, lora_weights
from grpo.memory.parts import Phase

TOKENS, ROWS = f"{PART}.actor.ppo_max_token_len_per_gpu", f"{PART}.rollout.max_num_seqs"
GPUS = "--n_gpus"
RANK = 16  # of the adapter that is proposed


@dataclass(frozen=True)
class Knob:
    """words: what to type; changes: the job's fields that it sets; costs: what is paid for it."""

    words: str
    changes: Mapping[str, Any]
    costs: str

    def turned(self, job: Job) -> Job:
        """The job with this knob turned."""
        return replace(job, **self.changes)

    @property
    def name(self) -> str:
        """The setting that it turns."""
        return self.words.partition("=")[0].partition(" ")[0]


@dataclass(frozen=True)
class Saving:
    """peak: bytes of the largest phase with this knob alone; saves: bytes of that phase in which it saves most."""

    knob: Knob
    peak: int
    phase: str
    saves: int


def phases_of(job: Job) -> list[Phase]:
    """The phases on the job's engine."""
    return on_verl.phases(job) if job.engine == "verl" else on_embedded.phases(job)


def peak(job: Job) -> int:
    """Bytes of the largest phase."""
    return max(phase.bytes for phase in phases_of(job))


def room(job: Job) -> int | None:
    """Bytes that may be planned with; None where the memory is not known."""
    return None if job.memory is None else int(constants.MARGIN * job.memory)


def missing(job: Job) -> int:
    """Bytes that lack, over all phases; 0 = it fits, or the memory is not known."""
    there = room(job)
    if there is None:
        return 0
    lacking = sum(max(0, phase.bytes - there) for phase in phases_of(job))
    return lacking + (on_verl.vllm_lacks(job) if job.engine == "verl" else 0)


def savings(job: Job) -> list[Saving]:
    """Every knob that saves anything, each by itself, in the order to try: what costs least comes first."""
    before = {phase.name: phase.bytes for phase in phases_of(job)}
    found = []
    for knob in _knobs(job):
        turned = knob.turned(job)
        after = {phase.name: phase.bytes for phase in phases_of(turned)}
        name, saved = max(
            ((name, before[name] - after[name]) for name in after if name in before), key=lambda pair: pair[1]
        )
        if job.engine == "verl" and (lacks := on_verl.vllm_lacks(job) - on_verl.vllm_lacks(turned)) > saved:
            name, saved = "vLLM", lacks
        if saved > 0.005 * max(before.values()):
            found.append(Saving(knob, max(after.values()), name, saved))
    return found


def until_it_fits(job: Job, *, more_gpus: bool = True) -> tuple[list[Knob], Job]:
    """The knobs that help, one over the other in the order to try, until the run fits or none of them helps.

    Where that order leads nowhere (a smaller share for vLLM may leave none for its weights), the knob that saves most
    comes first. Those that turn out not to be needed are left alone. more_gpus: GPUs may be added.
    """
    found = _search(job, more_gpus, _first)
    if missing(found[1]):
        other = _search(job, more_gpus, _strongest)
        found = found if missing(other[1]) else other
    return found


Choice = Callable[[Sequence[tuple[Knob, int]]], Knob]


def _first(helpful: Sequence[tuple[Knob, int]]) -> Knob:
    return helpful[0][0]


def _strongest(helpful: Sequence[tuple[Knob, int]]) -> Knob:
    return min(helpful, key=lambda pair: pair[1])[0]


def _search(job: Job, more_gpus: bool, choice: Choice) -> tuple[list[Knob], Job]:
    """choice: takes the knobs that help, in the order to try, each with the bytes that then still lack."""
    taken: dict[str, Knob] = {}
    now = job
    while lacks := missing(now):
        tried = [(knob, missing(knob.turned(now))) for knob in _knobs(now) if more_gpus or knob.name != GPUS]
        helpful = [(knob, left) for knob, left in tried if left < lacks]
        if not helpful:
            break
        knob = choice(helpful)
        now = knob.turned(now)
        taken[knob.name] = knob
    for name in list(taken):
        others = [knob for knob in taken.values() if knob.name != name]
        if not missing(_turned(job, others)) and not missing(now):
            del taken[name]
    return list(taken.values()), _turned(job, taken.values())


def _turned(job: Job, knobs: Iterable[Knob]) -> Job:
    for knob in knobs:
        job = knob.turned(job)
    return job


def largest(job: Job) -> dict[str, int]:
    """Setting -> the largest value with which every phase fits; nothing where the memory is not known.

    For embedded and verl the tokens of a micro-batch; for embedded the responses side by side as well, which vLLM
    chooses by itself. A value of 0: none fits.
    """
    there = room(job)
    if there is None:
        return {}
    found = {}
    longest = job.prompt_tokens + job.response_tokens
    training = ("log-prob", "update")
    found[TOKENS] = _most(
        lambda tokens: _phases_fit(replace(job, micro_tokens=tokens, micro_rows=None), training, there), longest
    )
    if job.engine == "embedded":
        all_rows = job.prompts * job.n
        rows = _most(lambda rows: _phases_fit(replace(job, rows=rows), ("rollout",), there), job.n, step=job.n)
        found[ROWS] = min(rows, all_rows)
        found[TOKENS] = min(found[TOKENS], on_embedded.token_budget(replace(job, micro_tokens=2**40)))
    return found


def _phases_fit(job: Job, names: tuple[str, ...], there: int) -> bool:
    return all(phase.bytes <= there for phase in phases_of(job) if phase.name in names)


def _most(good: Callable[[int], bool], least: int, *, step: int = 1, ceiling: int = 2**20) -> int:
    """The largest value from `least` on for which good() holds, in steps; 0 where not even that one does."""
    if not good(least):
        return 0
    low, high = 0, max(1, (ceiling - least) // step)
    while low < high:
        middle = (low + high + 1) // 2
        if good(least + middle * step):
            low = middle
        else:
            high = middle - 1
    return least + low * step


def _knobs(job: Job) -> Iterator[Knob]:
    """Everything that may be turned, what costs least first."""
    longest = job.prompt_tokens + job.response_tokens
    now = job.micro_tokens if job.engine == "verl" else on_embedded.token_budget(job)
    half = max(longest, now // 2)
    if job.micro_rows is not None and job.micro_rows > 1:
        rows = job.micro_rows // 2
        yield Knob(f"{PART}.actor.ppo_micro_batch_size_per_gpu={rows}", {"micro_rows": rows}, "smaller micro-batches")
    elif job.micro_rows is None and half < now:
        yield Knob(f"{TOKENS}={half}", {"micro_tokens": half}, "more, smaller micro-batches")
    yield from _of_verl(job) if job.engine == "verl" else _of_embedded(job)
    if not job.checkpointing:
        name = f"{PART}.model.enable_gradient_checkpointing"
        yield Knob(f"{name}=true", {"checkpointing": True}, "a third more work in the update")
    if not job.lora:
        adapter = lora_weights(job.shape, RANK, "all-linear")
        yield Knob(f"--lora_rank {RANK}", {"lora": adapter}, "an adapter is trained: --lr ten times higher")
    elif job.engine == "embedded" and job.weight_bytes == 4 and job.device == "gpu":
        yield Knob("launcher.qlora=4", {"weight_bytes": 0.5}, "the model under the adapter is rounded")
    if job.reference and not job.lora and job.engine == "embedded":
        yield Knob("--use_kl_loss false", {"reference": False}, "no KL to the model it started from")
    if job.response_tokens >= 64:
        shorter = job.response_tokens // 2
        changes = {"response_tokens": shorter, "mean_response": min(job.mean_response, shorter)}
        yield Knob(f"--max_response_length {shorter}", changes, "longer answers are cut")


def _of_embedded(job: Job) -> Iterator[Knob]:
    lines = min(job.rows, job.prompts * job.n)
    half = max(job.n, lines // 2 // job.n * job.n)
    if half < lines:
        yield Knob(f"{ROWS}={half}", {"rows": half}, "sampling in more rounds")


def _of_verl(job: Job) -> Iterator[Knob]:
    lower = round(job.vllm_share - 0.1, 2)
    if lower >= 0.2:
        name = f"{PART}.rollout.gpu_memory_utilization"
        yield Knob(f"{name}={lower}", {"vllm_share": lower}, "room for fewer responses at once in vLLM")
    fsdp = f"{PART}.actor.fsdp_config"
    if not job.optimizer_offload:
        yield Knob(f"{fsdp}.optimizer_offload=true", {"optimizer_offload": True}, "moving them twice a step")
    if not job.param_offload:
        yield Knob(f"{fsdp}.param_offload=true", {"param_offload": True}, "moving them a few times a step")
    if 2 * job.tensor_parallel <= job.per_node:
        degree = 2 * job.tensor_parallel
        name = f"{PART}.rollout.tensor_model_parallel_size"
        yield Knob(f"{name}={degree}", {"tensor_parallel": degree}, "slower sampling")
    if 2 * job.sequence_parallel <= job.gpus:
        degree = 2 * job.sequence_parallel
        name = f"{PART}.actor.ulysses_sequence_parallel_size"
        yield Knob(f"{name}={degree}", {"sequence_parallel": degree}, "traffic between GPUs in every layer")
    if job.shards == job.gpus:
        more, mine = 2 * job.gpus, 2 * job.per_node
        yield Knob(f"{GPUS} {mine}", {"gpus": more, "shards": more, "per_node": mine}, "GPUs")
