"""The output folder of one run: who may write there, whether to go on or start fresh, what is recorded about the run.

Leaves out what training writes into it (metrics, checkpoints, report) and how the records look (grpo/run_record.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo.atomic import atomic_write
from grpo.config import ConfigError
from grpo.run_record import config_yaml, flat, read_run_json, run_json

# Keys that may differ between a run and its continuation, because no weight and no metric of a step depends on them.
FREE_TO_CHANGE = frozenset(
    {
        "data.dataloader_num_workers",
        "launcher.export.dtype",
        "launcher.export.lora",
        "launcher.hang_minutes",
        "launcher.max_reward_errors",
        "launcher.output_dir",
        "launcher.ray_address",
        "reward.num_workers",
        "trainer.default_local_dir",
        "trainer.experiment_name",
        "trainer.logger",
        "trainer.max_actor_ckpt_to_keep",
        "trainer.project_name",
        "trainer.resume_mode",
        "trainer.save_freq",
        "trainer.test_freq",
        "trainer.val_before_train",
    }
)
_DIFFERENCES_SHOWN = 3
# What a lock, a torn write, a dry run for verl and its scripts leave in a folder where no run has begun.
_PLANNED = re.compile(r"\.lock|\..*\.tmp-\d+|launch(_node)?\.sh|launch\.slurm|ray_token(\.part)?|ray_node_\d+\.log")
_locks_held: set[int] = set()  # file descriptors


def _drop_locks_after_fork() -> None:
    """A forked worker shares our lock: if it outlived a killed run, the folder would stay locked."""
    for handle in _locks_held:
        os.close(handle)
    _locks_held.clear()


os.register_at_fork(after_in_child=_drop_locks_after_fork)


@dataclass(frozen=True)
class Opened:
    """A folder that this process alone may write.

    path:   absolute
    resume: go on with the unfinished run in it, from its newest good checkpoint, or from the start where there is none
    notes:  what was decided about an earlier run, one line each for the user
    aside:  where a run that was in the way has gone
    """

    path: Path
    resume: bool
    notes: tuple[str, ...]
    aside: Path | None = None


@contextlib.contextmanager
def open_run(
    output_dir: str | Path,
    *,
    config: DictConfig,
    origins: Mapping[str, str],
    fingerprint: Mapping[str, str],
    command: str,
    resume_mode: str = "auto",
    needed_bytes: int = 0,
) -> Iterator[Opened]:
    """Hold `output_dir` for this run until the block ends, with config.yaml and run.json written. Raises ConfigError.

    fingerprint:  what the configuration does not tell (hashes of files, engine, versions). An entry named like a key
                  (`data.train_files`: hash of the file and its row limit) stands for that key's value, so that the
                  same file under another path is the same run
    resume_mode:  `auto` goes on with an unfinished run of the same configuration, `disable` moves it aside
    needed_bytes: refuse when the disk has less than this free
    """
    path = Path(os.path.abspath(output_dir))
    if resume_mode not in ("auto", "disable"):
        raise ConfigError(f"trainer.resume_mode is '{resume_mode}'; use auto or disable")
    _check_space(path, needed_bytes)
    notes: list[str] = []
    aside = None
    with contextlib.ExitStack() as lock, _problems_of_the_disk(path):
        while True:
            notes.extend(lock.enter_context(_locked(path)))
            state = _state(path)
            if state == "finished" or (state == "unfinished" and resume_mode == "disable"):
                aside = _move_aside(path, state)
                notes.append(f"moved the {state} run in {path.name} aside to {aside}")
                lock.close()  # it went with the folder; look again, since another start may be first in the new one
                continue
            break
        if state == "unfinished":
            _check_same(path, config, fingerprint)
            notes.append(_where_it_goes_on(path))
        earlier = read_run_json(path / "run.json") if state == "unfinished" else None
        # run.json first: a folder with it alone is known as ours, and as not begun.
        atomic_write(path / "run.json", run_json(command, fingerprint, earlier))
        atomic_write(path / "config.yaml", config_yaml(config, origins))
        opened = Opened(path, state == "unfinished", tuple(notes), aside)
        lock_to_keep = lock.pop_all()
    with lock_to_keep:
        yield opened


def stored_config(output_dir: str | Path) -> DictConfig | None:
    """The configuration of the unfinished run in `output_dir`, for a bare `--resume`; None where there is none."""
    path = Path(os.path.abspath(output_dir))
    return _load_config(path) if _state(path) == "unfinished" else None


def checkpoint_steps(path: Path) -> list[int]:
    """The steps of the checkpoints in an output folder, oldest first; whether they are whole is not looked at."""
    names = (entry.name for entry in (path / "checkpoints").glob("global_step_*"))
    return sorted(int(name[12:]) for name in names if name[12:].isdigit())


def _state(path: Path) -> str:
    """`new` (nothing there, or nothing that could be gone on with), `finished`, `unfinished`, or `foreign`."""
    if not path.is_dir():
        return "new"
    if read_run_json(path / "run.json") is None:
        names = set(os.listdir(path))
        planned = names - ({"data"} if "launch.sh" in names else set())
        return "new" if all(_PLANNED.fullmatch(name) for name in planned) else "foreign"
    if not (path / "config.yaml").is_file():
        return "new"
    if (path / "summary.json").is_file():
        return "finished"
    begun = [path / "metrics.jsonl", path / "completions.jsonl"]
    warmed = (path / "checkpoints" / "sft").is_dir()
    return "unfinished" if warmed or checkpoint_steps(path) or any(_has_bytes(file) for file in begun) else "new"


def _has_bytes(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[list[str]]:
    """Make `path` and hold its lock; yields notes. Raises ConfigError when a live run has it or it is not ours."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; --output_dir must name a folder")
    if _state(path) == "foreign":
        raise ConfigError(
            f"{path} holds files that are not of a run ({sorted(os.listdir(path))[0]}, ...); "
            "name a new or an empty folder with --output_dir"
        )
    path.resolve().mkdir(parents=True, exist_ok=True)  # through a link whose folder was moved aside
    handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    _locks_held.add(handle)
    try:
        notes = _lock(handle, path)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield notes
    finally:
        _locks_held.discard(handle)
        os.close(handle)


def _lock(handle: int, path: Path) -> list[str]:
    """Lock the open file `.lock` of `path`; returns notes. Raises ConfigError when a live run has it."""
    notes = []
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(handle, 20, 0).decode(errors="replace").strip() or "unknown"
        raise ConfigError(
            f"{path} is in use by a run with process id {pid}; wait for it, or name another --output_dir"
        ) from None
    except OSError as problem:  # some network file systems have no locks
        notes.append(f"{path} cannot be locked ({problem.strerror}): do not start a second run in it")
    # Another start may have moved the folder aside between our opening and our locking.
    if not (path / ".lock").exists() or not os.path.samestat(os.stat(path / ".lock"), os.fstat(handle)):
        raise ConfigError(f"{path} was moved aside by another start at this moment; start again")
    return notes


def _move_aside(path: Path, state: str) -> Path:
    """Rename the folder to the next free `NAME.1`, `NAME.2`, ...; returns that."""
    real = path.resolve()  # a link keeps pointing at the same name
    if real == Path.cwd() or real in Path.cwd().parents:
        raise ConfigError(
            f"{path} holds a {state} run and is the current folder, so it cannot be moved aside; "
            "name another --output_dir"
        )
    taken = [entry.name[len(real.name) + 1 :] for entry in real.parent.glob(f"{_glob_text(real.name)}.*")]
    number = max((int(end) for end in taken if end.isdigit()), default=0) + 1
    target = real.with_name(f"{real.name}.{number}")
    os.rename(real, target)
    return target


def _glob_text(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _check_same(path: Path, config: DictConfig, fingerprint: Mapping[str, str]) -> None:
    """Raises ConfigError when the unfinished run in `path` has another configuration."""
    before = flat(_load_config(path)), (read_run_json(path / "run.json") or {}).get("fingerprint", {})
    # As it would be read back, so that only values are compared and not how they were written.
    now = OmegaConf.create(config_yaml(config, {}))
    assert isinstance(now, DictConfig)
    different = differences(*before, flat(now), fingerprint)
    if not different:
        return
    shown = "; ".join(different[:_DIFFERENCES_SHOWN])
    more = f"; and {len(different) - _DIFFERENCES_SHOWN} more" if len(different) > _DIFFERENCES_SHOWN else ""
    raise ConfigError(
        f"{path} holds an unfinished run of a different configuration: {shown}{more}. Start over with "
        "`--resume disable` (it is moved aside), name another --output_dir, or go on with its own settings by "
        "`--resume` alone"
    )


def differences(
    old: Mapping[str, Any], old_prints: Mapping[str, str], new: Mapping[str, Any], new_prints: Mapping[str, str]
) -> list[str]:
    """`KEY was A and is B` for each value and each fingerprint that can change the result."""
    free = FREE_TO_CHANGE | (old_prints.keys() & new_prints.keys())
    if new_prints.get("launcher.engine") == "embedded":  # its processes share a step; verl's checkpoints are in shards
        free |= {"trainer.n_gpus_per_node"}
    rows = []
    for before, now, skipped in ((old, new, free), (old_prints, new_prints, frozenset())):
        for key in sorted((before.keys() | now.keys()) - skipped):
            if (was := before.get(key)) != (value := now.get(key)):
                rows.append(f"{key} was {_short(was)} and is {_short(value)}")
    return rows


def _short(value: Any) -> str:
    text = "not set" if value is None else " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _load_config(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path / "config.yaml")
    except Exception as problem:  # noqa: BLE001 - YAML and OmegaConf each have a family of errors for a damaged file
        raise ConfigError(
            f"{path / 'config.yaml'} cannot be read ({_short(problem)}); `--resume disable` starts over"
        ) from None
    assert isinstance(loaded, DictConfig)
    return loaded


def _where_it_goes_on(path: Path) -> str:
    steps = checkpoint_steps(path)
    if steps:
        return f"going on with the unfinished run in {path.name}; its newest checkpoint is of step {steps[-1]}"
    return f"going on with the unfinished run in {path.name} from the start: it had no checkpoint yet"


def _check_space(path: Path, needed: int) -> None:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ConfigError(
            f"{existing} has {free / 1e9:.1f} GB free and this run needs about {needed / 1e9:.1f} GB; "
            "free some, name another --output_dir, or keep fewer checkpoints with --keep"
        )


@contextlib.contextmanager
def _problems_of_the_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        where = problem.filename or path
        raise ConfigError(f"{where}: {problem.strerror}; name a folder you may write to with --output_dir") from None
