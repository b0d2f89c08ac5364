"""Checkpoints: whole or absent, verified on load, never fewer good ones than promised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.embedded import checkpoint
from grpo.embedded.sft import Demonstration, warm_up
from tests.embedded.conftest import ids, tiny_policy


def _trained(seed=0):
    policy = tiny_policy(seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3)
    _one_step(policy, optimizer)
    return policy, optimizer


def _one_step(policy, optimizer):
    tokens = torch.tensor(ids(policy, "1+2=3"))
    optimizer.zero_grad()
    policy.model(tokens, labels=tokens).loss.backward()
    optimizer.step()


def _weights(model):
    return {name: weight.clone() for name, weight in model.state_dict().items()}


@pytest.mark.slow
def test_a_saved_run_goes_on_bit_for_bit(tmp_path):
    policy, optimizer = _trained()
    path = checkpoint.save(tmp_path, 3, policy, optimizer, {"outcome": {"first": "答案"}}, keep=2)
    _one_step(policy, optimizer)

    other = tiny_policy(seed=9)
    other.model.load_state_dict(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict())
    its_optimizer = torch.optim.AdamW(other.model.parameters(), lr=1e-3)
    checkpoint.load_optimizer(path, its_optimizer)
    _one_step(other, its_optimizer)
    for name, weight in _weights(policy.model).items():
        assert torch.equal(weight, other.model.state_dict()[name]), name
    assert checkpoint.load_state(path) == {"step": 3, "outcome": {"first": "答案"}}


def test_a_checkpoint_is_a_model_folder_with_tokenizer_and_chat_template(tmp_path):  # S2-11
    policy, optimizer = _trained()
    path = checkpoint.save(tmp_path, 1, policy, optimizer, {}, keep=2)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "1+2=?"}], tokenize=False)
    assert prompt == "1+2=?\n"
    tokens = torch.tensor([tokenizer("1+2=?")["input_ids"]])
    assert_close(model(tokens).logits, policy.model(tokens).logits, atol=0, rtol=0)


@pytest.mark.slow
def test_only_the_newest_are_kept_and_none_goes_before_the_newer_one_is_whole(tmp_path, monkeypatch):
    policy, optimizer = _trained()
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, policy, optimizer, {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_2", "global_step_3"]

    def fail(*_):
        raise OSError("disk is gone")

    monkeypatch.setattr(checkpoint.os, "rename", fail)
    with pytest.raises(checkpoint.SaveError, match="global_step_4 was not written: disk is gone"):
        checkpoint.save(tmp_path, 4, policy, optimizer, {}, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_2", "global_step_3"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_damage_to_any_file_is_found_and_the_checkpoint_before_is_taken(tmp_path, how):
    policy, optimizer = _trained()
    checkpoint.save(tmp_path, 1, policy, optimizer, {}, keep=9)
    whole = checkpoint.save(tmp_path, 2, policy, optimizer, {}, keep=9)
    names = sorted(path.name for path in whole.iterdir())
    assert {"model.safetensors", "optimizer.safetensors", "manifest.json", "trainer_state.json"} <= set(names)
    for name in names:
        newest = checkpoint.save(tmp_path, 2, policy, optimizer, {}, keep=9)
        _damage(newest / name, how)
        found, notes = checkpoint.newest(tmp_path)
        assert found == tmp_path / "global_step_1", name
        assert len(notes) == 1
        assert "global_step_2 is damaged" in notes[0]
        assert name in notes[0] or name == "manifest.json"  # which may name anything once it is damaged
        assert (tmp_path / "damaged_global_step_2").is_dir()


def _damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "remove":
        file.unlink()
    elif how == "truncate":
        file.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 0x40
        file.write_bytes(data)


def test_leftovers_of_a_killed_save_are_no_checkpoint(tmp_path):
    policy, optimizer = _trained()
    checkpoint.save(tmp_path, 1, policy, optimizer, {}, keep=2)
    (tmp_path / ".global_step_2.tmp-123").mkdir()
    (tmp_path / ".global_step_2.tmp-123" / "model.safetensors").write_bytes(b"half")
    found, notes = checkpoint.newest(tmp_path)
    assert (found, notes) == (tmp_path / "global_step_1", [])
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]


@pytest.mark.parametrize("new_one_is_there", [True, False])
def test_a_kill_while_a_folder_is_replaced_leaves_one_of_the_two(tmp_path, new_one_is_there):
    policy, optimizer = _trained()
    path = checkpoint.save(tmp_path, 1, policy, optimizer, {}, keep=2)
    if new_one_is_there:
        checkpoint.publish(tmp_path, ".global_step_1.replaced", lambda folder: None)
    else:
        path.rename(tmp_path / ".global_step_1.replaced")
    assert checkpoint.newest(tmp_path)[0] == path
    assert [entry.name for entry in tmp_path.iterdir()] == ["global_step_1"]


FULL_DISK = """
import resource, sys
from pathlib import Path
from tests.embedded.test_checkpoint import _trained
from grpo.embedded import checkpoint
policy, optimizer = _trained()
folder = Path(sys.argv[1])
checkpoint.save(folder, 1, policy, optimizer, {}, keep=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoint.save(folder, 2, policy, optimizer, {}, keep=1)
except checkpoint.SaveError as error:
    print("said:", error)
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_the_older_checkpoint_and_nothing_half_written(tmp_path, repo):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path], cwd=repo, capture_output=True, text=True, check=False
    )
    assert "said:" in done.stdout, done.stderr
    assert "global_step_2 was not written" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]
    assert checkpoint.damaged(tmp_path / "global_step_1") is None


def test_too_little_space_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(checkpoint.SaveError, match=r"GB needed, .* GB free"):
        checkpoint.publish(tmp_path, "final", lambda path: None, needs=10**18)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_in_place_of_a_safetensors_file_is_not_run(tmp_path):
    policy, optimizer = _trained()
    path = checkpoint.save(tmp_path, 1, policy, optimizer, {}, keep=1)
    torch.save({"0.step": _Bomb(tmp_path / "exploded")}, path / "optimizer.safetensors")
    with pytest.raises(Exception, match=r"(?i)header|safetensor"):
        checkpoint.load_optimizer(path, optimizer)
    assert not (tmp_path / "exploded").exists()


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.target,))


@pytest.mark.slow
def test_the_warm_up_learns_its_demonstrations_and_nothing_of_the_prompt():  # S1-23
    policy = tiny_policy(1)
    (prompt,), (response,) = ids(policy, "1+2=?"), ids(policy, "3")
    losses = []
    warm_up(
        policy,
        [Demonstration(prompt, [*response, policy.stop_ids[0]])] * 4,
        steps=60,
        batch_size=4,
        lr=3e-3,
        weight_decay=0.0,
        clip_grad=1.0,
        seed=0,
        on_step=lambda step, loss: losses.append(loss),
    )
    assert losses[0] > 1.0
    assert losses[-1] < 0.05
    answer = policy.model.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert answer[0, len(prompt) :].tolist()[:2] == [*response, policy.stop_ids[0]]
