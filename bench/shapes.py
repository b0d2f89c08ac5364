"""The shapes that bench/compare.py measures, and the files that every side of it is given.

    python bench/shapes.py FOLDER SHAPE STEPS SEED      writes FOLDER/model, FOLDER/train.json, FOLDER/val.json

Weights are random, from a seed. An ASCII character of a prompt is a token.
"""

from __future__ import annotations

import json
import math
import random
import string
import sys
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Shape:
    """prompts a step x n responses x tokens. shortest: the fewest tokens of a response, `tokens` where all are as long;
    mean: tokens at which half of an EOS-happy policy's responses are about over; prompt: characters, from and to."""

    prompts: int
    n: int
    tokens: int
    prompt: tuple[int, int]
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int | None = None  # None: a token for every byte
    shortest: int | None = None
    mean: int | None = None
    warmup: int = 2
    steps: int = 6

    @property
    def responses(self) -> int:
        return self.prompts * self.n

    @property
    def least(self) -> int:
        return self.tokens if self.shortest is None else self.shortest


_SMALL = {"hidden": 256, "layers": 4, "heads": 4, "kv_heads": 4, "inner": 688}
_HALF_B = {"hidden": 896, "layers": 24, "heads": 14, "kv_heads": 2, "inner": 4864, "vocabulary": 151_936}
SHAPES = {
    "small": Shape(8, 8, 64, (64, 64), **_SMALL),
    "ragged": Shape(16, 8, 256, (32, 512), **_SMALL, shortest=8, mean=64, warmup=1, steps=4),
    "half-b": Shape(2, 4, 32, (128, 128), **_HALF_B, warmup=1, steps=2),
    "long": Shape(2, 8, 1024, (256, 256), **_SMALL, warmup=1, steps=2),
    "gpu": Shape(32, 8, 512, (256, 256), **_HALF_B, warmup=1, steps=3),
}


def write(folder: Path, shape: Shape, *, steps: int, seed: int) -> dict[str, object]:
    """The model folder, the prompts of so many steps, and one prompt to evaluate on. Returns facts of the model."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    sys.path.insert(0, str(BENCH.parent))
    from grpo.embedded.scratch import make_tokenizer

    tokenizer = make_tokenizer("bytes")
    if shape.vocabulary is not None:  # tokens that no text is made of, but that the model may say
        tokenizer.add_tokens([f"<|{number}|>" for number in range(shape.vocabulary - len(tokenizer))])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=shape.mean is None,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).float()
    if shape.mean is not None:
        _end_early(model, int(tokenizer.eos_token_id), shape.mean)
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, do_sample=True
    )
    logging.disable_progress_bar()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")

    letters, draw = string.ascii_letters + string.digits + " +-=?", random.Random(seed)
    texts = ["".join(draw.choices(letters, k=draw.randint(*shape.prompt))) for _ in range(steps * shape.prompts + 1)]
    for name, some in {"train": texts[:-1], "val": texts[-1:]}.items():
        rows = [{"prompt": text, "ground_truth": name, "data_source": "bench"} for text in some]
        (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    weights = sum(weight.numel() for weight in model.parameters())
    return {"weights": weights, "vocabulary": len(tokenizer), "torch": torch.__version__}


def _end_early(model, eos: int, mean: int) -> None:
    """Make the end token as likely as responses of that mean length need, whatever was said before.

    One entry of the hidden state is the same for every token; the output layer reads it for the end token alone.
    """
    import torch

    vocabulary = model.config.vocab_size
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        read = float(model.model(torch.arange(3, vocabulary)[None]).last_hidden_state[..., 0].mean())
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[eos] = 0.0
        model.lm_head.weight[eos, 0] = math.log((vocabulary - 1) / (mean - 1)) / read


if __name__ == "__main__":
    _, folder, name, steps, seed = sys.argv
    print(json.dumps(write(Path(folder), SHAPES[name], steps=int(steps), seed=int(seed))))
