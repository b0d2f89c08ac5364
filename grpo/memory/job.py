"""What of a run's settings decides its memory and its time, as plain numbers; one place that knows the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from grpo.config import Settings
from grpo.memory.shape import Shape, read_shape, scratch_of

PART = "actor_rollout_ref"
# Layers that LoRA may adapt: (what goes in, what comes out), by the names that transformers has for them.
_LINEAR = {
    **dict.fromkeys(("q_proj", "q"), ("hidden", "query_width")),
    **dict.fromkeys(("k_proj", "v_proj", "k", "v"), ("hidden", "kv_width")),
    **dict.fromkeys(("o_proj", "o"), ("query_width", "hidden")),
    **dict.fromkeys(("gate_proj", "up_proj"), ("hidden", "inner")),
    "down_proj": ("inner", "hidden"),
}
_ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Job:
    """One run in numbers.

    engine: embedded | verl; device: cpu | gpu; memory: bytes of the machine or of one GPU, None = not known
    prompts, mini_prompts: of a step, of an optimizer step; epochs: passes over a step's responses
    prompt_tokens, response_tokens: the longest; mean_prompt, mean_response: what is expected, for the time
    rows: responses sampled side by side; micro_tokens, micro_rows: of a forward and backward, rows None = by tokens
    width: bytes of a number in the arithmetic; weight_bytes: of one frozen weight under LoRA (0.5 = 4 bits)
    lora: weights that are trained instead of all, 0 = all; entropy: none | metric | loss
    reference: a second model is measured against; old: a copy of the policy samples
    gpus: over all machines; tensor_parallel: GPUs of one vLLM; shards: GPUs that share a weight; sequence_parallel:
    GPUs that share a sequence; vllm_share: gpu_memory_utilization
    steps: in all, None = not known; threads: processors of a CPU for one process
    """

    engine: str
    device: str
    shape: Shape
    memory: int | None
    prompts: int
    mini_prompts: int
    n: int
    epochs: int
    prompt_tokens: int
    response_tokens: int
    mean_prompt: float
    mean_response: float
    rows: int
    micro_tokens: int
    micro_rows: int | None
    width: int
    weight_bytes: float
    lora: int
    checkpointing: bool
    entropy: str
    reference: bool
    old: bool
    gpus: int
    per_node: int
    tensor_parallel: int
    shards: int
    sequence_parallel: int
    vllm_share: float
    vllm_sleeps: bool
    param_offload: bool
    optimizer_offload: bool
    steps: int | None
    threads: int = 1

    @property
    def trained(self) -> int:
        """Weights that have gradients and optimizer states."""
        return self.lora or self.shape.weights

    @property
    def group_tokens(self) -> int:
        """Tokens of the longest group, its prompt once."""
        return self.prompt_tokens + self.n * self.response_tokens


def job_of(
    settings: Settings,
    *,
    engine: str,
    device: str,
    memory: int | None,
    bfloat16: bool,
    steps: int | None = None,
    mean_prompt: float | None = None,
    mean_response: float | None = None,
    threads: int = 1,
) -> Job:
    """The numbers of these settings. bfloat16: what the arithmetic is in. Raises ConfigError for an unknown model."""
    model, actor, rollout = f"{PART}.model", f"{PART}.actor", f"{PART}.rollout"
    shape = read_shape(str(settings[f"{model}.path"]), scratch=scratch_of(settings))
    longest = (settings["data.max_prompt_length"], settings["data.max_response_length"])
    checkpointing, gpus = settings[f"{model}.enable_gradient_checkpointing"], settings["trainer.n_gpus_per_node"]
    world = gpus * settings["trainer.nnodes"] if engine == "verl" else 1
    processes = 1 if engine == "verl" else gpus  # each has the whole model, and its share of the prompts
    if device == "cpu" and memory is not None:
        memory //= processes
    fsdp_size = _verl_only(settings, f"{actor}.fsdp_config.fsdp_size", -1)
    rank, bits = settings[f"{model}.lora_rank"], settings["launcher.qlora"]
    entropy = "loss" if settings[f"{actor}.entropy_coeff"] else "none"
    if entropy == "none" and settings[f"{actor}.calculate_entropy"]:
        entropy = "metric"
    return Job(
        engine=engine,
        device=device,
        shape=shape,
        memory=memory,
        prompts=-(-settings["data.train_batch_size"] // processes),
        mini_prompts=-(-settings[f"{actor}.ppo_mini_batch_size"] // processes),
        n=settings[f"{rollout}.n"],
        epochs=settings[f"{actor}.ppo_epochs"],
        prompt_tokens=longest[0],
        response_tokens=longest[1],
        mean_prompt=longest[0] if mean_prompt is None else mean_prompt,
        mean_response=longest[1] if mean_response is None else mean_response,
        rows=settings[f"{rollout}.max_num_seqs"],
        micro_tokens=settings[f"{actor}.ppo_max_token_len_per_gpu"],
        micro_rows=None if settings[f"{actor}.use_dynamic_bsz"] else settings[f"{actor}.ppo_micro_batch_size_per_gpu"],
        width=2 if bfloat16 else 4,
        weight_bytes=bits / 8 if bits else 4,
        lora=lora_weights(shape, rank, settings[f"{model}.target_modules"]) if rank else 0,
        checkpointing=engine == "verl" if checkpointing is None else bool(checkpointing),
        entropy=entropy,
        reference=bool(settings[f"{actor}.use_kl_loss"] or settings["algorithm.use_kl_in_reward"]),
        old=settings["launcher.update_old_after"] > 1,
        gpus=world,
        per_node=gpus if engine == "verl" else 1,
        tensor_parallel=settings[f"{rollout}.tensor_model_parallel_size"],
        shards=world if fsdp_size in (-1, 0) else min(world, fsdp_size),
        sequence_parallel=_verl_only(settings, f"{actor}.ulysses_sequence_parallel_size", 1),
        vllm_share=settings[f"{rollout}.gpu_memory_utilization"],
        vllm_sleeps=bool(_verl_only(settings, f"{rollout}.free_cache_engine", True)),
        param_offload=bool(settings[f"{actor}.fsdp_config.param_offload"]),
        optimizer_offload=bool(settings[f"{actor}.fsdp_config.optimizer_offload"]),
        steps=steps,
        threads=max(1, threads // processes),
    )


def lora_weights(shape: Shape, rank: int, targets: Any) -> int:
    """Weights of an adapter: rank x (in + out) of every adapted layer; experts are not adapted."""
    names = _ALL if targets == "all-linear" or isinstance(targets, str) else [str(name) for name in targets]
    pairs = [_LINEAR[name.rpartition(".")[2]] for name in names if name.rpartition(".")[2] in _LINEAR]
    each = sum(getattr(shape, into) + getattr(shape, out) for into, out in pairs or [_LINEAR[name] for name in _ALL])
    return rank * shape.layers * each


def _verl_only(settings: Settings, key: str, default: Any) -> Any:
    """A key that only verl has, where the user gave it; else what verl does by itself."""
    text = settings.passthrough.get(key)
    return default if text is None else yaml.safe_load(text.partition("=")[2])
