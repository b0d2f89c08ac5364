"""The verl engine: what it refuses by name, and a command that a shell can run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo import overrides as command_line
from grpo.config import Draft
from grpo.engine import Run
from grpo.verl_backend.engine import VerlEngine
from grpo.verl_backend.settings.guard import guarded
from grpo.verl_backend.settings.overrides import overrides

MODEL = "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B"


def run_of(*words: str, out: Path = Path("/out"), **changes: Any) -> Run:
    draft = Draft()
    command_line.apply(draft, [MODEL, *words])
    settings = draft.settings()
    return Run(
        settings.config(), settings.origins, out, out / "t", out / "v", passthrough=settings.passthrough, **changes
    )


@pytest.mark.slow
def test_the_defaults_are_refused_nothing():
    assert VerlEngine().refusals(run_of(), here=False) == []
    assert VerlEngine().no_effect(run_of()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "begins"),
    [
        ("launcher.repetition_penalty=1.1", "launcher.repetition_penalty=1.1 (override): verl's sampling loop fixes"),
        ("launcher.min_response_length=2", "launcher.min_response_length=2 (override): verl's sampling loop has no"),
        ("launcher.qlora=4", "launcher.qlora=4 (override): verl trains LoRA over unrounded weights"),
        ("launcher.sft.steps=5", "launcher.sft.steps=5 (override): verl starts from the model as it is"),
        ("launcher.drop_last=false", "launcher.drop_last=false (override): verl always leaves the last"),
        ("actor_rollout_ref.model.path=scratch", "actor_rollout_ref.model.path=scratch (override): verl needs a model"),
        ("actor_rollout_ref.actor.strategy=megatron", "actor_rollout_ref.actor.strategy=megatron (override): megatron"),
        ("trainer.device=mps", "trainer.device=mps (override): verl trains on CUDA"),
        (
            "data.filter_overlong_prompts=false",
            "data.truncation=error: verl cuts prompts that are too long on the left",
        ),
    ],
)
def test_what_verl_cannot_honour_is_refused_by_name_with_what_to_do(word: str, begins: str):
    (refusal,) = VerlEngine().refusals(run_of(word), here=False)
    assert refusal.text.startswith(begins)
    assert "\n" not in refusal.text
    assert any(
        todo in refusal.text for todo in ("use ", "write ", "choose ", "leave it out", "only", "set it to", "name ")
    )


@pytest.mark.slow
def test_prompts_and_rewards_made_in_python_are_refused():
    (line,) = VerlEngine().refusals(run_of(records=[]), here=False)
    assert "name files" in line.text
    assert VerlEngine().refusals(run_of(reward=lambda: 1.0), here=False) == [line]


@pytest.mark.slow
def test_what_verl_cannot_read_and_what_cannot_work_is_refused_beside_it():
    word = "actor_rollout_ref.rollout.max_num_batched_tokens=abc"
    (misfit,) = VerlEngine().refusals(run_of(word), here=False)
    assert misfit.text == f"{word}: verl wants a whole number here; verl's default is 8192"
    words = ("trainer.n_gpus_per_node=8", "data.train_batch_size=100", "launcher.min_response_length=2")
    unable, uneven = VerlEngine().refusals(run_of(*words), here=False)
    assert unable.fix == {}
    assert uneven.fix == {"data.train_batch_size": 96}  # the nearer of 96 and 104, the lower where both are


def test_keys_without_meaning_here_are_listed():
    """critic.: of PPO; every estimator that is taken here does without."""
    ours = ("launcher.debug=true", "launcher.sft.lr=0.1", "launcher.scratch.num_heads=2")
    run = run_of(*ours, "critic.optim.lr=1e-3", "trainer.nnodes=2")
    assert sorted(VerlEngine().no_effect(run)) == sorted(word.partition("=")[0] for word in (*ours, "critic.optim.lr="))


@pytest.mark.slow
def test_a_shell_gets_the_very_words_from_the_printed_command():
    run = run_of(
        'reward.custom_reward_function.path=/奖励/it\'s "my" $HOME `x` \\ file.py',
        "actor_rollout_ref.model.custom_chat_template='{% if x %}\n{{ y }}{% endif %}'",
        "+trainer.note='a b'",
        out=Path("/输 出"),
    )
    notes = [line for line in VerlEngine().plan(run) if line.startswith("# ")]
    lines = VerlEngine().plan(run)[len(notes) :]
    assert "# verl is not installed here" in notes[0]
    assert notes[0].endswith("makes its environment first: ./train.sh setup --engine verl --device cuda")
    assert lines[0] == "python3 -m verl.trainer.main_ppo \\"
    assert not lines[-1].endswith("\\")
    script = 'python3() { printf "%s\\0" "$@"; }\n' + "\n".join(lines)
    got = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")
    assert got == ["-m", "verl.trainer.main_ppo", *guarded(overrides(run))[0], ""]
