"""Services that draw metrics: asked for nothing, told nothing secret, and never able to end a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo.metrics import loggers
from grpo.metrics.log import MetricsLog
from grpo.metrics.safe_text import redact, visible


def lines_of(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_a_logger_that_is_not_installed_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """S0-10"""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "swanlab", "mlflow", "visualdl"):
        assert loggers.available(name) == f"pip install {name}"
    assert loggers.problems(["console", "visualdl"]) == ["logger 'visualdl' is not installed: pip install visualdl"]
    assert loggers.expand(["all"]) == ("console", "file")
    assert [loggers.available(name) for name in ("console", "file", "none")] == [None, None, None]


def test_a_misspelt_logger_names_the_nearest_and_none_stands_alone() -> None:
    [line] = loggers.problems(["wandbb"])
    assert line.startswith("no logger is called 'wandbb': did you mean 'wandb'? There are console, file, tensorboard")
    assert loggers.problems(["none", "file"]) == ["logger 'none' stands alone: leave it out, or leave the others out"]
    assert loggers.problems(["none"]) == []
    assert loggers.expand(["none"]) == ()


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_it_is_needed(repo: Path) -> None:
    code = (
        "import sys, grpo.report, grpo.metrics.log, grpo.metrics.live, grpo.metrics.verdicts, grpo.metrics.loggers\n"
        "grpo.metrics.loggers.problems(['tensorboard', 'wandb'])\n"
        "print({'torch', 'matplotlib', 'rich', 'jinja2', 'numpy', 'tensorboard', 'wandb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repo, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class Unreachable:
    """A service that can be started and then refuses, with a message that repeats its key."""

    def __init__(self, target: Any) -> None:
        pass

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == 2:
            raise ConnectionError(f"401 for key {os.environ['WANDB_API_KEY']}\nand a long trace")

    def close(self) -> None:
        raise AssertionError("a service that failed is not closed")


def test_a_logger_that_fails_is_said_once_without_its_key_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loggers.STARTERS, "wandb", Unreachable)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    said: list[str] = []
    with MetricsLog(tmp_path, ["console", "wandb"], say=said.append) as log:
        for step in range(1, 5):
            log.step(step, {"kl_loss": 0.1})
    assert said == [
        "logger wandb failed, training goes on without it (ConnectionError: 401 for key ***WANDB_API_KEY***); "
        "metrics.jsonl has every value"
    ]
    assert len(lines_of(tmp_path)) == 4


def needs(name: str) -> pytest.MarkDecorator:
    """Skips where an optional service is not installed."""
    pip = loggers.available(name)
    return pytest.mark.skipif(pip is not None, reason=f"{name} is optional: {pip}")


@pytest.fixture
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No service knows this user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "SWANLAB_API_KEY", "SWANLAB_MODE", "MLFLOW_TRACKING_URI", "NETRC"):
        monkeypatch.delenv(name, raising=False)


@needs("tensorboard")
@pytest.mark.slow
def test_tensorboard_reads_back_what_was_logged_and_forgets_what_a_resume_repeats(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said: list[str] = []
    log = MetricsLog(tmp_path, ["tensorboard"], say=said.append)
    for step in range(1, 6):
        log.step(step, {"kl_loss": step / 8})  # killed after step 5: never closed
    with MetricsLog(tmp_path, ["tensorboard"], 3, say=said.append) as log:
        log.step(4, {"kl_loss": 0.75, "grad_norm": math.nan})
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    for name in ("kl_loss", "actor/kl_loss"):
        assert [(e.step, e.value) for e in read.Scalars(name)] == [(1, 0.125), (2, 0.25), (3, 0.375), (4, 0.75)]
    assert "grad_norm" not in read.Tags()["scalars"]
    assert said[0] == f"tensorboard: tensorboard --logdir '{tmp_path / 'tensorboard'}'"


@needs("wandb")
@pytest.mark.slow
def test_wandb_without_a_key_asks_nothing_and_writes_to_the_output_folder(tmp_path: Path, no_login: None) -> None:
    said: list[str] = []
    for resume_step in (None, 1):
        with MetricsLog(tmp_path, ["wandb"], resume_step, config={"a": {"b": 1}}, say=said.append) as log:
            log.step(1 if resume_step is None else 2, {"kl_loss": 0.5})
    runs = [path for path in (tmp_path / "wandb").iterdir() if path.name.startswith("offline-run-")]
    assert len({path.name.rsplit("-", 1)[1] for path in runs}) == 1  # one id: one curve after `wandb sync`
    assert all(list(path.glob("*.wandb")) for path in runs)
    assert said[0].startswith("wandb: no API key, so it writes to this machine; send it with: wandb sync '")


@needs("swanlab")
@pytest.mark.slow
def test_swanlab_without_a_key_asks_nothing_and_writes_to_the_output_folder(tmp_path: Path, no_login: None) -> None:
    said: list[str] = []
    with MetricsLog(tmp_path, ["swanlab"], say=said.append) as log:
        log.step(1, {"kl_loss": 0.5})
    assert said == []
    assert list((tmp_path / "swanlab").rglob("*.swanlab"))


@needs("mlflow")
@pytest.mark.slow
def test_mlflow_writes_its_own_database_and_a_resume_goes_on_in_the_same_run(tmp_path: Path, no_login: None) -> None:
    import mlflow

    said: list[str] = []
    for resume_step in (None, 1):
        with MetricsLog(tmp_path, ["mlflow"], resume_step, config={"a": {"b": 1}}, say=said.append) as log:
            log.step(2 if resume_step else 1, {"kl_loss": 0.5, "val-core/gsm8k/reward/mean@1": 1.0})
    assert [line.split(":")[0] for line in said] == ["mlflow", "mlflow"]  # where to look, and no failure
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("grpo").experiment_id])
    assert run.data.params == {"a.b": "1"}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "actor/kl_loss")] == [1, 2]
    assert run.data.metrics["val-core/gsm8k/reward/mean_at_1"] == 1.0


@needs("visualdl")
@pytest.mark.slow
def test_visualdl_reads_back_what_was_logged(tmp_path: Path) -> None:
    """S0-09, S0-10"""
    from visualdl import LogReader

    with MetricsLog(tmp_path, ["visualdl"], say=lambda text: None) as log:
        log.step(1, {"kl_loss": 0.5})
    [file] = (tmp_path / "visualdl").iterdir()
    assert [(d.id, d.value) for d in LogReader(file_path=str(file)).get_data("scalar", "kl_loss")] == [(1, 0.5)]


def test_control_characters_and_direction_marks_are_spelled_out() -> None:
    assert visible("a\x1b[2Jb\r\nc\td\u202ee\ud800\x7f") == "a␛[2Jb\nc\td<U+202E>e<U+D800>␡"
    assert visible("中文 🙂") == "中文 🙂"


def test_settings_that_end_in_key_are_not_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWER_KEY", "ground_truth")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    assert redact("ground_truth hf_abcdefgh https://u:p@h/x") == "ground_truth ***HF_TOKEN*** https://***@h/x"
