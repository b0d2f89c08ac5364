"""Where a run of verl goes on: never from half a checkpoint, never with another number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from grpo.engine import EngineError
from grpo.verl_backend.finishing.resume import resume_overrides, step_of
from grpo.verl_backend.settings.overrides import overrides
from tests.verl_backend.test_engine import run_of

FILES = ("model", "optim", "extra_state")


def _checkpoint(out: Path, step: int, *, size: int = 2, version: int = 1) -> Path:
    """In verl's layout, with files as torch writes them."""
    path = out / "checkpoints" / f"global_step_{step}"
    actor = path / "actor"
    actor.mkdir(parents=True)
    for rank in range(size):
        for name in FILES:
            torch.save({"w": torch.zeros(300)}, actor / f"{name}_world_size_{size}_rank_{rank}.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": version, "world_size": size}))
    torch.save({}, path / "data.pt")
    return path


def _run(out: Path, *words: str):
    return run_of("trainer.n_gpus_per_node=2", *words, out=out, resume=True)


def test_a_run_goes_on_from_its_newest_checkpoint_by_name(tmp_path):
    for step in (5, 10, 9):
        _checkpoint(tmp_path, step)
    run = _run(tmp_path)
    decided, notes = resume_overrides(run)
    assert decided == {
        "trainer.resume_mode": "resume_path",
        "trainer.resume_from_path": str(tmp_path / "checkpoints" / "global_step_10"),
    }
    assert notes == []
    assert step_of(Path(decided["trainer.resume_from_path"])) == 10
    assert "trainer.resume_mode=resume_path" in overrides(run, decided)


def test_a_fresh_run_never_goes_on_from_what_lies_in_its_folder(tmp_path):
    _checkpoint(tmp_path, 5)  # verl's own default would
    assert resume_overrides(run_of(out=tmp_path)) == ({"trainer.resume_mode": "disable"}, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("torn", "how", "said"),
    [
        ("actor/optim_world_size_2_rank_1.pt", "cut", "actor/optim_world_size_2_rank_1.pt was cut short"),
        ("actor/model_world_size_2_rank_0.pt", "gone", "actor/model_world_size_2_rank_0.pt is missing"),
        ("actor/extra_state_world_size_2_rank_0.pt", "empty", "rank_0.pt was cut short"),
        ("data.pt", "gone", "data.pt is missing"),
    ],
)
def test_a_checkpoint_that_was_cut_short_is_set_aside_and_the_one_before_is_taken(tmp_path, torn, how, said):
    whole, newest = _checkpoint(tmp_path, 5), _checkpoint(tmp_path, 10)
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("10")
    file = newest / torn
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-40] if how == "cut" else b"")
    decided, (note,) = resume_overrides(_run(tmp_path))
    assert decided["trainer.resume_from_path"] == str(whole)
    assert said in note
    assert note.endswith("was set aside as damaged_global_step_10")
    assert (tmp_path / "checkpoints" / "damaged_global_step_10").is_dir()


def test_a_kill_before_verl_wrote_its_note_loses_nothing(tmp_path):
    newest = _checkpoint(tmp_path, 10)
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("")  # opened, and killed
    assert resume_overrides(_run(tmp_path))[0]["trainer.resume_from_path"] == str(newest)


def test_without_any_whole_checkpoint_training_starts_anew(tmp_path):
    (_checkpoint(tmp_path, 5) / "data.pt").unlink()
    decided, notes = resume_overrides(_run(tmp_path))
    assert decided == {"trainer.resume_mode": "disable"}
    assert len(notes) == 1


@pytest.mark.slow
def test_another_number_of_ranks_is_refused_by_name(tmp_path):
    _checkpoint(tmp_path, 10, size=4)
    with pytest.raises(EngineError) as problem:
        resume_overrides(_run(tmp_path))
    assert "global_step_10 was written by 4 ranks and this run has 2 (trainer.n_gpus_per_node=2" in str(problem.value)
    assert "go on with 4 GPUs in all" in str(problem.value)
    assert resume_overrides(_run(tmp_path, "trainer.n_gpus_per_node=4"))[1] == []


@pytest.mark.slow
def test_another_strategy_is_refused_by_name(tmp_path):
    _checkpoint(tmp_path, 10, version=2)
    with pytest.raises(EngineError, match=r"actor\.strategy=fsdp2 and this run has fsdp: go on with fsdp2"):
        resume_overrides(_run(tmp_path))
    assert resume_overrides(_run(tmp_path, "actor_rollout_ref.actor.strategy=fsdp2"))[1] == []
    assert resume_overrides(_run(tmp_path, "trainer.device=cpu"))[1] == []  # which is fsdp2 by itself


def test_each_node_may_keep_the_files_of_its_own_ranks(tmp_path):
    path = _checkpoint(tmp_path, 10, size=4)
    for file in [*path.glob("actor/*_rank_2.pt"), *path.glob("actor/*_rank_3.pt")]:
        file.unlink()
    decided, _ = resume_overrides(_run(tmp_path, "trainer.nnodes=2"))
    assert decided["trainer.resume_from_path"] == str(path)


def test_only_what_the_run_saves_must_be_there(tmp_path):
    path = _checkpoint(tmp_path, 10)
    for file in path.glob("actor/optim*"):
        file.unlink()
    run = _run(tmp_path, "actor_rollout_ref.actor.checkpoint.save_contents=[model,extra]")
    assert resume_overrides(run)[0]["trainer.resume_from_path"] == str(path)
