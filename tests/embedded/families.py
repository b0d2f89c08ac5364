"""A tiny configuration of every model family that is tried, and how each is known to differ."""

from __future__ import annotations

import transformers

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
# DeepSeek's latent attention: queries and keys have a part with positions and one without.
LATENT = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16}

FAMILIES: dict[str, transformers.PreTrainedConfig] = {
    "llama, grouped queries": transformers.LlamaConfig(**GROUPED),
    "smollm, tied embeddings": transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "qwen2": transformers.Qwen2Config(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=8),
    "qwen2-moe": transformers.Qwen2MoeConfig(
        **GROUPED, **EXPERTS, num_experts=4, shared_expert_intermediate_size=16, decoder_sparse_step=1
    ),
    "qwen3-moe": transformers.Qwen3MoeConfig(**GROUPED, **EXPERTS, head_dim=8, num_experts=4),
    "mistral, sliding window": transformers.MistralConfig(**GROUPED, sliding_window=8),
    "mixtral": transformers.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "gemma2, every other layer a window": transformers.Gemma2Config(**GROUPED, head_dim=8, sliding_window=8),
    "gemma3": transformers.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=8),
    "phi3": transformers.Phi3Config(**GROUPED),
    "gpt2, dropout": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.5),
    "deepseek-v2": transformers.DeepseekV2Config(
        **{**SMALL, "num_key_value_heads": 4}, **LATENT, **EXPERTS, n_routed_experts=4, n_shared_experts=1,
        first_k_dense_replace=1, topk_method="greedy", n_group=None, topk_group=None,
    ),
    "deepseek-v3": transformers.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4}, **LATENT, **EXPERTS, n_routed_experts=4, n_shared_experts=1,
        first_k_dense_replace=1, n_group=1, topk_group=1,
    ),
}  # fmt: skip
