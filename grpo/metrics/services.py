"""One small adapter for each service that draws metrics. Leaves out which are wanted and what happens when one fails.

Each is started by calling it with a `Target`, and imports its package only then.
"""

from __future__ import annotations

import netrc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpo.metrics.safe_text import redact


@dataclass(frozen=True)
class Target:
    """Where a service writes, and as what. run_id: new, or the one that an earlier part of the run was logged under."""

    output_dir: Path
    project: str
    experiment: str
    config: Mapping[str, Any]
    run_id: str
    resume_step: int | None
    say: Callable[[str], None]


class Service(Protocol):
    """One service that has been started."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Draw the finite values of one step."""
        ...

    def close(self) -> None:
        """Write what is buffered and say goodbye."""
        ...


class TensorBoard:
    """Event files under OUTPUT/tensorboard, written by the viewer's own package: torch's writer would need torch."""

    def __init__(self, target: Target) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        folder = target.output_dir / "tensorboard"
        self._writer = EventFileWriter(str(folder))
        if target.resume_step is not None:
            # Tells the viewer to forget what an interrupted run had drawn after its checkpoint.
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=target.resume_step + 1, session_log=start))
        target.say(f"tensorboard: tensorboard --logdir '{folder}'")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=scalars)))
        self._writer.flush()  # so that a kill loses nothing, and the viewer follows

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases; kept in OUTPUT/wandb, to be sent later, when no API key is known."""

    def __init__(self, target: Target) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if _has_login("WANDB_API_KEY", "api.wandb.ai") else "offline")
        # silent: its lines would break the live display. disable_git: a remote's URL may hold a token.
        settings = wandb.Settings(silent=True, console="off", disable_git=True)
        self._run = wandb.init(
            project=target.project,
            name=target.experiment,
            dir=str(target.output_dir),
            id=target.run_id,
            resume="allow",
            mode=mode,  # pyright: ignore[reportArgumentType]  # the user's own word, checked by wandb
            config=dict(target.config),
            settings=settings,
        )
        folder = Path(self._run.dir).parent
        kept = f"no API key, so it writes to this machine; send it with: wandb sync '{folder}'"
        target.say(f"wandb: {self._run.url or kept}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class SwanLab:
    """A run of SwanLab; kept in OUTPUT/swanlab, to be sent later, when no API key is known."""

    def __init__(self, target: Target) -> None:
        import swanlab

        known = _has_login("SWANLAB_API_KEY", "swanlab.cn", Path.home() / ".swanlab" / ".netrc")
        folder = target.output_dir / "swanlab"
        self._swanlab = swanlab
        swanlab.init(
            project=target.project,
            name=target.experiment,
            log_dir=str(folder),
            mode=os.environ.get("SWANLAB_MODE") or ("online" if known else "offline"),
            id=target.run_id,
            resume="allow",
            config=dict(target.config),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._swanlab.log(dict(values), step=step)

    def close(self) -> None:
        self._swanlab.finish()


class MLflow:
    """A run of MLflow at MLFLOW_TRACKING_URI, or in OUTPUT/mlflow.db."""

    def __init__(self, target: Target) -> None:
        import mlflow

        database = target.output_dir / "mlflow.db"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database}"
        self._metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(target.project)
        experiment = known.experiment_id if known else self._client.create_experiment(target.project)
        tag = {"grpo_run": target.run_id}
        earlier = self._client.search_runs([experiment], filter_string=f"tags.grpo_run = '{target.run_id}'")
        run = earlier[0] if earlier else self._client.create_run(experiment, run_name=target.experiment, tags=tag)
        self._run_id = run.info.run_id
        params = [mlflow.entities.Param(name, str(value)[:500]) for name, value in _flat(target.config).items()]
        for start in range(0, 0 if earlier else len(params), 100):  # MLflow takes 100 at once
            self._client.log_batch(self._run_id, params=params[start : start + 100])
        target.say(f"mlflow: mlflow ui --backend-store-uri '{redact(uri)}'")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        # MLflow takes no @ in a name (val-core/gsm8k/reward/mean@1).
        metrics = [self._metric(name.replace("@", "_at_"), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class VisualDL:
    """Log files of PaddlePaddle's VisualDL under OUTPUT/visualdl."""

    def __init__(self, target: Target) -> None:
        from visualdl import LogWriter

        folder = target.output_dir / "visualdl"
        self._writer = LogWriter(logdir=str(folder))
        target.say(f"visualdl: visualdl --logdir '{folder}'")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(tag=name, value=value, step=step)

    def close(self) -> None:
        self._writer.close()


STARTERS: dict[str, Callable[[Target], Service]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "swanlab": SwanLab,
    "mlflow": MLflow,
    "visualdl": VisualDL,
}


def _has_login(variable: str, host: str, file: Path | None = None) -> bool:
    """Whether the user has logged in to a service; without it, its online mode would stop and ask for a key."""
    if os.environ.get(variable):
        return True
    try:
        return any(name.endswith(host) for name in netrc.netrc(file or os.environ.get("NETRC")).hosts)
    except (OSError, netrc.NetrcParseError):
        return False


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration as dotted keys."""
    rows: dict[str, Any] = {}
    for name, value in config.items():
        rows |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return rows
