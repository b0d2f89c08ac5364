"""Weights counted from config.json, beside the models that transformers builds and the counts that makers publish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from grpo.config import ConfigError
from grpo.known_models import known_models
from grpo.memory.job import lora_weights
from grpo.memory.shape import FAMILIES, read_shape, shape_of
from tests.embedded import families

GROUPED = families.GROUPED
CONFIGS: dict[str, transformers.PreTrainedConfig] = {
    **{name: config for name, config in families.FAMILIES.items() if config.model_type in FAMILIES},
    "gemma": transformers.GemmaConfig(**GROUPED, head_dim=16),
    "llama with biases": transformers.LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True),
    "llama, untied, a head of its own width": transformers.LlamaConfig(**GROUPED, head_dim=24),
    "qwen3 with biases": transformers.Qwen3Config(**GROUPED, head_dim=8, attention_bias=True),
    "qwen2-moe, some layers dense": transformers.Qwen2MoeConfig(
        **{**GROUPED, "num_hidden_layers": 4}, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=24, decoder_sparse_step=2, mlp_only_layers=[1],
    ),
    "gpt2, an inner width of its own": transformers.GPT2Config(n_layer=2, n_inner=100),
    "t5": transformers.T5Config(num_layers=2, num_decoder_layers=3),
    "t5 1.1, gated and untied": transformers.T5Config(
        num_layers=2, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "mt5": transformers.MT5Config(num_layers=2),
    "bart": transformers.BartConfig(encoder_layers=2, decoder_layers=3),
    "mbart": transformers.MBartConfig(encoder_layers=2, decoder_layers=2),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_the_count_is_that_of_the_model_which_transformers_builds(name: str):
    config = CONFIGS[name]
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
        model.tie_weights()
    counts = [weight.numel() for weight in model.parameters()]
    for saved in (True, False):  # a saved config.json leaves out what it takes for known
        shape = shape_of(json.loads(config.to_json_string(use_diff=saved)), name)
        assert shape.weights == sum(counts)
        assert shape.largest == max(counts)


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-72B", 72_706_203_648),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("meta-llama/Meta-Llama-3-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-70B", 70_553_706_496),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("google/gemma-2b", 2_506_172_416),
        ("google/gemma-2-9b", 9_241_705_984),
        ("microsoft/phi-4", 14_659_507_200),
    ],
)
def test_well_known_models_need_no_folder_and_have_the_published_size(model: str, weights: int):
    assert read_shape(model).weights == weights


def test_every_well_known_model_can_be_counted():
    assert all(read_shape(name).weights > 1e8 for name in known_models())


def test_a_token_uses_a_mixtures_chosen_experts_only():
    # Mixtral, a layer: attention 4096 x (4096 + 2 x 1024) + 4096 x 4096, two norms of 4096, a router of 4096 x 8, and
    # two of eight experts of 3 x 4096 x 14336; 32 of these, the last norm, and an output layer of 32000 x 4096
    attention = 4096 * (4096 + 2048) + 4096 * 4096 + 2 * 4096
    experts = 2 * 3 * 4096 * 14336 + 4096 * 8
    assert read_shape("mistralai/Mixtral-8x7B-v0.1").used == 32 * (attention + experts) + 4096 + 32000 * 4096


def test_lora_trains_rank_times_in_plus_out_of_every_layer():
    # Qwen2.5-7B, rank 8: q, o 2 x (3584 + 3584), k, v 2 x (3584 + 512), gate, up, down 3 x (3584 + 18944), 28 layers
    shape = read_shape("Qwen/Qwen2.5-7B")
    assert lora_weights(shape, 8, "all-linear") == 8 * 28 * (2 * 7168 + 2 * 4096 + 3 * 22528) == 20_185_088
    assert lora_weights(shape, 8, ["q_proj", "v_proj"]) == 8 * 28 * (7168 + 4096)


def test_what_cannot_be_counted_is_said_in_one_line(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"^--model no/such: its size is not known without its config\.json; give a fo"
    ):
        read_shape("no/such")
    file = tmp_path / "config.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read: Expecting property"):
        read_shape(str(tmp_path))
    file.write_text("[]")
    with pytest.raises(ConfigError, match="is no JSON object"):
        read_shape(str(tmp_path))
    file.write_text('{"model_type": "mamba"}')
    with pytest.raises(ConfigError, match="model_type mamba is none of those whose weights can be counted"):
        read_shape(str(tmp_path))
    file.write_text('{"model_type": "qwen2", "hidden_size": 8}')
    with pytest.raises(ConfigError, match=r"a qwen2 model's config\.json needs num_hidden_layers"):
        read_shape(str(tmp_path))
    sizes = {"hidden_size": "8", "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    file.write_text(json.dumps({"model_type": "qwen2", "vocab_size": 9, **sizes}))
    with pytest.raises(ConfigError, match="a size in it is no number"):
        read_shape(str(tmp_path))
