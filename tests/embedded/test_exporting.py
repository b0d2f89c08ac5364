"""`./train.sh export` of what the embedded engine trained: plain transformers and peft say what was trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.__main__ import main
from grpo.embedded.adapter import Lora, attach, matrices, save
from grpo.embedded.models import read_model, read_tokenizer
from tests.embedded.tiny_models import llama, model_folder

IDS = torch.tensor([[5, 60, 7, 80, 9, 10]])


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(IDS).logits.float()


def opened(folder: str, dtype: str = "float32"):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))


@pytest.fixture
def adapter_logits(in_folder: Path) -> torch.Tensor:
    """A base model and, in a run's folder, an adapter that changes what it says; what base and adapter say by peft."""
    model_folder(llama(tie_word_embeddings=True), in_folder / "base")
    adapted = attach(read_model("base"), Lora(4, 16, "all-linear", str((in_folder / "base").absolute())), seed=1)
    for name, weight in matrices(adapted).items():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05, generator=torch.Generator().manual_seed(1))
    step = in_folder / "outputs" / "checkpoints" / "global_step_3"
    save(adapted, step)
    read_tokenizer("base").save_pretrained(step)
    both = PeftModel.from_pretrained(opened("base"), str(step))
    assert (logits(both) - logits(opened("base"))).abs().max() > 0.1
    return logits(both)


@pytest.mark.slow
def test_a_merged_export_says_what_model_and_adapter_say(adapter_logits: torch.Tensor, capsys):
    assert main(["export", "--from", "3", "--to", "merged"]) == 0
    assert "opened again: logits differ by at most" in capsys.readouterr().out
    assert_close(logits(opened("merged")), adapter_logits, atol=1e-4, rtol=1e-4)
    assert AutoTokenizer.from_pretrained("merged")("1 + 1")["input_ids"] == read_tokenizer("base")("1 + 1")["input_ids"]
    assert main(["export", "--from", "outputs", "--lora", "adapter", "--to", "adapter"]) == 0
    assert not Path("adapter/config.json").exists()
    beside = PeftModel.from_pretrained(opened("base"), "adapter")
    assert torch.equal(logits(beside), adapter_logits)


@pytest.mark.slow
def test_a_narrower_export_is_the_trained_weights_rounded_and_says_so(adapter_logits: torch.Tensor, capsys):
    assert main(["export", "--from", "global_step_3", "--dtype", "bf16"]) == 0
    folder = "outputs/export/global_step_3"
    assert "by rounding to bfloat16" in capsys.readouterr().out
    assert json.loads(Path(folder, "config.json").read_text())["dtype"] == "bfloat16"
    assert main(["export", "--from", "3", "--to", "merged"]) == 0
    whole = opened("merged").state_dict()
    for name, weight in opened(folder, "bfloat16").state_dict().items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, whole[name].to(torch.bfloat16)), name
    # a full model in another precision
    assert main(["export", "--from", "base", "--dtype", "bfloat16", "--to", "rounded"]) == 0
    assert AutoModelForCausalLM.from_pretrained("rounded").dtype == torch.bfloat16


@pytest.mark.slow
def test_weights_that_were_stored_wrong_are_caught_and_nothing_is_left(
    adapter_logits: torch.Tensor, capsys, monkeypatch
):
    from grpo.embedded import adapter, exporting

    def spoiled(path: Path, policy, **settings: object) -> None:
        state = adapter.merged_state(policy.model)
        name = next(name for name in state if "down_proj" in name)
        policy.model.save_pretrained(path, state_dict=state | {name: state[name] + 0.01})

    monkeypatch.setattr(exporting, "write_final", spoiled)  # as a faulty library would
    for words in ([], ["--dtype", "bf16"]):
        assert main(["export", "--from", "3", "--to", "merged", *words]) == 2
        assert "are not those that were trained" in capsys.readouterr().err
    assert not Path("merged").exists()
    assert not list(Path().glob(".merged*"))


@pytest.mark.slow
def test_what_cannot_be_exported_is_one_line(adapter_logits: torch.Tensor, capsys):
    Path("mine").mkdir()
    Path("mine/thesis.tex").touch()
    model_folder(llama(hidden_size=48), Path("other"))
    for words, says in (
        (["--from", "base", "--lora", "adapter", "--to", "x"], "--lora adapter needs the adapter: a global_step_N"),
        (["--from", "3", "--to", "mine"], "mine exists and is no export of ours"),
        (["--from", "3", "--to", "outputs/checkpoints/global_step_3"], "holds the checkpoint itself"),
        (["--from", "3", "--model", "other", "--to", "x"], "the adapter does not belong to other"),
        (["--from", "7"], "global_step_7: no such checkpoint"),
        (["--from", "3", "--dtype", "int4"], "argument --dtype: invalid choice: 'int4'"),
    ):
        assert main(["export", *words]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert not Path("x").exists()
