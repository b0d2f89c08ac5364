"""What cannot be counted and was measured, or read in the code that does it, all in one place.

bench/memory.py compares what follows from these numbers with the peaks of real runs; measure again with it.
"""

from __future__ import annotations

GIB = 2**30
MB = 10**6

# The embedded engine.
# Bytes of a process in which torch and transformers are loaded and nothing else (Linux, torch 2.13 for CPUs); with
# CUDA the context and its libraries on the GPU.
PROCESS = {"cpu": 440 * MB, "gpu": 600 * MB}
# What autograd keeps of one token in one layer, in numbers: times hidden, query, key and inner width. Of a Llama-like
# layer the inputs, normed values and outputs of two norms, four values of the MLP, and what attention keeps: the
# packed attention of the embedded engine (measured) more of the queries' width than flash-attention does (counted).
# Where the layers are written out (grpo/embedded/llama_reading.py): inputs and outputs of two norms, gate, up and their
# product, and of attention what goes in and comes out (counted).
KEPT = {
    "embedded": {"hidden": 6.0, "query": 9.0, "kv": 2.0, "inner": 4.0},
    "written out": {"hidden": 4.0, "query": 2.0, "kv": 2.0, "inner": 3.0},
    "verl": {"hidden": 6.0, "query": 4.0, "kv": 2.0, "inner": 4.0},
}
# With gradient checkpointing, of each layer that is not at work, times the hidden width.
CHECKPOINTED = {"embedded": 9.0, "verl": 1.0}
# On their way through the layer at work: gradients in a backward pass; a layer's values in a pass without gradients.
GRADIENTS_PASSING = {"hidden": 2.0, "query": 2.0, "kv": 1.0, "inner": 2.0}
VALUES_PASSING = {"hidden": 5.0, "query": 4.0, "kv": 3.0, "inner": 3.0}
# Where several micro-batches follow each other, of their activations: pieces that the first one's left in the heap of
# the C library and the next one's do not fit into.
HEAP_PIECES = {"cpu": 0.4, "gpu": 0.0}
WORKSPACE = 20 * MB  # of matrix products, per process
SAMPLING_COPIES = 5.0  # of a sampling step's logits: float32, divided, probabilities, their sums, log-probs
CHUNK, KEPT_PROBABILITIES = 2**26, 2**28  # numbers: grpo/embedded/chunked.py
CHUNK_COPIES = {"forward": 1.0, "backward": 1.75}
ADAM_COPIES = 2.0  # of the largest weight, while AdamW works on it
LOAD_COPIES = 1.0  # of the largest weight, while a model is read
# A cache that grows by doubling has an old half beside the new whole; on a CPU, what is not yet written takes nothing.
CACHE_ROOM = {"cpu": 1.0, "gpu": 1.5}
# Families whose decoding is written out: prompts are kept once for their group, and on a CPU the weights are laid out
# a second time for products of few rows (grpo/embedded/llama_like.py, few_rows.py). On a CPU in float32 their layers
# are written out for the update as well.
WRITTEN_OUT = ("llama", "mistral", "qwen2", "qwen3")
FEW_ROWS_WORTH = 16  # tokens of a response from which on that is done
BUDGET = 128 * 10**6  # bytes of a micro-batch's activations on a CPU, in each lane: grpo/embedded/memory.py
PAIR_BUDGET = 512 * 10**6  # ... or as much, where that holds a prompt and two of its responses
LANES, LANES_LARGEST = (
    4,
    32 * 10**6,
)  # threads side by side at most, weights of a model for them: grpo/embedded/lanes.py
BUDGET_SHARE = {"cpu": 0.2, "gpu": 0.4}  # and at most this share of the memory

# verl 0.9.1, read in its code (workers/engine/fsdp/transformer_impl.py, workers/engine_workers.py); not yet measured on
# GPUs. CUDA context, NCCL and vLLM's graphs stay on the GPU whatever sleeps.
VERL_CONTEXT = {"actor": 2 * GIB, "sleeping vLLM": 2 * GIB}
VERL_LOGITS = {"log-prob": 4, "update": 8}  # bytes per token and vocabulary entry: bfloat16 logits, softmax, gradient
VERL_PREFETCHED = 2  # layers whose gathered weights are there at once
VLLM_ACTIVATIONS = 2 * GIB  # of its profiling run; part of its share
MARGIN = 0.95  # of a GPU's memory that can be had: fragments, other processes

# Peak numbers of cards, as their makers state them: bfloat16 TFLOP/s without sparsity, memory bandwidth in TB/s, GB.
CARDS = {
    "B200": (2250.0, 8.0, 180),
    "H200": (989.0, 4.8, 141),
    "H100": (989.0, 3.35, 80),
    "H800": (989.0, 3.35, 80),
    "H20": (148.0, 4.0, 96),
    "A100": (312.0, 2.04, 80),
    "A800": (312.0, 2.04, 80),
    "L40S": (362.0, 0.864, 48),
    "L20": (119.5, 0.864, 48),
    "A10": (125.0, 0.6, 24),
    "4090": (165.0, 1.008, 24),
    "3090": (71.0, 0.936, 24),
}
# Shares of the peaks that are assumed: of the FLOP/s in the update and in a forward pass, of the bandwidth in decoding.
ASSUMED = {"update": 0.4, "forward": 0.4, "decode": 0.5}
STEP_OVERHEAD = 20.0  # seconds of a verl step that are neither: weights to vLLM, waking and sleeping, Ray, rewards
