"""Model folders of real architectures with random weights, as small as they can be."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from grpo.embedded.scratch import make_tokenizer

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(**changes) -> transformers.PreTrainedConfig:
    return transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 2, **changes})


def gpt2(**changes) -> transformers.PreTrainedConfig:
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    return transformers.GPT2Config(**{**shape, **changes})


def model_folder(config: transformers.PreTrainedConfig, folder: Path, *, seed: int = 0, tokenizer=None) -> Path:
    """A folder with weights and a tokenizer that has a token for every byte. The weights are scaled up, so that the
    model's choices are far from uniform."""
    tokenizer = tokenizer or make_tokenizer("bytes")
    config.vocab_size = len(tokenizer)
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, None, 1
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(3.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
