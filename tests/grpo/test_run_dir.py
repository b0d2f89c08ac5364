"""The output folder: who may write, what goes on, what is moved aside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from grpo.atomic import atomic_write
from grpo.config import ConfigError
from grpo.run_dir import checkpoint_steps, open_run, stored_config
from grpo.run_record import flat

SETTINGS = {
    "data": {"train_files": "a.json", "train_batch_size": 256},
    "actor_rollout_ref": {"rollout": {"n": 5}, "actor": {"optim": {"lr": 1e-6, "betas": [0.9, 0.999]}}},
    "trainer": {"save_freq": 20, "logger": ["console", "file"], "total_training_steps": None},
    "launcher": {"data": {"system": None}},
}
PRINTS = {"reward": "aa", "torch": "2.13.0"}


def config(**changes: object) -> DictConfig:
    made = OmegaConf.create(SETTINGS)
    for key, value in changes.items():
        OmegaConf.update(made, key.replace("__", "."), value)
    return made


def opening(path: Path, *, settings: DictConfig | None = None, prints: dict | None = None, **kwargs):
    kwargs = {"origins": {}, "command": "./train.sh", "resume_mode": "auto"} | kwargs
    return open_run(path, config=settings or config(), fingerprint=PRINTS if prints is None else prints, **kwargs)


def leave_unfinished(path: Path, *, steps: tuple[int, ...] = (20, 40), **kwargs) -> None:
    """What a killed run leaves: metrics and checkpoints, no summary.json."""
    with opening(path, **kwargs):
        (path / "metrics.jsonl").write_text('{"step": 1}\n')
        for step in steps:
            (path / "checkpoints" / f"global_step_{step}").mkdir(parents=True)


def test_an_empty_place_is_taken_and_the_run_written_down(in_folder: Path):
    with opening(in_folder / "outputs", command="./train.sh --lr 1e-6") as opened:
        assert (opened.resume, opened.notes, opened.path) == (False, (), in_folder / "outputs")
        record = json.loads((opened.path / "run.json").read_text())
        assert record["command"] == "./train.sh --lr 1e-6"
        assert record["fingerprint"] == PRINTS
        assert record["packages"]["omegaconf"] == "2.3.1"
        assert sorted(os.listdir(opened.path)) == [".lock", "config.yaml", "run.json"]


def test_an_unfinished_run_of_the_same_configuration_goes_on(in_folder: Path):
    out = in_folder / "outputs"
    leave_unfinished(out, command="first")
    started = "2026-01-02T03:04:05+00:00"
    before = json.loads((out / "run.json").read_text()) | {"started": started}
    (out / "run.json").write_text(json.dumps(before))
    with opening(out, command="second") as opened:
        assert opened.resume
        assert opened.notes == ("going on with the unfinished run in outputs; its newest checkpoint is of step 40",)
    record = json.loads((out / "run.json").read_text())
    assert record["started"] == started
    assert [again["command"] for again in record["resumed"]] == ["second"]
    with opening(out, command="third"):
        pass
    assert [again["command"] for again in json.loads((out / "run.json").read_text())["resumed"]] == ["second", "third"]


def test_an_unfinished_run_without_a_checkpoint_goes_on_from_the_start(in_folder: Path):
    leave_unfinished(in_folder / "outputs", steps=())
    with opening(in_folder / "outputs") as opened:
        assert opened.resume
        assert opened.notes == ("going on with the unfinished run in outputs from the start: it had no checkpoint yet",)


def test_a_start_that_never_began_to_train_leaves_nothing_to_go_on_with(in_folder: Path):
    # a bad record stops the run after the folder was opened; the corrected command must not be refused
    with pytest.raises(ValueError, match="bad record"), opening(in_folder / "outputs"):
        raise ValueError("bad record")
    with opening(in_folder / "outputs", settings=config(actor_rollout_ref__rollout__n=8)) as opened:
        assert not opened.resume
    assert stored_config(in_folder / "outputs") is None


def test_what_a_dry_run_for_verl_left_is_no_foreign_folder(in_folder: Path):
    out = in_folder / "outputs"
    (out / "data").mkdir(parents=True)
    with pytest.raises(ConfigError, match="not of a run"), opening(out):
        pass  # a folder of the user's, with data of his
    for name in ("launch.sh", "launch_node.sh", "launch.slurm", "ray_token", "ray_node_0.log"):
        (out / name).touch()
    with opening(out) as opened:
        assert not opened.resume


def test_another_configuration_is_refused_with_the_difference(in_folder: Path):
    leave_unfinished(in_folder / "outputs")
    other = config(actor_rollout_ref__rollout__n=8, launcher__data__system="你好")
    with pytest.raises(ConfigError) as refused, opening(in_folder / "outputs", settings=other):
        pass
    line = str(refused.value)
    assert "actor_rollout_ref.rollout.n was 5 and is 8; launcher.data.system was not set and is 你好" in line
    assert "--resume disable" in line
    assert "--output_dir" in line
    assert "\n" not in line
    assert "n: 5" in (in_folder / "outputs" / "config.yaml").read_text()


@pytest.mark.parametrize(
    "key",
    ["trainer__save_freq", "trainer__logger", "trainer__test_freq", "launcher__output_dir", "reward__num_workers"],
)
def test_what_cannot_change_the_result_may_change(in_folder: Path, key: str):
    leave_unfinished(in_folder / "outputs")
    with opening(in_folder / "outputs", settings=config(**{key: 1})) as opened:
        assert opened.resume


def test_changed_data_is_another_run_and_the_same_data_under_another_path_is_not(in_folder: Path):
    leave_unfinished(in_folder / "outputs", prints={"data.train_files": "aaa"})
    moved = config(data__train_files="../b.json")
    with opening(in_folder / "outputs", settings=moved, prints={"data.train_files": "aaa"}) as opened:
        assert opened.resume
    with (
        pytest.raises(ConfigError, match=r"data\.train_files was aaa and is bbb"),
        opening(in_folder / "outputs", prints={"data.train_files": "bbb"}),
    ):
        pass
    with pytest.raises(ConfigError, match=r"reward was not set and is r1"):
        opening(in_folder / "outputs", prints={"data.train_files": "aaa", "reward": "r1"}).__enter__()


def test_a_setting_with_a_password_is_the_same_setting_the_next_time(in_folder: Path):
    proxied = config(trainer__project_name="p", launcher__data__system="see http://me:pw@host/")
    leave_unfinished(in_folder / "outputs", settings=proxied)
    with opening(in_folder / "outputs", settings=proxied) as opened:
        assert opened.resume


def test_finished_runs_are_moved_aside_and_counted(in_folder: Path):
    out = in_folder / "outputs"
    for number in (1, 2):
        with opening(out, command=f"run {number}"):
            (out / "summary.json").write_text("{}")
    (in_folder / "outputs.old").mkdir()
    with opening(out) as opened:
        assert not opened.resume
        assert opened.notes == (f"moved the finished run in outputs aside to {in_folder / 'outputs.2'}",)
        assert not (out / "summary.json").exists()
    assert [json.loads((in_folder / f"outputs.{n}/run.json").read_text())["command"] for n in (1, 2)] == [
        "run 1",
        "run 2",
    ]


def test_resume_disable_moves_an_unfinished_run_aside(in_folder: Path):
    leave_unfinished(in_folder / "outputs")
    with opening(in_folder / "outputs", resume_mode="disable") as opened:
        assert not opened.resume
        assert not checkpoint_steps(opened.path)
    assert checkpoint_steps(in_folder / "outputs.1") == [20, 40]


def test_through_a_link_the_linked_folder_is_moved_aside(in_folder: Path):
    (in_folder / "big disk").mkdir()
    (in_folder / "outputs").symlink_to("big disk")
    with opening(in_folder / "outputs"):
        (in_folder / "outputs" / "summary.json").write_text("{}")
    with opening(in_folder / "outputs") as opened:
        assert not opened.resume
    assert (in_folder / "big disk.1" / "summary.json").exists()
    assert (in_folder / "outputs").is_symlink()


def test_a_folder_of_other_files_is_refused_and_left_alone(in_folder: Path):
    (in_folder / "home").mkdir()
    for name in ("thesis.tex", "config.yaml", "summary.json"):
        (in_folder / "home" / name).write_text("mine: 1")
    with pytest.raises(ConfigError, match=r"home holds files that are not of a run \(config\.yaml, "):
        opening(in_folder / "home", resume_mode="disable").__enter__()
    assert sorted(os.listdir(in_folder / "home")) == ["config.yaml", "summary.json", "thesis.tex"]
    with pytest.raises(ConfigError, match="is a file"):
        opening(in_folder / "home" / "thesis.tex").__enter__()


def test_a_finished_run_in_the_current_folder_is_not_moved_from_under_the_user(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    with opening(in_folder / "outputs"):
        (in_folder / "outputs" / "summary.json").write_text("{}")
    monkeypatch.chdir(in_folder / "outputs")
    with pytest.raises(ConfigError, match="is the current folder"):
        opening(Path()).__enter__()


def test_too_little_space_is_said_before_anything_is_made(in_folder: Path):
    with pytest.raises(ConfigError, match=r"GB free and this run needs about 1000000000\.0 GB"):
        opening(in_folder / "new" / "outputs", needed_bytes=10**18).__enter__()
    assert not (in_folder / "new").exists()


def test_a_folder_that_cannot_be_made_is_one_line(in_folder: Path):
    (in_folder / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory; name a folder you may write to"):
        opening(in_folder / "file" / "outputs").__enter__()


def test_a_damaged_config_is_named(in_folder: Path):
    leave_unfinished(in_folder / "outputs")
    (in_folder / "outputs" / "config.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read"):
        opening(in_folder / "outputs").__enter__()
    with opening(in_folder / "outputs", resume_mode="disable") as opened:
        assert not opened.resume


def test_stored_config_gives_the_unfinished_run_its_settings_back(in_folder: Path):
    assert stored_config(in_folder / "outputs") is None
    leave_unfinished(in_folder / "outputs", settings=config(actor_rollout_ref__rollout__n=8))
    stored = stored_config(in_folder / "outputs")
    assert stored is not None
    assert flat(stored) == flat(config(actor_rollout_ref__rollout__n=8))
    (in_folder / "outputs" / "summary.json").write_text("{}")
    assert stored_config(in_folder / "outputs") is None


HOLDER = """
import multiprocessing, sys, time
from omegaconf import OmegaConf
from grpo.run_dir import open_run
with open_run(sys.argv[1], config=OmegaConf.create({"a": 1}), origins={}, fingerprint={}, command=""):
    if sys.argv[2] == "with worker":
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,)).start()
    print("held", flush=True)
    time.sleep(30)
"""


def start_holder(out: Path, repo: Path, kind: str = "alone") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out), kind],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(repo)},
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.slow
def test_a_second_run_is_refused_at_once_and_a_dead_one_does_not_block(in_folder: Path, repo: Path):
    holder = start_holder(in_folder / "outputs", repo, "with worker")
    try:
        begun = time.perf_counter()
        with pytest.raises(ConfigError, match=f"in use by a run with process id {holder.pid};"):
            opening(in_folder / "outputs").__enter__()
        assert time.perf_counter() - begun < 1
        holder.kill()  # its forked worker lives on
        holder.wait()
        with opening(in_folder / "outputs") as opened:
            assert opened.path.is_dir()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate()


def test_an_atomic_write_that_fails_leaves_the_old_file_and_nothing_else(in_folder: Path):
    atomic_write(in_folder / "a.txt", "旧")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(in_folder / "a.txt", "new \ud800")
    assert (in_folder / "a.txt").read_text(encoding="utf-8") == "旧"
    assert os.listdir(in_folder) == ["a.txt"]
    atomic_write(in_folder / "a.txt", b"\x00new")
    assert (in_folder / "a.txt").read_bytes() == b"\x00new"
