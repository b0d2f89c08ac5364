"""Training from Python: `grpo.api.train(records, reward_func=score)`, the same run as the command line's.

`data` may also be made while training runs (a generator). Nothing is decided here; launch.py does what ./train.sh does.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo import flags, launch, plan, repair
from grpo.config import ConfigError, Settings
from grpo.defaults import TRAIN, VAL
from grpo.engine import Result
from grpo.launch import Data
from grpo.resolve import OUTPUT, checked, resolve

if TYPE_CHECKING:
    from data_prep.record import Columns
    from data_prep.records import Record

KEPT_FROM_A_STREAM = 32  # first prompts of a stream, for evaluation when none are given

Rows = Iterable[Mapping[str, Any]]


def train(
    data: str | Path | Rows,
    *,
    val_data: str | Path | Rows | None = None,
    reward_func: str | Path | Callable[..., Any] | None = None,
    overrides: Sequence[str] = (),
    output_dir: str | Path = "outputs",
    say: Callable[[str], None] = print,
) -> Result:
    """Train and return what was left behind.

    data:        a file, a list of {"prompt", "ground_truth", "data_source"}, or any iterable of them: without a known
                 end it is drawn from while training runs, and `--max_steps` must say when to stop
    val_data:    prompts to evaluate on; without them a share of `data` is kept apart (of a stream, the first few)
    reward_func: FILE, FILE:NAME or a function (data_source, solution_str, ground_truth, extra_info) -> score
    overrides:   the words of a command line: ["--rollout_n", "8", "actor_rollout_ref.actor.clip_ratio=0.3"]
    Raises ConfigError, DataError, RewardError, EngineError; Interrupted (a KeyboardInterrupt) once it has saved.
    """
    function = reward_func if callable(reward_func) else None
    words = [*overrides] if reward_func is None or function else ["--reward_func", str(reward_func), *overrides]
    preset = {TRAIN: _named(data), OUTPUT: str(output_dir)} | ({VAL: _named(val_data)} if val_data is not None else {})
    resolved = resolve(flags.parse(words), os.environ, preset=preset)
    own = function is not None
    settings = repair.repaired(resolved, lambda: checked(resolved, own_reward=own))
    engine, why = launch.choose_engine(settings, in_python=own or not isinstance(data, (str, Path)))
    launch.suit(resolved, engine)
    settings = repair.accepted(resolved, engine, own_reward=own)
    prompts, stream = _prompts(settings, data, val_data)
    if function is None:
        launch.check_rewards(settings, prompts)
    reward, odd = launch.rehearse_reward(settings, prompts, function)
    settings = repair.fitted(resolved, prompts, engine, own_reward=own, say=say)
    unused = plan.unused_note(settings, engine.name, engine.no_effect(launch.make_run(resolved, settings)))
    for note in [*resolved.notes, *odd, why, *unused]:
        say(note)
    return launch.train(resolved, settings, engine, prompts, reward, say=say, records=stream, function=function)


def _named(data: str | Path | Rows) -> str:
    return str(data) if isinstance(data, (str, Path)) else launch.FROM_PYTHON


def _prompts(
    settings: Settings, data: str | Path | Rows, val_data: str | Path | Rows | None
) -> tuple[Data, Rows | None]:
    """The prompts in memory, and the stream of those that are not made yet."""
    val = None if val_data is None else _records(settings, val_data, "val_data")
    if isinstance(data, (str, Path, Sequence)):
        if val is None and settings[VAL] is not None:  # named among the overrides
            val = _records(settings, settings[VAL], "val_data")
        return launch.parted(settings, _records(settings, data, "data"), val), None
    if settings["trainer.total_training_steps"] is None:
        raise ConfigError("data made during training has no end that is known: say when to stop, with --max_steps")
    stream = iter(data)
    if val is None:
        val = _records(settings, list(itertools.islice(stream, KEPT_FROM_A_STREAM)), "data")
    return Data(None, val), _checked_rows(settings, stream)


def _records(settings: Settings, data: str | Path | Rows, name: str) -> list[Record]:
    from data_prep.records import from_rows, read_records

    if isinstance(data, (str, Path)):
        return read_records(data, **launch.columns_of(settings))
    return list(from_rows(data, name=name, columns=_columns(settings)))


def _checked_rows(settings: Settings, stream: Rows) -> Iterator[dict[str, Any]]:
    """The stream's rows as data_prep.convert.load_rows gives a file's; raises DataError at the first bad one."""
    from data_prep.records import from_rows

    for index, row in enumerate(stream):
        (record,) = from_rows([row], name=f"data, record {index + 1}", columns=_columns(settings))
        known = {"prompt": record.prompt, "data_source": record.data_source, "ground_truth": record.ground_truth}
        yield known | {"extra_info": {"index": index, "split": "train", **record.extra}}


def _columns(settings: Settings) -> Columns:
    from data_prep.record import NO_ANSWER, Columns

    names = launch.columns_of(settings)
    answer = None if names["answer_key"] == NO_ANSWER else names["answer_key"]
    return Columns(names["prompt_key"], answer, names["source_key"], names["data_source"], names["system"])
