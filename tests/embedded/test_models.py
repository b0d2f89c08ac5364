"""Any causal model folder: the same numbers whichever way it is run, and two steps of the real command, by family."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import transformers
from torch.testing import assert_close

from grpo.__main__ import main
from grpo.embedded.adapter import Lora, attach
from grpo.embedded.choosing import Sampling
from grpo.embedded.models import end_turns, make_policy, read_model, read_tokenizer
from grpo.embedded.passes import log_probs
from grpo.embedded.rollout import sample
from grpo.embedded.scratch import make_tokenizer
from grpo.embedded.sft import Demonstration, keeps_apart
from grpo.engine import EngineError
from tests.embedded.families import FAMILIES
from tests.embedded.tiny_models import gpt2, llama, model_folder

# The seed's own file: one record, in Chinese.
RECORDS = [{"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"}]


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


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_the_update_and_a_plain_forward_pass_agree(family, tmp_path):  # S0-38
    """With prompts of different length, padded, and longer than the window of those that have one."""
    folder = model_folder(copy.deepcopy(FAMILIES[family]), tmp_path / "m")
    model, tokenizer = read_model(str(folder)), read_tokenizer(str(folder))
    policy = make_policy(model, tokenizer, torch.device("cpu"), torch.float32)
    prompts = [tokenizer(text)["input_ids"] for text in ("1+2=?", "a much longer prompt than that")]
    rollouts = sample(policy, prompts, Sampling(n=3, max_length=14), seed=1)
    again = log_probs(policy, rollouts, temperature=1.0, max_tokens=9999)
    assert_close(again, rollouts.log_probs * rollouts.response_mask, atol=2e-5, rtol=0)
    for row, prompt in ((0, prompts[0]), (5, prompts[1])):
        length = int(rollouts.response_mask[row].sum())
        sequence = torch.tensor([prompt + rollouts.response_ids[row, :length].tolist()])
        with torch.no_grad():
            plain = model(sequence).logits.log_softmax(-1)[0, :-1].gather(1, sequence[0, 1:, None])[:, 0]
        assert_close(again[row, :length], plain[-length:], atol=2e-5, rtol=0)

    assert keeps_apart(policy, *[Demonstration(prompt, [9, 8, 1]) for prompt in reversed(prompts)])
    attach(model, Lora(4, 8, "all-linear", "m"), seed=0)
    assert sum("lora_A" in name for name, _ in model.named_parameters()) >= 8  # four layers of each block at least


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_on_the_seeds_one_record_file(family, in_folder, capsys):  # S2-02, S2-03, S2-06
    folder = model_folder(copy.deepcopy(FAMILIES[family]), in_folder / "模型")
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


@pytest.mark.slow
def test_recomputing_activations_changes_nothing_but_memory(in_folder):  # S0-35
    folder = model_folder(llama(), in_folder / "model")
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--max_response_length", "500"], "reads at most 128 tokens"),
        (["actor_rollout_ref.model.tokenizer_path=big"], "the tokenizer has 260 tokens and the model's embedding 258"),
    ],
)
def test_a_model_that_cannot_do_it_is_refused_in_one_line(change, says, in_folder, capsys):  # S0-17
    folder = model_folder(gpt2(), in_folder / "model")
    make_tokenizer("characters", ["请"]).save_pretrained("big")
    assert _train(folder, *change) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_broken_folder_is_refused_in_one_line(in_folder, capsys):
    folder = model_folder(gpt2(), in_folder / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert _train(folder) == 2
    error = capsys.readouterr().err
    assert "the model cannot be opened" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_sizes_are_compared_before_any_weight_is_read(in_folder, capsys):  # S0-17
    """The config tells: the folder may be gigabytes."""
    folder = model_folder(gpt2(), in_folder / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert _train(folder, "--max_response_length", "500") == 2
    assert "reads at most 128 tokens" in capsys.readouterr().err
    make_tokenizer("characters", ["请"]).save_pretrained("big")
    assert _train(folder, "actor_rollout_ref.model.tokenizer_path=big") == 2
    assert "the tokenizer has 260 tokens and the model's embedding 258" in capsys.readouterr().err


def test_a_model_with_a_running_state_is_refused_by_its_kind(tmp_path):
    shape = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 1, "expand": 1}
    model_folder(transformers.MambaConfig(**shape), tmp_path / "m")
    with pytest.raises(EngineError, match=r"mamba models keep a running state instead of a cache"):
        read_model(str(tmp_path / "m"))


def _policy(tmp_path, tokenizer):
    folder = model_folder(llama(), tmp_path / "m", tokenizer=tokenizer)
    model = read_model(str(folder))
    model.generation_config = None
    return make_policy(model, read_tokenizer(str(folder)), torch.device("cpu"), torch.float32)


@pytest.mark.slow
def test_a_tokenizer_that_pads_with_its_end_token_still_learns_where_to_stop(tmp_path):
    """Padding is known by length, not by its token, so the end token that a response has is trained."""
    tokenizer = make_tokenizer("bytes")
    tokenizer.pad_token = tokenizer.eos_token
    policy = _policy(tmp_path, tokenizer)
    assert policy.pad_id == policy.stop_ids[0] == 1
    rollouts = sample(policy, [[5, 6, 7]], Sampling(n=64, max_length=40), seed=1)
    lengths = rollouts.response_mask.sum(1)
    stopped = ~rollouts.truncated
    assert int(stopped.sum()) > 0
    last = rollouts.response_ids.gather(1, lengths[:, None] - 1)[:, 0]
    assert (last[stopped] == 1).all()  # inside the mask


@pytest.mark.slow
def test_a_turn_that_ends_otherwise_than_the_tokenizer_says_ends_the_response(tmp_path):
    """Qwen2.5's base models: their template ends a turn with <|im_end|>, their tokenizer names <|endoftext|>."""
    tokenizer = make_tokenizer("bytes")
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    policy = _policy(tmp_path, tokenizer)
    assert policy.stop_ids == [0]
    (said,) = end_turns(policy)
    assert said.startswith("the chat template ends a turn with <|im_end|>, the tokenizer calls <|endoftext|> its end")
    assert policy.stop_ids == [1, 0]  # a demonstration ends with the first
    assert end_turns(policy) == []
    plain = _policy(tmp_path / "plain", make_tokenizer("bytes"))
    assert end_turns(plain) == []
    assert plain.stop_ids == [1]


@pytest.mark.slow
def test_prompts_that_were_cut_or_left_out_are_counted_for_the_user(in_folder, capsys):  # S0-16
    folder = model_folder(llama(), in_folder / "model")
    rows = [{"prompt": text, "ground_truth": "1", "data_source": "math"} for text in ("short", 60 * "x", 70 * "y")]
    Path("val.json").write_text(json.dumps(rows[:1]))
    words = ["--val_data=val.json", "--max_steps=1", "--rollout_n=2", "--train_batch_size=1"]
    for more, says in (
        (["data.filter_overlong_prompts=false", "data.truncation=left"], "cut 2 training and 0 evaluation prompts to"),
        ([], "left out 2 training and 0 evaluation prompts over 40 tokens"),
    ):
        Path("rows.json").write_text(json.dumps(rows))
        assert _train(folder, "--data=rows.json", *words, *more) == 0
        assert says in capsys.readouterr().out
