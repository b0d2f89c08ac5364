"""Writes what both sides of bench/embedded.py are given: model folder, prompts, and the settings of the shape.

    python bench/small_shape.py FOLDER '{"prompts": 8, ...}'

The shape "small" of 3.2 million weights: Qwen2, 4 layers, 256 wide, 4 heads, 688 wide between, a token for every byte.
Random weights from a seed. A prompt of 64 ASCII characters is 64 tokens.
"""

from __future__ import annotations

import json
import random
import string
import sys
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.embedded.scratch import make_tokenizer


def write(folder: Path, *, prompts: int, prompt_characters: int, seed: int) -> None:
    """folder/model, folder/train.json with so many different prompts, and folder/val.json with one."""
    tokenizer = make_tokenizer("bytes")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, do_sample=True
    )
    logging.disable_progress_bar()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")

    letters, draw = string.ascii_letters + string.digits + " +-=?", random.Random(seed)
    texts = ["".join(draw.choices(letters, k=prompt_characters)) for _ in range(prompts + 1)]
    for name, some in {"train": texts[:-1], "val": texts[-1:]}.items():
        rows = [{"prompt": text, "ground_truth": name, "data_source": "bench"} for text in some]
        (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    weights = sum(weight.numel() for weight in model.parameters())
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    print(json.dumps({"weights": weights, "vocabulary": len(tokenizer), **versions}))


if __name__ == "__main__":
    write(Path(sys.argv[1]), **json.loads(sys.argv[2]))
