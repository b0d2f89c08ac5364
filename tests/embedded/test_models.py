"""Any causal model folder: two steps of the real command on small random models of several families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from grpo.__main__ import main
from grpo.embedded.scratch import make_tokenizer

pytestmark = pytest.mark.slow

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES = {
    "llama, grouped queries": transformers.LlamaConfig(**SMALL, num_key_value_heads=2),
    "qwen3": transformers.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8),
    "mistral, sliding window": transformers.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=8),
    "gpt2, dropout": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.5),
}
# The seed's own file: one record, in Chinese.
RECORDS = [{"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"}]


def _folder(config: transformers.PreTrainedConfig, folder: Path) -> Path:
    tokenizer = make_tokenizer("bytes")
    config.vocab_size = len(tokenizer)
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, None, 1
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _train(folder: Path, *arguments: str) -> int:
    Path("prompts.json").write_text(json.dumps(RECORDS, ensure_ascii=False), encoding="utf-8")
    fixed = [
        "--data",
        "prompts.json",
        "--model",
        str(folder),
        "--max_prompt_length",
        "40",
        "--max_response_length",
        "12",
    ]
    return main([*fixed, "--max_steps", "2", "--lr", "1e-3", "--device", "cpu", *arguments])


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_on_the_seeds_one_record_file(family, in_folder, capsys):  # S2-02, S2-03, S2-06
    folder = _folder(FAMILIES[family], in_folder / "模型")
    reward = "def compute_score(data_source, solution_str, ground_truth): return len(set(solution_str)) / 12\n"
    Path("reward.py").write_text(reward)  # of a random model's rubbish, some is more varied
    assert _train(folder, "--reward_func", "reward.py", "--ppo_epochs", "2", "--rollout_n", "6") == 0
    said = capsys.readouterr().out
    assert (
        "--train_batch_size" in said or "train_batch_size" in said
    )  # the default batch shrank to one prompt, and it is said

    metrics = [json.loads(line) for line in Path("outputs/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [0, 1, 2]
    assert metrics[1]["grad_norm"] > 0
    assert metrics[1]["reward_std"] > 0
    # Two passes: the first measures nothing against itself, the second what the first changed; dropout would show here.
    assert abs(metrics[1]["ppo_kl"]) < 0.05

    before = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    after = transformers.AutoModelForCausalLM.from_pretrained("outputs/checkpoints/final", dtype=torch.float32)
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)


def test_recomputing_activations_changes_nothing_but_memory(in_folder):  # S0-35
    folder = _folder(FAMILIES["llama, grouped queries"], in_folder / "model")
    Path("reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth): return len(set(solution_str)) / 12\n"
    )
    losses = []
    for name, setting in (("plain", "false"), ("recomputed", "true")):
        key = f"actor_rollout_ref.model.enable_gradient_checkpointing={setting}"
        assert _train(folder, "--reward_func", "reward.py", "--output_dir", name, key) == 0
        lines = Path(name, "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line).get("grad_norm") for line in lines][1:])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--max_response_length", "500"], "reads at most 128 tokens"),
        (["actor_rollout_ref.model.tokenizer_path=big"], "the tokenizer has 260 tokens and the model's embedding 258"),
    ],
)
def test_a_model_that_cannot_do_it_is_refused_in_one_line(change, says, in_folder, capsys):  # S0-17
    folder = _folder(FAMILIES["gpt2, dropout"], in_folder / "model")
    make_tokenizer("characters", ["请"]).save_pretrained("big")
    assert _train(folder, *change) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_broken_folder_is_refused_in_one_line(in_folder, capsys):
    folder = _folder(FAMILIES["gpt2, dropout"], in_folder / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert _train(folder) == 2
    error = capsys.readouterr().err
    assert "the model cannot be opened" in error
    assert error.count("\n") == 1
