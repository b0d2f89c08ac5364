"""Bytes of each phase on the embedded engine: one process, all of the model on one device. Decides nothing.

Weights, gradients and AdamW are float32 whatever the arithmetic is in. Legend: L prompt tokens, R response tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.memory import constants
from grpo.memory.job import Job
from grpo.memory.parts import ADAM, GRADIENT, Phase, kept, passing


@dataclass(frozen=True)
class Cut:
    """The largest micro-batch. tokens: with each prompt once; rows: hidden states that go through the output layer."""

    groups: int
    tokens: int
    rows: int


def phases(job: Job) -> list[Phase]:
    """load, rollout, log-prob (with a reference), update, save, as from the second step on."""
    shape, narrow = job.shape, job.width == 2
    standing = [
        ("process", constants.PROCESS[job.device]),
        ("weights", int(shape.weights * (job.weight_bytes if job.lora else 4)) + 4 * job.lora),
    ]
    # With LoRA the reference is the model without its adapter, and a copy of the policy is one more adapter.
    standing += [("reference", 4 * shape.weights)] if job.reference and not job.lora else []
    standing += [("older policy", 4 * job.trained)] if job.old else []
    optimizer = [("AdamW", ADAM * job.trained)]
    cast = [("weights in bfloat16", 2 * shape.weights)] if narrow and not job.lora else []
    gradients = [("gradients", GRADIENT * job.trained * lanes(job))]
    cut = micro_batch(job)
    log_prob = [
        ("activations", passing(job, cut.tokens) + constants.WORKSPACE * lanes(job)),
        ("logits", logits(job, cut.rows, backward=False)),
    ]
    found = [
        Phase("load", (*standing[:2], ("copies while reading", int(constants.LOAD_COPIES * 4 * shape.largest)))),
        Phase("rollout", (*standing, *optimizer, *cast, *_sampling(job))),
    ]
    if job.reference:
        found.append(Phase("log-prob", (*standing, *optimizer, *cast, *log_prob)))
    found.append(Phase("update", (*standing, *optimizer, *gradients, *cast, *_update(job, cut))))
    found.append(Phase("save", (*standing, *optimizer)))
    return found


def lanes(job: Job) -> int:
    """Threads side by side, as grpo/embedded/lanes.py takes them; each has gradients of its own."""
    small = job.shape.family in constants.WRITTEN_OUT and job.shape.weights <= constants.LANES_LARGEST
    if job.device != "cpu" or job.width != 4 or job.lora or job.checkpointing or not small or job.threads < 2:
        return 1
    counts = range(2, min(constants.LANES, job.threads) + 1)
    return min(job.mini_prompts, max(counts, key=lambda count: (job.threads // count * count, count)))


def token_budget(job: Job) -> int:
    """Tokens of the micro-batches that run at once, as grpo/embedded/memory.py takes them.

    No limit where the memory is not known.
    """
    shape = job.shape
    per_token = 4 * (shape.layers * (14 * shape.hidden + 4 * shape.inner) + 4 * shape.vocabulary)
    share = constants.BUDGET_SHARE[job.device]
    room = share * job.memory if job.memory else float("inf")
    if job.device == "cpu":
        pair = (job.prompt_tokens + 2 * job.response_tokens) * per_token
        least = pair if pair <= constants.PAIR_BUDGET else 0
        room = min(room, lanes(job) * max(constants.BUDGET, 1024 * per_token, least))
    return int(min(job.micro_tokens, max(1, room / per_token)))


def micro_batch(job: Job) -> Cut:
    """The largest micro-batch when all are as long as they may be: whole groups, or a part of a large one.

    Those of all lanes together.
    """
    side_by_side, longest = lanes(job), job.response_tokens
    limit, prompts = token_budget(job) // side_by_side, -(-job.mini_prompts // side_by_side)
    if job.micro_rows is not None:
        most = max(1, job.micro_rows // side_by_side)
        groups = max(1, min(prompts, most // job.n))
        rows = job.n if groups > 1 else min(job.n, most)
    else:
        groups = max(1, min(prompts, limit // job.group_tokens))
        rows = job.n
        if groups == 1 and job.group_tokens > limit:
            rows = max(1, min(job.n, (limit - job.prompt_tokens) // longest))
    after, groups = rows * (longest - 1), min(job.mini_prompts, side_by_side * groups)
    return Cut(groups, groups * (job.prompt_tokens + after), groups * (1 + after))


def logits(job: Job, rows: int, *, backward: bool) -> int:
    """Of so many hidden states: in chunks, and the probabilities that are kept for the backward pass."""
    each = rows * job.shape.vocabulary // lanes(job)
    copies = constants.CHUNK_COPIES["backward" if backward else "forward"]
    chunks = int(4 * copies * min(each, constants.CHUNK))
    kept_too = 4 * each if backward and each <= constants.KEPT_PROBABILITIES and not job.lora else 0
    return lanes(job) * (chunks + kept_too)


def _sampling(job: Job) -> list[tuple[str, int]]:
    shape = job.shape
    prompts = max(1, min(job.prompts, job.rows // job.n))
    lines, token = prompts * job.n, 2 * shape.layers * job.width * shape.kv_width
    written_out = shape.family in constants.WRITTEN_OUT and job.weight_bytes == 4
    read = (prompts if written_out else lines) * job.prompt_tokens * token
    said = int(constants.CACHE_ROOM[job.device] * lines * job.response_tokens * token)
    across = lines * job.prompt_tokens * 2 * shape.layers * job.width * shape.cross_width
    laid_out = lanes(job) * job.width * shape.used if written_out and job.device == "cpu" and not job.lora else 0
    prefill = passing(job, prompts * job.prompt_tokens)
    step = int(4 * constants.SAMPLING_COPIES * lines * shape.vocabulary)
    return [
        ("KV cache", read + said + across),
        ("weights laid out to decode", laid_out if job.response_tokens >= constants.FEW_ROWS_WORTH else 0),
        ("prompts or logits", max(prefill, step) + constants.WORKSPACE * lanes(job)),
    ]


def _update(job: Job, cut: Cut) -> list[tuple[str, int]]:
    """While the backward pass runs, or while AdamW does: whichever takes more."""
    seen = logits(job, cut.rows, backward=True)
    # A tied embedding gets its gradient from both of its ends before they are added up.
    second = 0 if job.lora else 4 * job.shape.largest
    adam = 0 if job.lora else int(4 * constants.ADAM_COPIES * job.shape.largest)
    activations = kept(job, cut.tokens)
    if cut.tokens < job.mini_prompts * (job.prompt_tokens + job.n * (job.response_tokens - 1)):  # one of several
        activations = int(activations * (1 + constants.HEAP_PIECES[job.device]))
    backward = [("activations", activations), ("logits", seen), ("second gradient of the embedding", second)]
    if sum(size for _, size in backward) >= adam:
        return backward
    return [("AdamW at work", adam)]
