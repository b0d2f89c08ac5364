"""Bytes of each phase on one GPU under verl (FSDP with the weights in shards, vLLM beside it), read in verl 0.9.1.

The actor keeps weights, gradients and AdamW in float32, each GPU its share; computing gathers a layer at a time in the
arithmetic's precision. Both offloads empty the GPU between the actor's turns only: the update needs all of it there.
The reference always waits in CPU memory (FSDP engines that only run forward are given CPUOffload). Decides nothing.
"""

from __future__ import annotations

from grpo.memory import constants
from grpo.memory.job import Job
from grpo.memory.parts import ADAM, GRADIENT, Phase, kept, passing


def phases(job: Job) -> list[Phase]:
    """load, rollout, log-prob, update, save, of one GPU."""
    context = [("CUDA and NCCL", constants.VERL_CONTEXT["actor"])]
    weights, optimizer = [("weights", weight_shard(job))], [("AdamW", ADAM * job.trained // job.shards)]
    gradients = [("gradients", GRADIENT * job.trained // job.shards)]
    sleeping = [("vLLM asleep", constants.VERL_CONTEXT["sleeping vLLM"])]
    if not job.vllm_sleeps:
        sleeping = [("vLLM", vllm_bytes(job))]
    waiting = [
        *([] if job.param_offload else weights),
        *([] if job.optimizer_offload else optimizer),
    ]
    tokens = micro_tokens(job)
    forward = [("activations", passing(job, tokens)), ("logits", _logits(job, tokens, "log-prob"))]
    backward = [("activations", kept(job, tokens)), ("logits", _logits(job, tokens, "update"))]
    at_work = [("AdamW at work", GRADIENT * job.trained // job.shards)]  # a tensor of every weight's size
    gathered = [("gathered weights", gathered_weights(job))]
    while_adam = sum(size for _, size in at_work) > sum(size for _, size in (*gathered, *backward))
    there = [] if job.optimizer_offload else optimizer
    return [
        Phase("load", (*context, *weights, ("a weight on its way", 4 * job.shape.largest))),
        Phase("rollout", (*context, *waiting, ("vLLM", vllm_bytes(job)))),
        Phase("log-prob", (*context, *weights, *there, *sleeping, *gathered, *forward)),
        Phase(
            "update",
            (
                *context,
                *weights,
                *optimizer,
                *gradients,
                *sleeping,
                *(at_work if while_adam else [*gathered, *backward]),
            ),
        ),
        Phase("save", (*context, *weights, *there, *sleeping, ("a weight gathered", 4 * job.shape.largest))),
    ]


def host_bytes(job: Job) -> dict[str, int]:
    """CPU memory of one machine, by what takes it; verl's processes themselves are not counted."""
    share = job.per_node / job.shards
    found = {"loading": 4 * job.shape.weights * (job.per_node if job.shape.head == 0 else 1)}
    if job.reference and not job.lora:
        found["reference"] = int(4 * job.shape.weights * share)
    if job.param_offload:
        found["weights"] = int(4 * (job.shape.weights + job.lora) * share)
    if job.optimizer_offload:
        found["AdamW"] = int(ADAM * job.trained * share)
    return found


def weight_shard(job: Job) -> int:
    """The actor's weights on one GPU, float32."""
    return 4 * (job.shape.weights + job.lora) // job.shards


def vllm_bytes(job: Job) -> int:
    """What vLLM takes on one GPU: its share of the memory, needed or not; where that is not known, its needs."""
    if job.memory is None:
        return vllm_weights(job) + constants.VLLM_ACTIVATIONS + cache_of_all(job)
    return int(job.vllm_share * job.memory)


def vllm_weights(job: Job) -> int:
    """vLLM's own copy of the weights on one GPU."""
    return job.width * job.shape.weights // job.tensor_parallel


def cache_per_token(job: Job) -> int:
    """Bytes of keys and values of one token, on each of the GPUs that share a vLLM."""
    return 2 * job.shape.kv_width * job.shape.layers * job.width // job.tensor_parallel


def cache_of_all(job: Job) -> int:
    """Keys and values of all responses that vLLM may run side by side, each prompt once per response."""
    replicas = max(1, job.gpus // job.tensor_parallel)
    lines = min(job.rows, -(-job.prompts * job.n // replicas))
    return lines * (job.prompt_tokens + job.response_tokens) * cache_per_token(job)


def responses_at_once(job: Job) -> int:
    """Responses of full length whose cache fits beside vLLM's weights on each replica; 0 = vLLM does not start."""
    room = vllm_bytes(job) - vllm_weights(job) - constants.VLLM_ACTIVATIONS
    return max(0, room // ((job.prompt_tokens + job.response_tokens) * cache_per_token(job)))


def vllm_lacks(job: Job) -> int:
    """Bytes by which vLLM's share is too small for its weights and one response; 0 where the memory is not known."""
    if job.memory is None:
        return 0
    one = (job.prompt_tokens + job.response_tokens) * cache_per_token(job)
    return max(0, vllm_weights(job) + constants.VLLM_ACTIVATIONS + one - vllm_bytes(job))


def micro_tokens(job: Job) -> int:
    """Tokens of the largest micro-batch on one GPU; every response with its own prompt."""
    longest = job.prompt_tokens + job.response_tokens
    mine = -(-job.mini_prompts * job.n // max(1, job.gpus // job.sequence_parallel))
    if job.micro_rows is not None:
        return min(job.micro_rows, mine) * longest // job.sequence_parallel
    # verl multiplies its limit by the GPUs that share a sequence; each of them holds its part again.
    return min(job.micro_tokens, -(-mine * longest // job.sequence_parallel))


def gathered_weights(job: Job) -> int:
    """Weights that are whole on the GPU while a layer computes: two layers, embedding and output layer."""
    ends = job.width * (job.shape.embedding + job.shape.head)
    layers = job.shape.layers + job.shape.encoder_layers
    inside = job.width * constants.VERL_PREFETCHED * job.shape.in_layers // layers
    return 0 if job.shards == 1 and job.width == 4 else ends + inside


def _logits(job: Job, tokens: int, phase: str) -> int:
    return tokens * job.shape.vocabulary * constants.VERL_LOGITS[phase] * job.width // 2
