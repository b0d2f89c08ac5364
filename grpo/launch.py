"""From settings to a trained model: reads the data, rehearses the reward, opens the output folder, calls one engine.

The cheap checks come first, so that bad input is answered before torch is imported and before anything is written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.atomic import atomic_write
from grpo.config import ConfigError, Settings, one_fix
from grpo.defaults import TRAIN, VAL, fit_batch, share_batch
from grpo.engine import Engine, EngineError, Refusal, Result, Run, reward_arguments
from grpo.model_rules import MODEL
from grpo.presets import algorithm_name
from grpo.prompt_lengths import short_enough
from grpo.resolve import OUTPUT, RESUME, Resolved

if TYPE_CHECKING:
    from data_prep.records import Record
    from reward_funcs import Combined, Reward

REWARD, REWARDS = "reward.custom_reward_function.path", "launcher.reward.names"
SFT_FILES = "launcher.sft.files"
REHEARSED = 200  # records that the reward is tried on before training
LONGEST_PATH = 256  # characters; a longer system prompt is text
FROM_PYTHON = "records given from Python"
LITTLE = 64 * 2**20  # bytes that any run writes


@dataclass(frozen=True)
class Data:
    """Prompts in memory. train: None when they are made during training; val: never empty."""

    train: list[Record] | None
    val: list[Record]

    @property
    def prompts(self) -> int | None:
        """How many there are to train on."""
        return None if self.train is None else len(self.train)


def choose_engine(settings: Settings, *, in_python: bool = False) -> tuple[Engine, str]:
    """The engine and one line about the choice; imports no torch.

    in_python: prompts or a reward are objects of this process, which `auto` then keeps to.
    """
    from grpo.embedded.engine import EmbeddedEngine

    name, origin = settings["launcher.engine"], settings.origins["launcher.engine"]
    why = f"engine {name} ({origin})"
    if name == "auto" and (in_python or settings[MODEL] == "scratch"):
        reason = "prompts or a reward are objects of this Python process" if in_python else "it makes the model scratch"
        name, why = "embedded", f"engine embedded: {reason}"
    elif name == "auto":
        from grpo.verl_backend.installation.environment import automatic_engine

        name, why = automatic_engine(settings["trainer.device"])
    if name == "verl":
        from grpo.verl_backend.engine import VerlEngine

        return VerlEngine(), why
    return EmbeddedEngine(), why


def suit(resolved: Resolved, engine: Engine) -> None:
    """What follows from the engine for values that nobody set; what changed goes to the notes."""
    if engine.name == "verl":
        settings = resolved.settings()
        gpus = settings["trainer.n_gpus_per_node"] * settings["trainer.nnodes"]
        resolved.notes += share_batch(resolved.draft, gpus)


def read_data(settings: Settings) -> Data:
    """The prompts to train and to evaluate on; raises DataError."""
    from data_prep.records import read_records

    columns = columns_of(settings)
    val = None if settings[VAL] is None else read_records(settings[VAL], **columns)
    return parted(settings, read_records(settings[TRAIN], **columns), val)


def parted(settings: Settings, train: list[Record], val: list[Record] | None) -> Data:
    """Training and evaluation prompts, no more of each than asked for. val: None = a share of `train`."""
    from data_prep.convert import split

    if val is None:
        train, val = split(train, settings["launcher.data.val_share"])
    return Data(_first(train, settings["data.train_max_samples"]), _first(val, settings["data.val_max_samples"]))


def on_hub(settings: Settings) -> bool:
    """Whether reading the data needs the network, which a dry run does not use."""
    from data_prep.source import is_hub_name

    names = [settings[key].partition("#")[0] for key in (TRAIN, VAL) if settings[key] is not None]
    return any(map(is_hub_name, names))


def columns_of(settings: Settings) -> dict[str, Any]:
    """The arguments of data_prep.records.read_records that say which column is what."""
    names = ("prompt_key", "answer_key", "source_key", "data_source", "system")
    return {name: settings[f"launcher.data.{name}"] for name in names}


def check_rewards(settings: Settings, data: Data) -> None:
    """Check that each data_source has a shipped reward, where the user names none; raises DataError."""
    from data_prep.records import check_sources
    from reward_funcs import KNOWN_SOURCES

    named = [name.partition(":")[0] for name in settings[REWARDS]]
    if settings[REWARD] is None and (not named or "accuracy" in named):
        check_sources(data.train or [], KNOWN_SOURCES, name=str(settings[TRAIN]))
        check_sources(data.val, KNOWN_SOURCES, name=str(settings[VAL] or settings[TRAIN]))


def rehearse_reward(
    settings: Settings, data: Data, function: Callable[..., Any] | None = None
) -> tuple[Reward | Combined, list[str]]:
    """The reward, once it has scored a few gold answers, and what was odd about that, for the user.

    function: a reward given from Python. Raises RewardError; for programs without a sandbox that holds, too.
    """
    from reward_funcs import Sample, build_reward
    from reward_funcs.code_ready import refuse_code_without_jail
    from reward_funcs.rehearsal import short_check

    reward = build_reward(function=function, **reward_arguments(settings.config()))
    refuse_code_without_jail(reward, (record.data_source for record in (*(data.train or []), *data.val)))
    samples = [
        Sample(record.data_source, "", record.ground_truth, {"index": index, **record.extra}, prompt=record.prompt)
        for index, record in _one_of_each_source(data)
    ]
    notes = short_check(
        reward,
        samples,
        has_gold=settings["launcher.data.answer_key"] != "none",
        force=settings["launcher.force"],
        timeout=settings["launcher.reward.timeout"],
        max_errors=settings["launcher.max_reward_errors"],
    )
    return reward, [f"warning: {note}" for note in [*reward.notes, *notes]]


def refuse(engine: Engine, run: Run, *, here: bool = True) -> None:
    """Raise ConfigError with everything that this engine cannot honour. here: on this machine, not only planned."""
    refusals = engine.refusals(run, here=here)
    if engine.name != "verl":
        silent = engine.no_effect(run)
        refusals += [
            Refusal(
                f"{text} ({run.origins[key]}): only the verl engine knows this key; leave it out, or use --engine verl"
            )
            for key, text in run.passthrough.items()
            if key not in silent
        ]
    if refusals:
        fixes = [refusal.fix for refusal in refusals]
        raise ConfigError(*(refusal.text for refusal in refusals), fix=one_fix(fixes))


def make_run(resolved: Resolved, settings: Settings, **changes: Any) -> Run:
    """The run that these settings describe; its files need not be there yet."""
    folder = Path(os.path.abspath(Path(settings[OUTPUT]).expanduser()))
    run = Run(
        config=settings.config(),
        origins=settings.origins,
        output_dir=folder,
        train=folder / "data" / "train.parquet",
        val=folder / "data" / "val.parquet",
        command=resolved.command,
        algorithm=algorithm_name(settings),
        recipe=resolved.recipe,
        passthrough=settings.passthrough,
    )
    return replace(run, **changes)


def fit(resolved: Resolved, data: Data, engine: Engine) -> Settings:
    """The settings once the batch fits the data; what changed goes to the notes. Raises ConfigError."""
    settings = resolved.settings()
    if data.train is not None and engine.name == "verl":  # the other counts them with the model's own tokenizer
        prompts, notes = short_enough(settings, data.train, data.val)
        gpus = settings["trainer.n_gpus_per_node"] * settings["trainer.nnodes"]
        resolved.notes += [*notes, *fit_batch(resolved.draft, prompts, gpus=gpus)]
    elif data.prompts is not None:
        resolved.notes += fit_batch(resolved.draft, data.prompts)
    return resolved.settings()


def train(
    resolved: Resolved,
    settings: Settings,
    engine: Engine,
    data: Data,
    reward: Reward | Combined,
    *,
    say: Callable[[str], None],
    records: Iterable[Mapping[str, Any]] | None = None,
    function: Callable[..., Any] | None = None,
) -> Result:
    """Hold the output folder, write the data there and train. say: takes one line for the user.

    records: prompts that are made during training; then `data` has none. function: a reward given from Python.

    Raises ConfigError, DataError, RewardError, EngineError, or Interrupted with a checkpoint written.
    """
    from data_prep.convert import convert
    from grpo.run_dir import open_run

    run = make_run(resolved, settings, records=records, reward=function)
    with open_run(
        run.output_dir,
        config=run.config,
        origins=run.origins,
        fingerprint=fingerprint(settings, engine, data, reward),
        command=run.command,
        resume_mode=settings[RESUME],
        needed_bytes=_needed_bytes(settings),
    ) as opened:
        for note in opened.notes:
            say(note)
        if data.train is not None:
            convert(data.train, run.output_dir / "data" / "train.parquet")
        convert(data.val, run.val, split="val")
        train_file = None if data.train is None else run.train
        try:
            return engine.train(replace(run, train=train_file, resume=opened.resume))
        except EngineError as problem:
            if opened.aside is None or (run.output_dir / "metrics.jsonl").exists():
                raise
            raise EngineError(
                f"{problem}; nothing was trained, and the earlier run is whole in {opened.aside}"
            ) from problem


def fingerprint(settings: Settings, engine: Engine, data: Data, reward: Reward | Combined) -> dict[str, str]:
    """What the configuration does not tell: the engine, and the contents of what it names. Reads the files."""
    prints = {"launcher.engine": engine.name, REWARD: reward.sha256 or f"function {reward.name}"}
    for key in (TRAIN, VAL, SFT_FILES, "launcher.data.system"):
        name, mark, rows = str(settings[key] or "").rpartition("#")
        path, rows = (Path(name), rows) if mark else (Path(rows), "")
        if settings[key] is not None and len(str(path)) < LONGEST_PATH and path.is_file():
            prints[key] = hashlib.sha256(path.read_bytes()).hexdigest() + mark + rows
    if settings[TRAIN] == FROM_PYTHON and data.train is not None:
        prints[TRAIN] = hashlib.sha256(repr(data).encode()).hexdigest()
    return prints | {f"override {key}": text for key, text in settings.passthrough.items()}


def leave_scripts(resolved: Resolved, settings: Settings, engine: Engine, data: Data | None) -> list[Path]:
    """Write what a dry run leaves: the engine's scripts, and the data that they name. Returns the scripts.

    Nothing is written where there are no scripts, or into the folder of a run.
    """
    run = make_run(resolved, settings)
    scripts = engine.scripts(run)
    if not scripts or (run.output_dir / "run.json").exists():
        return []
    if data is not None and data.train is not None:
        from data_prep.convert import convert

        assert run.train is not None
        convert(data.train, run.train)
        convert(data.val, run.val, split="val")
    written = []
    for name, text in scripts.items():
        path = run.output_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
        path.chmod(0o755)
        written.append(path)
    return written


def _first(records: list[Record], most: int) -> list[Record]:
    return records if most == -1 else records[:most]


def _one_of_each_source(data: Data) -> list[tuple[int, Record]]:
    """A few records to rehearse the reward with, of every data_source where there is room; by row in the file."""
    records = [*(data.train or [])[:10_000], *data.val]
    firsts = {record.data_source: record for record in reversed(records)}
    rows = {id(record): (record.index if record.number else i, record) for i, record in enumerate(records)}
    return list({id(record): rows[id(record)] for record in [*firsts.values(), *records]}.values())[:REHEARSED]


def _needed_bytes(settings: Settings) -> int:
    """What the run will write at most, as far as it can be known: checkpoints of a model that is in a local folder."""
    folder = Path(str(settings[MODEL])).expanduser()
    if not folder.is_dir():
        return LITTLE
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    # A checkpoint holds the weights and AdamW's two moments; one more than is kept is written before one is deleted.
    return LITTLE + 3 * weights * (settings["trainer.max_actor_ckpt_to_keep"] + 1) + weights
