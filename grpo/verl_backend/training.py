"""One training run of verl, from its command to the exported model. Leaves out what the command says (overrides.py),
how the process is watched (process.py), and what becomes of its files (records.py, export.py)."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from omegaconf import OmegaConf

from grpo.atomic import atomic_write
from grpo.engine import EngineError, Interrupted, Result, Run, schedule
from grpo.metrics.live import Progress
from grpo.metrics.log import MetricsLog
from grpo.report import write_report
from grpo.verl_backend import failures
from grpo.verl_backend.finishing.export import correct_saved_model, export
from grpo.verl_backend.finishing.resume import newest_whole, resume_overrides, step_of
from grpo.verl_backend.installation.environment import VerlEnvironment
from grpo.verl_backend.recording import earlier
from grpo.verl_backend.recording.records import Records
from grpo.verl_backend.running.phases import Phases
from grpo.verl_backend.running.process import Command, Ending, run_watched
from grpo.verl_backend.settings import command
from grpo.verl_backend.settings.guard import guarded
from grpo.verl_backend.settings.overrides import overrides
from grpo.verl_backend.settings.scripts import scripts

LOG = "verl.log"
LAST_LINES = 12  # of the log, shown when a run fails


def train(run: Run, environment: VerlEnvironment, cluster: Mapping[str, str]) -> Result:
    """Train as `run` says, with the verl of `environment`. Raises EngineError, RewardError, or Interrupted.

    cluster: variables that the Ray of --ray_address asks for.
    """
    beside, notes = resume_overrides(run)
    where = beside.get("trainer.resume_from_path")
    resume_step = step_of(Path(where)) if where else None
    if resume_step is not None:
        beside["trainer.val_before_train"] = False  # the evaluation before training is in the records
    words, adapted = guarded(overrides(run, beside), environment.config)
    variables = command.environment(run) | dict(cluster)
    start = Command((environment.program, *command.PROGRAM, *words), variables, Path.cwd())
    for name, text in scripts(run, environment.program, words).items():
        atomic_write(run.output_dir / name, text)
    with Progress(_total_steps(run), shown="console" in run.config.trainer.logger) as progress:
        for note in [*notes, *adapted]:
            progress.note(note)
        kept = None if resume_step is None else earlier.last_recorded(run.output_dir, resume_step)
        with _metrics_log(run, kept, progress) as log:
            records = Records(run, log, progress, resume_step=resume_step)
            ending = _watch(run, start, records, progress)
            records.poll(ended=True)
            _judge(ending, run, records, progress.note)
        final = _export(run, environment, records.step, progress)
        summary = records.finish(final)
    atomic_write(run.output_dir / "summary.json", json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
    return Result(summary, final, write_report(run.output_dir))


def _total_steps(run: Run) -> int:
    """As verl counts them, unless it leaves prompts out as too long; its log then says how many."""
    from pyarrow.parquet import read_metadata

    assert run.train is not None  # prompts made in Python are refused
    return schedule(run.config, read_metadata(run.train).num_rows)[1]


def _metrics_log(run: Run, last_step: int | None, progress: Progress) -> MetricsLog:
    """last_step: the last one whose lines stay; None: from the start."""
    config = run.config
    return MetricsLog(
        run.output_dir,
        config.trainer.logger,
        last_step,
        project=config.trainer.project_name,
        experiment=config.trainer.experiment_name,
        config=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        say=progress.note,
    )


def _watch(run: Run, start: Command, records: Records, progress: Progress) -> Ending:
    """Run verl to its end, however it ends; what it does until its first response is shown from its log."""
    trainer = run.config.trainer
    phases = Phases(trainer.n_gpus_per_node * trainer.nnodes, validates=bool(trainer.val_before_train))
    progress.phase(phases.text, 1)

    def on_line(line: str) -> None:
        if not records.seen and phases.feed(line):  # from then on the records show what goes on
            progress.advance()
            progress.phase(phases.text, 1)

    return run_watched(
        start,
        run.output_dir / LOG,
        on_line=on_line,
        on_tick=records.poll,
        hang_minutes=float(run.config.launcher.hang_minutes),
        progressed=lambda: (records.step, records.seen),
    )


def _judge(ending: Ending, run: Run, records: Records, say: Callable[[str], None]) -> None:
    """Return when the run finished; else show what happened and raise Interrupted or EngineError."""
    for note in ending.notes:
        say(note)
    if ending.reason == "finished":
        return
    contents, nodes = run.config.actor_rollout_ref.actor.checkpoint.save_contents, run.config.trainer.nnodes
    saved, _ = newest_whole(run.output_dir / "checkpoints", contents, nodes=nodes)
    go_on = f"go on with: ./train.sh --resume --output_dir {shlex.quote(_near(run.output_dir))}"
    kept = f"the newest checkpoint is {saved.name}" if saved else "there is no checkpoint yet"
    if ending.reason == "interrupted":
        raise Interrupted(f"stopped after step {records.step}; {kept}; {go_on}")
    log = run.output_dir / LOG
    for line in _told(log, ending):
        say(line)
    what = {
        "hung": f"verl showed no sign of life for {run.config.launcher.hang_minutes:g} minutes and was ended",
        "worker died": "a worker of verl died",
        "failed": f"verl ended with exit code {ending.code}",
    }[ending.reason]
    raise EngineError(f"{what} after step {records.step}; the whole log is {_near(log)}; {kept}")


def _told(log: Path, ending: Ending) -> list[str]:
    """The end of the log, or the traceback with which it began to fail, and what is known about it."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        explanations = failures.explain(lines)
    shown = list(ending.traceback) or log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    chinese = f"中文说明：./train.sh explain-log {shlex.quote(_near(log))} --lang zh"
    return ["", *shown, "", *failures.render(explanations), chinese]


def _export(run: Run, environment: VerlEnvironment, step: int, progress: Progress) -> Path:
    """checkpoints/final, from verl's checkpoint of the last step."""
    checkpoints, wanted = run.output_dir / "checkpoints", run.config.launcher.export
    last = checkpoints / f"global_step_{step}"
    for saved in sorted(checkpoints.glob("global_step_*")):
        if note := correct_saved_model(saved):
            progress.note(note)
    target = checkpoints / "final"
    return export(last, target, environment, dtype=wanted.dtype, lora=wanted.lora, say=progress.note)


def _near(path: Path) -> str:
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near
