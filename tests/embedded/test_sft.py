"""Supervised training: the loss is the responses' alone, rows keep apart, a run goes on as if nothing had happened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from grpo.__main__ import main
from grpo.embedded.sft import Demonstration, demonstrations, keeps_apart, micro_batches, rows_of, summed_loss
from grpo.metrics.names import TIMING_NAMES
from tests.embedded.conftest import ids, tiny_policy
from tests.embedded.tiny_models import gpt2, llama, model_folder


def demo(policy, prompt: str, response: str) -> Demonstration:
    (asked,), (said,) = ids(policy, prompt), ids(policy, response)
    return Demonstration(asked, [*said, policy.stop_ids[0]])


@pytest.fixture
def demos(policy):
    pairs = (("1+2=?", "3"), ("33+44=?", "77"), ("5", "555555"), ("9+9+9+9=?", "36"), ("0", "0"))
    return [demo(policy, *pair) for pair in pairs]


def test_the_loss_counts_the_responses_and_nothing_of_the_prompt(policy):
    one = demo(policy, "1+2=?", "3")
    tokens = torch.tensor([one.prompt + one.response])
    log_probs = policy.model(tokens).logits.log_softmax(-1)[0]
    # "3" is said after the five tokens of the prompt, the stop token after "3"
    by_hand = -(log_probs[4, one.response[0]] + log_probs[5, policy.stop_ids[0]])
    assert_close(summed_loss(policy, [[one]]), by_hand, atol=1e-5, rtol=1e-5)


def test_demonstrations_in_one_row_do_not_see_each_other(policy, demos):
    apart = [summed_loss(policy, [[item]]) for item in demos]
    assert_close(summed_loss(policy, [demos]), sum(apart), atol=1e-3, rtol=1e-5)
    assert_close(summed_loss(policy, [demos[:2], demos[2:]]), sum(apart), atol=1e-3, rtol=1e-5)  # and padding
    assert keeps_apart(policy, demos[0], demos[1])
    # What the check is for: a model that is not told where a demonstration begins reads the ones before it too.
    policy.model.config._attn_implementation = "eager"
    run = policy.model.forward
    policy.model.forward = lambda input_ids, position_ids, **more: run(
        input_ids, position_ids=torch.arange(input_ids.shape[1])[None].expand_as(input_ids), **more
    )
    assert not keeps_apart(policy, demos[3], demos[1])


def test_gradients_do_not_depend_on_how_the_batch_is_cut_or_packed(policy, demos):
    grads = []
    for packing, width, most in ((False, 99, 9999), (True, 99, 9999), (True, 20, 9999), (True, 20, 20)):
        policy.model.zero_grad()
        parts = micro_batches(rows_of(demos, width=width, packing=packing), max_tokens=most)
        for part in parts:
            (summed_loss(policy, part) / 10).backward()
        grads.append([weight.grad.clone() for weight in policy.model.parameters()])
    for other in grads[1:]:
        for one, two in zip(grads[0], other, strict=True):
            assert_close(one, two, atol=3e-4, rtol=1e-3)


def test_rows_are_filled_and_nothing_is_lost():
    items = [Demonstration([0] * size, [1]) for size in (5, 3, 2, 1, 7)]  # lengths 6, 4, 3, 2, 8
    rows = rows_of(items, width=10, packing=True)
    assert [[len(item) for item in row] for row in rows] == [[8, 2], [6, 4], [3]]
    assert [[len(item) for item in row] for row in rows_of(items, width=10, packing=False)] == [[8], [6], [4], [3], [2]]
    # padded to the longest: 2 x 10 tokens fit in 25, 3 x 10 do not
    assert [len(part) for part in micro_batches(rows, max_tokens=25)] == [2, 1]
    assert [len(part) for part in micro_batches(rows, max_tokens=1)] == [1, 1, 1]


def test_what_is_too_long_is_left_out_and_counted(policy):
    from grpo.embedded.prompts import Encoder

    encoder = Encoder(policy.tokenizer, template="none", max_length=5, truncation="filter")
    pairs = [
        (
            {"prompt": [{"role": "user", "content": text}], "data_source": "", "ground_truth": "", "extra_info": {}},
            answer,
        )
        for text, answer in (("1+2=?", "3"), ("11+2=?", "13"), ("1", "2222"))
    ]
    made, prompts, responses = demonstrations(pairs, encoder, policy, longest=4)
    assert (len(made), prompts, responses) == (1, 1, 1)  # "2222" and the stop token are five
    assert made[0].response[-1] == policy.stop_ids[0]


# The command

WORDS = [
    *("--model=base", "--lr=1e-2", "--train_batch_size=16", "--max_prompt_length=40", "--max_response_length=12"),
    *("--device=cpu", "--dtype=float32", "--epochs=2"),
]


@pytest.fixture
def folder(in_folder: Path) -> Path:
    """A base model and demonstrations of sums."""
    model_folder(llama(), in_folder / "base")
    rows = [{"prompt": f"{a} + {b} = ?", "response": f"{a + b}"} for a in range(8) for b in range(8)]
    Path("demos.json").write_text(json.dumps(rows))
    return in_folder


def sft(*words: str) -> int:
    return main(["sft", "--data=demos.json", *WORDS, *words])


def metrics(folder: str) -> list[dict]:
    lines = Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMING_NAMES} for line in lines]


@pytest.mark.slow
def test_what_sft_cannot_do_is_said_in_one_line(folder, capsys):
    def error(*words: str) -> str:
        assert main(["sft", *words]) == 2
        return capsys.readouterr().err

    assert error("--model=base") == (
        "error: sft needs demonstrations: --data FILE, records with `prompt` and `response`; see docs/sft.md\n"
    )
    assert "sft runs on the embedded engine" in error("--data=demos.json", "--model=base", "--engine=verl")
    Path("plain.json").write_text('[{"prompt": "1", "ground_truth": "2"}]')
    assert 'no "response"' in error("--data=plain.json", "--model=base")
    chat = [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}]
    Path("chat.json").write_text(json.dumps([{"prompt": chat}] * 2))
    assert "must end with an assistant message" in error("--data=chat.json", "--model=base", "--answer_key=none")
    assert not Path("outputs_sft").exists()


@pytest.mark.slow
def test_a_dry_run_says_the_steps_and_what_differs_from_grpo(folder, capsys):
    assert sft("--dry_run", "--rollout_n=3") == 0
    said = capsys.readouterr().out
    # 64 less a tenth for evaluation = 58 or so; each epoch has 58 // 16 = 3 whole batches
    assert "6 steps, 3 in an epoch" in said
    assert "no effect on sft: actor_rollout_ref.rollout.n" in said
    assert "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine  # launcher" in said
    assert main(["sft", "--data=demos.json", "--model=base", "--lora_rank=4", "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert "LoRA: the learning rate is 0.0001, ten times that of full training" in said
    assert not Path("outputs_sft").exists()


@pytest.mark.slow
def test_sft_learns_and_grpo_starts_from_it(folder, capsys):  # S1-23
    assert sft("--epochs=8") == 0
    lines = metrics("outputs_sft")
    assert lines[0]["val_loss"] > 1.5 * lines[-1]["val_loss"]
    assert lines[1]["loss"] > lines[-1]["loss"]
    summary = json.loads(Path("outputs_sft/summary.json").read_text())
    assert summary["val_loss"]["final"] == lines[-1]["val_loss"]
    assert Path("outputs_sft/report.html").is_file()
    assert AutoModelForCausalLM.from_pretrained("outputs_sft/checkpoints/final").config.model_type == "llama"
    rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": f"{n + 1}", "data_source": "math"} for n in range(12)]
    Path("prompts.json").write_text(json.dumps(rows))
    capsys.readouterr()
    words = ["--data=prompts.json", "--init_from=outputs_sft", "--max_steps=1", "--rollout_n=2"]
    assert main([*words, "--max_prompt_length=40", "--max_response_length=4", "--device=cpu"]) == 0
    assert "starting from outputs_sft/checkpoints/final" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("lora", [[], ["--lora_rank=4", "launcher.export.lora=adapter"]], ids=["all weights", "lora"])
def test_a_run_that_was_killed_goes_on_to_the_same_end(lora, folder, capsys):
    words = [*lora, "--save_freq=2", "--test_freq=2"]
    assert sft(*words, "--output_dir=whole") == 0
    assert sft(*words, "--output_dir=killed") == 0
    for name in ("summary.json", "report.html", "checkpoints/final", "checkpoints/global_step_6"):
        path = Path("killed", name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["--resume", "--output_dir=killed"]) == 2  # that would be GRPO
    assert "goes on with ./train.sh sft --resume --output_dir killed\n" in capsys.readouterr().err
    assert main(["sft", "--resume", "--output_dir=killed"]) == 0
    assert metrics("killed") == metrics("whole")
    assert [line["step"] for line in metrics("whole")] == list(range(7))
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    one, two = (load_file(f"{run}/checkpoints/final/{name}") for run in ("whole", "killed"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    state = json.loads(Path("whole/checkpoints/global_step_6/trainer_state.json").read_text())
    assert state["packing"] is True


@pytest.mark.slow
def test_packing_changes_nothing_but_the_time(folder):
    assert sft("--output_dir=packed") == 0
    assert sft("--output_dir=apart", "launcher.sft.packing=false") == 0
    losses = [[line["loss"] for line in metrics(run)[1:]] for run in ("packed", "apart")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
def test_a_whole_conversation_teaches_its_last_answer(folder):
    rows = [
        {"conversation": [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": "ab"}]}
        for n in range(40)
    ]
    Path("chat.json").write_text(json.dumps(rows))
    words = ["--prompt_key=conversation", "--answer_key=none", "--output_dir=chat", "--epochs=10"]
    assert main(["sft", "--data=chat.json", *WORDS, *words]) == 0
    assert metrics("chat")[-1]["val_loss"] < 0.3
    assert metrics("chat")[1]["response_length"] == 3.0  # a, b and the stop token


@pytest.mark.slow
def test_one_answer_of_the_trained_model_beside_its_base(folder, capsys):
    rows = [{"prompt": f"{n}", "response": "ab"} for n in range(40)]
    Path("demos.json").write_text(json.dumps(rows))
    assert sft("--epochs=12", "--lora_rank=8", "--lr=3e-2", "launcher.export.lora=adapter") == 0
    capsys.readouterr()
    chat = ["chat", "--model=outputs_sft", "--device=cpu", "--dtype=float32", "--max_response_length=4"]
    assert main([*chat, "--base=base", "--prompt=7"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["[outputs_sft/checkpoints/final]", "ab", "[base]"]
    assert said[3:] != ["ab"]


@pytest.mark.slow
def test_a_conversation_goes_on_until_the_input_ends(folder, capsys, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("7\n/new\n\n8\n" + 60 * "long " + "\n9\n"))
    assert main(["chat", "--model=base", "--device=cpu", "--dtype=float32", "--max_response_length=3"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) >= 3
    assert said.err == ""
    monkeypatch.setattr("sys.stdin", io.StringIO("7\n" + 60 * "long " + "\n9\n"))
    model_folder(gpt2(), folder / "short")  # reads 128 tokens
    assert main(["chat", "--model=short", "--device=cpu", "--dtype=float32", "--max_response_length=3"]) == 0
    assert "short reads 128 tokens, and the conversation has" in capsys.readouterr().err


def test_chat_says_what_is_wrong_in_one_line(folder, capsys):
    for words, says in (
        (["--model=./nowhere"], "--model ./nowhere: no such folder"),
        (["--model=base", "--temperature=-1"], "--temperature is 0 or more"),
        (["--modl=base"], "unrecognized arguments"),
    ):
        assert main(["chat", *words]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1


def test_a_warm_up_still_takes_its_steps_as_before():
    """The demo's numbers stand in the README: its supervised steps must not change with what sft can do."""
    from grpo.embedded.sft import warm_up

    policy = tiny_policy(1)
    losses: list[float] = []
    warm_up(
        policy, [demo(policy, "1+2=?", "3")], steps=3, batch_size=2, lr=1e-3, weight_decay=0.0, clip_grad=1.0, seed=0,
        on_step=lambda step, loss: losses.append(loss),
    )  # fmt: skip
    again = tiny_policy(1)
    assert_close(torch.tensor(losses[0]), summed_loss(again, [[demo(again, "1+2=?", "3")]]).detach() / 2)
