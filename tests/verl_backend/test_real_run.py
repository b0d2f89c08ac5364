"""The real verl (Ray, FSDP2, vLLM, reward workers) through ./train.sh on a CPU: what `make test-verl` proves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.verl_backend.real import lines, python_in_a_spaced_folder, start, train, verl_processes

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module", autouse=True)
def _verl_is_installed(missing: Callable[[str], NoReturn]) -> None:
    from grpo.verl_backend.installation.environment import find_environment

    if find_environment("cpu") is None:
        missing("real verl needs `./train.sh setup --engine verl --device cpu`")


def test_a_run_is_killed_goes_on_and_leaves_a_model_that_opens(in_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """S2-02, S2-03, S2-06, S2-11, S2-37 to S2-41: data and reward in Chinese paths, to a Hugging Face folder.

    verl's own Python lies in a folder with a space, too.
    """
    monkeypatch.setenv("GRPO_VERL_PYTHON", str(python_in_a_spaced_folder(in_folder)))
    settings = ("--max_steps", "5", "--save_freq", "2", "--test_freq", "4", "--hang_minutes", "5")
    outputs = in_folder / "outputs"
    shared_before = set(os.listdir("/dev/shm"))

    first = start(in_folder, *settings)
    while first.poll() is None and not (outputs / "checkpoints" / "latest_checkpointed_iteration.txt").exists():
        time.sleep(0.5)
    assert first.poll() is None, first.communicate()[0]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    deadline = time.monotonic() + 60  # nobody is left to end verl but the kernel and verl itself
    while verl_processes() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert verl_processes() == []

    said = train(in_folder, *settings)
    assert "global_step_2" in said
    assert verl_processes() == []
    assert {name for name in set(os.listdir("/dev/shm")) - shared_before if name.startswith("verl_weights")} == set()

    metrics = lines(outputs / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [0, 1, 2, 3, 4, 5]
    whole = [row for row in metrics[1:] if "critic/rewards/mean" in row]
    # verl saves a step before it logs it: a kill in between leaves the second its rewards alone.
    assert [row["step"] for row in whole] in ([1, 2, 3, 4, 5], [1, 3, 4, 5])
    assert metrics[2]["reward_std"] > 0
    for row in whole:
        # Ours is exact, verl's is the mean in float32.
        assert row["reward_mean"] == pytest.approx(row["critic/rewards/mean"], abs=1e-6)
        assert row["reward_mean"] == pytest.approx(row["reward/digits"], abs=1e-12)
        assert row["reward_std"] > 0
        assert {"kl_loss", "policy_loss", "response_length", "entropy", "grad_norm"} <= row.keys()
    assert all("val_reward_mean" in metrics[step] for step in (0, 4, 5))

    responses = [row for row in lines(outputs / "completions.jsonl") if row["split"] == "train"]
    assert len(responses) == len(whole) * 8 * 4
    assert all(row["reward"] == row["parts"]["digits"] for row in responses)
    # What the log says of a step is the mean over its responses.
    third = [row["reward"] for row in responses if row["step"] == 3]
    assert metrics[3]["reward_mean"] == pytest.approx(sum(third) / len(third), abs=1e-6)

    _opens(outputs / "checkpoints" / "final", dtype="float32")
    assert (outputs / "report.html").stat().st_size > 10_000
    assert (outputs / "summary.json").is_file()


def _opens(folder: Path, *, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert str(model.dtype) == f"torch.{dtype}"
    ids = AutoTokenizer.from_pretrained(folder)("Compute: 1 + 1 = ?", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert model(ids).logits.isfinite().all()


def test_what_broke_inside_verl_is_explained(in_folder: Path):
    said = train(
        in_folder,
        *("--max_steps", "1", "trainer.val_before_train=false"),
        "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2",
        code=2,
    )
    assert "flash-attn" in said.splitlines()[-1] or "flash" in "\n".join(said.splitlines()[-8:])
    assert "attn_implementation=sdpa" in said
    assert "outputs/verl.log" in said.splitlines()[-1]
    assert verl_processes() == []
