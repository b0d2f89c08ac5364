"""`./train.sh sft --data demos.json`: supervised training on demonstrations, with the flags and keys of GRPO.

Leaves out the training (grpo/embedded/tuning.py). What GRPO sets otherwise by default is SFT below.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo import flags, help
from grpo.config import ConfigError, Settings, ours
from grpo.defaults import LAUNCHER, TRAIN, VAL, fit_batch
from grpo.engine import Run, schedule
from grpo.model_rules import RANK, RATE
from grpo.resolve import OUTPUT, RESUME, Resolved, checked, resolve
from grpo.rules import BATCH
from grpo.values import shown

if TYPE_CHECKING:
    from data_prep.record import Record

FOLDER = "outputs_sft"
ANSWER, SOURCE = "launcher.data.answer_key", "launcher.data.data_source"
OPTIM, GPUS = "actor_rollout_ref.actor.optim", "trainer.n_gpus_per_node"
# What SFT takes where the user says nothing; None = from the key behind it.
SFT: dict[str, tuple[Any, str | None]] = {
    BATCH: (None, "launcher.sft.batch_size"),
    RATE: (None, "launcher.sft.lr"),
    f"{OPTIM}.lr_scheduler_type": ("cosine", None),
    f"{OPTIM}.lr_warmup_steps_ratio": (0.05, None),
    f"{OPTIM}.min_lr_ratio": (0.1, None),
    "trainer.total_epochs": (3, None),
    ANSWER: ("response", None),
    SOURCE: ("demonstration", None),
}
# Keys that mean something here, beside those of SFT.
USED = (
    *("data.", "actor_rollout_ref.model.", f"{OPTIM}.", "trainer.", "launcher.data.", "launcher.scratch."),
    *("launcher.sft.", "launcher.export.", "launcher.output_dir", "launcher.seed", "launcher.dtype"),
    *("launcher.drop_last", "launcher.init_from", "launcher.qlora", "launcher.engine"),
)
NEEDS_DATA = "sft needs demonstrations: --data FILE, records with `prompt` and `response`; see docs/sft.md"


def main(argv: list[str]) -> int:
    """Run the command. Raises ConfigError, DataError, EngineError, or Interrupted with a checkpoint written."""
    line = flags.parse(argv)
    if line.help is not None:
        help.show(line.help)
        return 0
    if not line.configs and not _names_folder(line):
        line.given.append(flags.Given(OUTPUT, FOLDER, "sft"))
    resolved = resolve(line, os.environ, sft=True)
    settings = _suited(resolved)
    train, val = _records(settings)
    resolved.notes += fit_batch(resolved.draft, len(train))
    settings = resolved.settings()
    for note in resolved.notes:
        print(note.replace("prompts to train on", "demonstrations to train on"), flush=True)
    if line.dry_run is not None:
        _plan(settings, len(train), len(val))
        return 0
    return _train(resolved, settings, train, val)


def _names_folder(line: flags.CommandLine) -> bool:
    named = any(given.key == OUTPUT for given in [*line.given, *flags.environment(os.environ)])
    return named or any(word.lstrip("+").startswith(f"{OUTPUT}=") for word in line.overrides)


def _suited(resolved: Resolved) -> Settings:
    """The settings with what SFT takes by default; what means nothing to it is said."""
    draft = resolved.draft
    resumed = draft.origins[TRAIN].endswith("/config.yaml")
    if ours(draft.origins[TRAIN]) and not resumed:
        raise ConfigError(NEEDS_DATA)
    settings = resolved.settings()
    if settings["launcher.engine"] == "verl":
        raise ConfigError(
            f"launcher.engine=verl ({settings.origins['launcher.engine']}): sft runs on the embedded engine"
        )
    if settings[GPUS] > 1:
        raise ConfigError(f"{GPUS}={settings[GPUS]} ({settings.origins[GPUS]}): sft runs in one process; --n_gpus 1")
    for key, (value, other) in SFT.items():
        if ours(draft.origins[key]):
            draft.put(key, settings[other] if other else value, LAUNCHER)
    if settings[RANK] and draft.origins[RATE] == LAUNCHER and ours(settings.origins["launcher.sft.lr"]):
        rate = float(f"{10 * settings['launcher.sft.lr']:.3g}")
        draft.put(RATE, rate, LAUNCHER)
        resolved.notes.append(
            f"LoRA: the learning rate is {shown(rate)}, ten times that of full training; --lr sets it"
        )
    settings = checked(resolved, own_reward=True)
    given = [key for key, origin in draft.origins.items() if not ours(origin)]
    unused = [key for key in given if not key.startswith(USED) and key not in SFT]
    if unused and not resumed:
        resolved.notes.append(f"no effect on sft: {', '.join(unused)}")
    return settings


def _records(settings: Settings) -> tuple[list[Record], list[Record]]:
    """Demonstrations to train and to evaluate on, the response as ground truth. Raises DataError."""
    from data_prep.convert import split
    from data_prep.records import read_records

    names = ("prompt_key", "answer_key", "source_key", "data_source", "system")
    columns = {name: settings[f"launcher.data.{name}"] for name in names}

    def read(key: str) -> list[Record]:
        records = read_records(settings[key], **columns)
        return [_answered(record, settings[key]) for record in records] if columns["answer_key"] == "none" else records

    train = read(TRAIN)
    if settings[VAL] is None:
        train, val = split(train, settings["launcher.data.val_share"])
    else:
        val = read(VAL)
    most, most_val = settings["data.train_max_samples"], settings["data.val_max_samples"]
    return train[: None if most == -1 else most], val[: None if most_val == -1 else most_val]


def _answered(record: Record, name: str) -> Record:
    """Of a whole conversation, the last message is the response."""
    from data_prep.errors import DataError

    *turns, last = record.prompt
    if last["role"] != "assistant" or not turns:
        raise DataError(
            f"{name}, record {record.number}: with --answer_key none the conversation must end with an assistant "
            "message, which is the response; --answer_key names a column with responses instead"
        )
    return dataclasses.replace(record, prompt=turns, ground_truth=last["content"])


def _plan(settings: Settings, train: int, val: int) -> None:
    """What would run, and every value that is not the default; writes nothing."""
    per_epoch, steps = schedule(settings.config(), train)
    print(f"\nsft on {train:,} demonstrations, {val:,} to evaluate on: {steps} steps, {per_epoch} in an epoch\n")
    for key in settings.changed():
        print(f"{key}={shown(settings[key])}  # {settings.origins[key]}")


def _train(resolved: Resolved, settings: Settings, train: list[Record], val: list[Record]) -> int:
    from data_prep.convert import convert
    from grpo.embedded.engine import EmbeddedEngine
    from grpo.run_dir import open_run

    engine, folder = EmbeddedEngine(), Path(os.path.abspath(Path(settings[OUTPUT]).expanduser()))
    run = Run(
        config=settings.config(),
        origins=settings.origins,
        output_dir=folder,
        train=folder / "data" / "train.parquet",
        val=folder / "data" / "val.parquet",
        command=resolved.command.replace("./train.sh", "./train.sh sft", 1),
        recipe=resolved.recipe,
    )
    if refusals := engine.refusals(run):
        raise ConfigError(*(refusal.text for refusal in refusals))
    engine.prepare(run, print)
    with open_run(
        folder,
        config=run.config,
        origins=run.origins,
        fingerprint=_fingerprint(settings),
        command=run.command,
        resume_mode=settings[RESUME],
    ) as opened:
        for note in opened.notes:
            print(note)
        assert run.train is not None
        convert(train, run.train)
        convert(val, run.val, split="val")
        result = engine.fine_tune(dataclasses.replace(run, resume=opened.resume))
    _say(result.summary, settings)
    return 0


def _fingerprint(settings: Settings) -> dict[str, str]:
    prints = {"command": "sft", "launcher.engine": "embedded"}
    for key in (TRAIN, VAL):
        name, mark, rows = str(settings[key] or "").partition("#")
        if name and Path(name).is_file():
            prints[key] = hashlib.sha256(Path(name).read_bytes()).hexdigest() + mark + rows
    return prints


def _say(summary: Mapping[str, Any], settings: Settings) -> None:
    losses = summary["val_loss"]
    first = f"{losses['start']:.4f} -> " if "start" in losses else ""
    folder = settings[OUTPUT]
    print(f"\nloss on held-out demonstrations  {first}{losses['final']:.4f}")
    print(f"model     {folder}/checkpoints/final")
    print(f"report    {folder}/report.html")
    print(f"\nnext      ./train.sh --data prompts.json --init_from {folder}")
