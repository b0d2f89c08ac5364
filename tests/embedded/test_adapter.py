"""LoRA: the frozen weights are in memory once, a checkpoint holds the adapter, the exported model is base + adapter."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from grpo.__main__ import main
from grpo.embedded import adapter, checkpoint
from grpo.embedded.adapter import Lora, attach
from grpo.embedded.choosing import Sampling
from grpo.embedded.copies import before_adapter, frozen, move
from grpo.embedded.models import make_policy, read_model, read_tokenizer
from grpo.embedded.passes import log_probs
from grpo.embedded.policy import Policy
from grpo.embedded.rollout import sample
from grpo.embedded.update import Batch, update
from grpo.engine import EngineError
from tests.embedded.conftest import ids
from tests.embedded.test_update import OBJECTIVE
from tests.embedded.tiny_models import gpt2, llama, model_folder

RANK = 4


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return model_folder(llama(), tmp_path / "base")


def lora_policy(base: Path, *, saved: Path | None = None, **settings) -> Policy:
    model, tokenizer = read_model(str(base)), read_tokenizer(str(base))
    lora = Lora(**{"rank": RANK, "alpha": 16, "targets": "all-linear", "base": str(base), **settings})
    adapted = attach(model, lora, seed=1, saved=saved)
    return make_policy(model, tokenizer, torch.device("cpu"), torch.float32, adapted)


def one_step(policy: Policy, optimizer: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
    """A GRPO update that changes the adapter for good."""
    optimizer = optimizer or torch.optim.AdamW(policy.trained(), lr=0.02)
    rollouts = sample(policy, ids(policy, "1+2=?"), Sampling(n=4, max_length=6), seed=1)
    batch = Batch(rollouts, torch.tensor([1.0, -1.0, 0.5, -0.5]), rollouts.response_mask, rollouts.log_probs)
    update(policy, optimizer, batch, OBJECTIVE, clip_grad=1.0, max_tokens=999)
    return optimizer


def logits(policy: Policy, text: str = "12+3=?") -> torch.Tensor:
    with torch.no_grad(), policy.arithmetic():
        return policy.model(torch.tensor(ids(policy, text))).logits


def plain_logits(folder: Path, policy: Policy, text: str = "12+3=?") -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor(ids(policy, text))).logits


def bytes_of(*models: torch.nn.Module) -> int:
    """Memory of all weights together, what they share counted once."""
    stored = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for m in models for w in m.parameters()}
    return sum(stored.values())


@pytest.mark.slow
def test_the_reference_is_the_model_with_its_adapter_off_and_costs_no_memory(base):  # S1-30, S2-32
    policy = lora_policy(base)
    of_the_base = bytes_of(read_model(str(base)))
    of_the_adapter = sum(weight.numel() * 4 for weight in policy.trained())
    reference = before_adapter(policy, moves=False)
    assert bytes_of(policy.model, reference.model) == of_the_base + of_the_adapter
    assert of_the_adapter < of_the_base

    before = plain_logits(base, policy)
    one_step(policy)
    assert_close(logits(reference), before, atol=1e-5, rtol=0)
    assert (logits(policy) - before).abs().max() > 0.01
    rollouts = sample(policy, ids(policy, "1+2=?"), Sampling(n=2, max_length=4), seed=1)
    ours = log_probs(policy, rollouts, temperature=1.0, max_tokens=999)
    theirs = log_probs(reference, rollouts, temperature=1.0, max_tokens=999)
    assert_close(ours, rollouts.log_probs * rollouts.response_mask, atol=1e-5, rtol=0)
    assert (ours - theirs).abs().max() > 1e-3


@pytest.mark.slow
def test_only_the_adapter_is_trained_and_what_the_layers_named_have_it(base):  # S3-20
    policy = lora_policy(base)
    frozen_before = {k: w.clone() for k, w in policy.model.named_parameters() if not w.requires_grad}
    one_step(policy)
    assert all(torch.equal(w, frozen_before[k]) for k, w in policy.model.named_parameters() if k in frozen_before)
    # Seven linear layers in each of two blocks, two matrices each; the output layer is none of all-linear.
    assert len(policy.trained()) == 2 * 7 * 2
    assert not any("lm_head" in name for name in policy.own())
    few = lora_policy(base, targets=["q_proj", "v_proj"])
    assert len(few.trained()) == 2 * 2 * 2
    # [r, in] and [out, r]: q is 32 -> 32, v is 32 -> 16 (two of four heads)
    assert sum(weight.numel() for weight in few.trained()) == 2 * RANK * (32 + 32 + 32 + 16)


@pytest.mark.slow
def test_a_checkpoint_holds_the_adapter_and_goes_on_bit_for_bit(base, tmp_path):
    policy = lora_policy(base)
    optimizer = one_step(policy)
    path = checkpoint.save(tmp_path / "run", 1, policy, optimizer, {}, keep=1)
    assert not (path / "model.safetensors").exists()
    assert set(load_file(path / "optimizer.safetensors")) == {
        f"{number}.{name}" for number in range(28) for name in ("step", "exp_avg", "exp_avg_sq")
    }
    one_step(policy, optimizer)

    other = lora_policy(base, saved=path)
    its_optimizer = torch.optim.AdamW(other.trained(), lr=0.02)
    checkpoint.load_optimizer(path, its_optimizer)
    one_step(other, its_optimizer)
    for (name, one), two in zip(policy.own().items(), other.own().values(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.slow
@pytest.mark.parametrize("config", [llama(tie_word_embeddings=True), gpt2()], ids=["llama, tied", "gpt2, Conv1D"])
def test_a_merged_model_answers_as_base_and_adapter_do(config, tmp_path):
    base = model_folder(config, tmp_path / "base")
    policy = lora_policy(base)
    one_step(policy)
    wanted = logits(policy)
    assert (wanted - plain_logits(base, policy)).abs().max() > 0.01
    checkpoint.write_final(tmp_path / "merged", policy, lora="merge", dtype=None)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert_close(plain_logits(tmp_path / "merged", policy), wanted, atol=2e-5, rtol=1e-5)
    assert_close(logits(policy), wanted, atol=0, rtol=0)  # the run's own weights are as they were

    checkpoint.write_final(tmp_path / "half", policy, lora="merge", dtype="bfloat16")
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert opened.dtype == torch.bfloat16
    assert_close(opened(torch.tensor(ids(policy, "12+3=?"))).logits.float(), wanted, atol=0.3, rtol=0.1)


@pytest.mark.slow
def test_an_exported_adapter_is_one_that_peft_opens(base, tmp_path):
    from peft import PeftModel

    policy = lora_policy(base)
    one_step(policy)
    checkpoint.write_final(tmp_path / "adapter", policy, lora="adapter", dtype=None)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        base
    )
    opened = PeftModel.from_pretrained(read_model(str(base)), str(tmp_path / "adapter"))
    with torch.no_grad():
        assert_close(opened(torch.tensor(ids(policy, "12+3=?"))).logits, logits(policy), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_a_copy_of_the_policy_is_one_more_adapter_that_moves_when_it_is_told_to(base):
    policy = lora_policy(base)
    one_step(policy)
    old, reference = frozen(policy, "old_policy"), before_adapter(policy, moves=True)
    at_start = logits(policy)
    assert_close(logits(old), at_start, atol=1e-6, rtol=0)
    assert_close(logits(reference), plain_logits(base, policy), atol=1e-5, rtol=0)
    one_step(policy)
    assert_close(logits(old), at_start, atol=1e-6, rtol=0)
    move(old, policy, share=1.0)
    assert_close(logits(old), logits(policy), atol=1e-6, rtol=0)
    assert len(policy.trained()) == 28  # the copies take no gradients, whichever was used last


@pytest.mark.slow
def test_an_adapter_of_another_model_is_refused_by_the_names_of_its_modules(base, tmp_path):
    adapter.save(lora_policy(base).adapter, tmp_path / "adapter")
    wider = model_folder(llama(intermediate_size=48), tmp_path / "wider")
    with pytest.raises(EngineError) as told:
        lora_policy(wider, start=tmp_path / "adapter")
    assert "model.layers.0.mlp.down_proj has 48 inputs, the adapter 64" in str(told.value)
    assert "model.layers.0.mlp.gate_proj has 48 outputs, the adapter 64" in str(told.value)
    assert str(told.value).endswith("and 3 more")
    assert "\n" not in str(told.value)
    with pytest.raises(EngineError, match=r"model.layers.0.mlp.down_proj is not in the model"):
        lora_policy(model_folder(gpt2(), tmp_path / "other"), start=tmp_path / "adapter")


@pytest.mark.slow
def test_layers_that_do_not_exist_or_share_their_weights_are_refused(tmp_path):
    tied = model_folder(llama(tie_word_embeddings=True), tmp_path / "tied")
    with pytest.raises(EngineError, match=r"target_modules=\['q_projection'\]: Target modules .* not found"):
        lora_policy(tied, targets=["q_projection"])
    with pytest.raises(EngineError, match=r"share their weights; leave both out"):
        lora_policy(tied, targets=["embed_tokens", "q_proj"])


@pytest.mark.slow
def test_recomputing_activations_works_under_an_adapter(base):  # S0-35
    norms = []
    for recompute in (False, True):
        policy = lora_policy(base)
        if recompute:
            policy.recompute_activations()
        one_step(policy)
        norms.append([weight.grad.norm() for weight in policy.trained()])
    assert_close(norms[0], norms[1], atol=1e-5, rtol=1e-3)


# The command line

ARGUMENTS = [
    *("--max_prompt_length=40", "--max_response_length=8", "--rollout_n=4", "--lr=1e-2", "--device=cpu"),
    *("--dtype=float32", "--train_batch_size=2", "data.val_max_samples=2", "--reward_func=reward.py"),
]
REWARD = "def compute_score(data_source, solution_str, ground_truth): return len(set(solution_str)) / 12\n"


@pytest.fixture
def folder(in_folder: Path) -> Path:
    """Where one stands: a base model, prompts and a reward that a random model sometimes gets."""
    model_folder(llama(), in_folder / "base")
    rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": f"{n + 1}", "data_source": "math"} for n in range(12)]
    Path("prompts.json").write_text(json.dumps(rows))
    Path("reward.py").write_text(REWARD)
    return in_folder


def train(*words: str) -> int:
    return main(["--data=prompts.json", *ARGUMENTS, *words])


def metrics(folder: str) -> list[dict]:
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if "second" not in k and "perf" not in k and "timing" not in k}
        for line in lines
    ]


@pytest.mark.slow
def test_a_lora_run_that_stops_and_goes_on_ends_as_one_that_did_not(folder):
    lora = ["--model=base", "--lora_rank=4", "--save_freq=1", "--max_steps=4", "launcher.export.lora=adapter"]
    moving = ["launcher.update_ref_after=2", "launcher.ref_mixup=0.5"]
    assert train(*lora, *moving, "--output_dir=whole") == 0
    assert train(*lora, *moving, "--output_dir=stopped") == 0
    # as if it had been killed after step 3
    for name in ("summary.json", "report.html"):
        Path("stopped", name).unlink()
    checkpoints = Path("stopped/checkpoints")
    for name in ("final", "global_step_4"):
        for file in (checkpoints / name).iterdir():
            file.unlink()
        (checkpoints / name).rmdir()
    assert main(["--resume", "--output_dir=stopped"]) == 0
    assert metrics("stopped") == metrics("whole")
    assert metrics("whole")[3]["kl_loss"] > 0
    one, two = (load_file(f"{name}/checkpoints/final/adapter_model.safetensors") for name in ("whole", "stopped"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_a_run_starts_from_the_adapter_of_another_one(folder, capsys):  # S1-23, S3-20
    assert (
        train("--model=base", "--lora_rank=4", "--max_steps=2", "launcher.export.lora=adapter", "--output_dir=one") == 0
    )
    capsys.readouterr()
    assert train("--init_from=one", "--max_steps=1", "--output_dir=two") == 0
    said = capsys.readouterr().out
    assert "starting from one/checkpoints/final" in said
    first = metrics("two")[1]
    assert first["kl_loss"] > 0  # the reference is the model without the adapter
    policy = lora_policy(Path("base"), start=Path("one/checkpoints/final"))
    assert (logits(policy) - plain_logits(Path("base"), policy)).abs().max() > 1e-3
    assert (Path("two/checkpoints/final") / "model.safetensors").is_file()  # merged, which is the default
    assert AutoModelForCausalLM.from_pretrained("two/checkpoints/final").config.model_type == "llama"


@pytest.mark.slow
def test_after_a_warm_up_with_lora_the_reference_is_the_warmed_up_adapter(folder, capsys):  # S1-23
    rows = [{"prompt": f"{n} + 1 = ?", "response": f"{n + 1}"} for n in range(12)]
    Path("demonstrations.json").write_text(json.dumps(rows))
    warm = ["--sft_warmup=3", "--sft_data=demonstrations.json", "launcher.sft.lr=1e-2", "launcher.sft.batch_size=4"]
    assert train("--model=base", "--lora_rank=4", "--max_steps=1", *warm) == 0
    assert abs(metrics("outputs")[1]["kl_loss"]) < 1e-6  # nothing is between the policy and where GRPO began
    assert (Path("outputs/checkpoints/sft") / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_gradients_pass_through_rounded_weights_after_sampling_too(tmp_path, missing):
    if importlib.util.find_spec("bitsandbytes") is None:
        missing("bitsandbytes is not installed; pip install -r requirements/dev.txt")
    from bitsandbytes.functional import dequantize_4bit

    base = model_folder(llama(hidden_size=128, intermediate_size=128), tmp_path / "base")
    grads = []
    rounded: dict[str, torch.Tensor] = {}
    for bits in (4, None):  # the second has the rounded weights as plain ones
        model, tokenizer = read_model(str(base), bits=bits, device="cpu"), read_tokenizer(str(base))
        for name, weight in model.named_parameters():
            if bits and hasattr(weight, "quant_state"):
                rounded[name] = dequantize_4bit(weight.data, weight.quant_state).float()
            elif not bits and name in rounded:
                weight.data = rounded[name]
        adapted = attach(model, Lora(RANK, 16, "all-linear", str(base)), seed=1)
        policy = make_policy(model, tokenizer, torch.device("cpu"), torch.float32, adapted)
        with torch.no_grad():
            for name, weight in policy.own().items():
                weight.fill_(0.01) if "lora_B" in name else weight
        sample(policy, ids(policy, "1+2=?"), Sampling(n=2, max_length=3), seed=1)
        tokens = torch.tensor(ids(policy, "12+3=?"))
        policy.model(tokens, labels=tokens).loss.backward()
        grads.append({name: weight.grad for name, weight in policy.own().items()})
    assert len(rounded) == 14
    for name, grad in grads[1].items():
        assert_close(grads[0][name], grad, atol=0.02 * float(grad.abs().max()), rtol=0, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_the_weights_under_an_adapter_may_be_rounded(bits, folder, missing):
    if importlib.util.find_spec("bitsandbytes") is None:
        missing("bitsandbytes is not installed; pip install -r requirements/dev.txt")
    model_folder(llama(hidden_size=128, intermediate_size=128), folder / "wide")  # it rounds in blocks of 64
    words = ["--model=wide", "--lora_rank=4", f"launcher.qlora={bits}", "launcher.export.lora=adapter", "--max_steps=2"]
    assert train(*words) == 0
    assert metrics("outputs")[1]["grad_norm"] > 0
    config = json.loads(Path("outputs/checkpoints/final/adapter_config.json").read_text())
    assert config["base_model_name_or_path"].endswith("/wide")
