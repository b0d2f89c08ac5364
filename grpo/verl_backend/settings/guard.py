"""Every override, ours and the user's, made to fit the verl that is going to read it; what cannot fit is refused.

Decides by verl's own YAML, without importing verl: whether a key is there, under which of its names, with a `+` or not,
and whether the value is of the kind of the default. Whether values go together is preflight.py's question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo.engine import EngineError
from grpo.hydra_text import cut, hydra_value, read_override
from grpo.verl_backend.settings import keys, renamed
from grpo.verl_backend.settings.keys import MANDATORY, VERL_VERSION

# Whole-number defaults of keys that take any number.
FRACTIONS = (
    *("actor_rollout_ref.actor.entropy_coeff", "actor_rollout_ref.rollout.top_p"),
    *("actor_rollout_ref.rollout.val_kwargs.temperature", "actor_rollout_ref.rollout.over_sample_rate"),
    *("reward.reward_model.rollout.top_p", "trainer.esi_redundant_time"),
)
# Left out, and said, for a verl that does not have them yet: they move no weights, or only by another random order.
# Processes on this machine get Ray's variables from the launcher's own, and our reward manager only writes things down.
HARMLESS = (
    *("data.seed", "data.dataloader_num_workers", "data.train_max_samples", "data.val_max_samples"),
    *("actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref.actor.calculate_entropy"),
    *("actor_rollout_ref.actor.fsdp_config.seed", "actor_rollout_ref.ref.fsdp_config.seed"),
    *("actor_rollout_ref.rollout.seed", "reward.num_workers", "trainer.rollout_data_dir"),
    *("reward.reward_manager.source", "reward.reward_manager.module.path"),
    *("ray_kwargs.ray_init.include_dashboard", "ray_kwargs.ray_init.address"),
)
_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars."
# verl hands all of `ray_kwargs.ray_init` to ray.init, which takes more than verl's YAML lists.
RAY_INIT = tuple(
    f"ray_kwargs.ray_init.{name}"
    for name in (
        "address",
        "num_gpus",
        "resources",
        "object_store_memory",
        "include_dashboard",
        "namespace",
        "_temp_dir",
    )
)
_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "text", list: "a list [a,b]"}


class _Misfit(Exception):
    """What is wrong with one override, in one line."""


@dataclass(frozen=True)
class _Verl:
    """The verl that is to read the overrides. theirs: key -> default."""

    version: str
    theirs: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether `key` is one of its settings or a group of them."""
        return key in self.theirs or any(name.startswith(f"{key}.") for name in self.theirs)

    def is_open(self, key: str) -> bool:
        """Whether `key` lies in a mapping that verl leaves to the user."""
        parts = key.split(".")
        return key in RAY_INIT or any(
            self.theirs.get(".".join(parts[:length])) == {} for length in range(1, len(parts))
        )


@dataclass(frozen=True)
class _Word:
    """One override on its way. text: of its value, None for `~key`; notes: what was changed."""

    sign: str
    key: str
    text: str | None
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return f"{self.sign}{self.key}" + ("" if self.text is None else f"={self.text}")

    def but(self, note: str, **changes: Any) -> _Word:
        """The same with `changes`, and a note about them."""
        return replace(self, notes=(*self.notes, note), **changes)


def misfits(words: list[str], folder: Path | None = None) -> list[str]:
    """What is wrong with the overrides, one line each; what only Hydra itself would find is left to `guarded`.

    Counts over all GPUs are shares.py's, which knows what they are on each.
    """
    words = [word for word in words if cut(word)[1] not in renamed.PER_GPU]
    return _all_fitted(words, _Verl(keys.version_of(folder), keys.keys_of(folder)))[2]


def guarded(words: list[str], folder: Path | None = None) -> tuple[list[str], list[str]]:
    """(the overrides as the targeted verl takes them, what was changed). Raises EngineError, one line per misfit.

    folder: verl's trainer/config; None = the shipped list of keys of the supported verl.
    """
    fitted, notes, problems = _all_fitted(words, _Verl(keys.version_of(folder), keys.keys_of(folder)))
    if problems:
        raise EngineError("\n".join(problems))
    if folder is not None:
        _compose(folder, fitted)
    return fitted, notes


def _all_fitted(words: list[str], verl: _Verl) -> tuple[list[str], list[str], list[str]]:
    """The overrides that fit, what was changed in them, and what is wrong with the others."""
    fitted, notes, problems = [], [], []
    for word in words:
        if word.startswith(("hydra.", "hydra/")):  # Hydra's own settings
            fitted.append(word)
            continue
        try:
            for fit in _fitted(_Word(*cut(word)), verl):
                fitted += [str(fit)] if fit.key else []
                notes += fit.notes
        except _Misfit as misfit:
            problems.append(f"{word}: {misfit}")
    said = {cut(word)[1] for word in fitted}
    for key in renamed.MOVED:
        before, now = verl.theirs.get(key), keys.verl_keys()[key]
        if key in verl.theirs and key not in said and before != now:
            fitted.append(f"{key}={hydra_value(now)}")
            notes.append(f"{key}={now} is said, since {before} is the default of verl {verl.version}")
    return fitted, list(dict.fromkeys(notes)), problems


def _fitted(word: _Word, verl: _Verl) -> list[_Word]:
    """What to write for one override: one, two where a version reads two names, or one without a key for none."""
    word = _named(word, verl)
    if todo := renamed.gone(word.key, verl.version):
        raise _Misfit(todo)
    if (per_gpu := renamed.PER_GPU.get(word.key)) and word.text not in (None, "null"):
        raise _Misfit(f"verl no longer counts over all GPUs; write {per_gpu}, this divided by the number of GPUs")
    came = renamed.came_with(word.key)
    if not verl.has(word.key) and (word.key in keys.verl_keys() or (came and keys.older(verl.version, came))):
        return [_newer(word, verl, f"; it came with {came}" if came else "")]
    word = _typed(_signed(word, verl), verl)
    since, until = renamed.BOTH.get(word.key, ("", ""))
    if since and keys.older(verl.version, until) and not keys.older(verl.version, since):
        old = renamed.names_of(word.key)[1]
        return [word, replace(word, key=old, notes=())] if old in verl.theirs else [word]
    return [word]


def _named(word: _Word, verl: _Verl) -> _Word:
    """Under the newest of its names that this verl has."""
    names = renamed.names_of(word.key)
    here = next((name for name in names if verl.has(name)), None)
    if here is None and names and names[0] not in keys.verl_keys():  # in a mapping that is the user's
        here = next((name for name in names if verl.has(name.partition(".")[0])), None)
    if here is None or here == word.key:
        return word
    sign = word.sign if verl.has(here) or word.sign else "+"
    return word.but(f"{word.key} is {here} in verl {verl.version}", key=here, sign=sign)


def _newer(word: _Word, verl: _Verl, since: str) -> _Word:
    """Nothing, for a key that this verl does not have yet, where nothing is lost by that."""
    default = keys.follow(keys.verl_keys(), word.key)
    override, _ = read_override(str(word))
    harmless = word.sign == "~" or word.key in HARMLESS or word.key.startswith(_VARIABLES)
    if harmless or (override and override.value() in (default, None)):
        return word.but(f"{word.key} is left out: verl {verl.version} does not have it{since}", key="")
    raise _Misfit(f"verl {verl.version} does not have this{since}; leave it out, or install verl {VERL_VERSION}")


def _signed(word: _Word, verl: _Verl) -> _Word:
    """With a `+` exactly where Hydra asks for one."""
    known = verl.has(word.key)
    if not known and not verl.is_open(word.key):
        group = verl.has(word.key.partition(".")[0]) and "." in word.key
        meant = keys.sibling(word.key, verl.theirs, cutoff=0.8) if word.sign.startswith("+") else None
        if not word.sign.startswith("+") or not group or meant:
            near = keys.nearest_key(word.key, verl.theirs)
            hint = f"did you mean {near}?" if near else "a new key is written +KEY=VALUE"
            raise _Misfit(f"verl {verl.version} has no such key; {hint}")
        if "kwargs" not in word.key:  # those are handed on as they are
            return word.but(
                f"{word.key} is in no YAML of verl {verl.version}: it counts only where verl's code asks for it"
            )
    if known and word.sign == "+":
        return word.but(f"{word.key}: without +, since verl has the key", sign="")
    if not known and not word.sign:
        return word.but(f"+ before {word.key}: new to verl, which takes it there", sign="+")
    return word


def _typed(word: _Word, verl: _Verl) -> _Word:
    """With a value of the kind of the default, quoted where Hydra would read it as something else."""
    if word.sign == "~" or word.text is None:
        return word
    override, trouble = read_override(str(word))
    default = keys.follow(verl.theirs, word.key)
    free = default is None or default in ({}, MANDATORY) or (isinstance(default, str) and "${" in default)
    text = isinstance(default, str) or free
    if override is None or override.is_sweep_override():
        if not text:
            raise _Misfit(trouble or f"one value only; a list is written {word.key}=[a,b]")
        return replace(word, text=hydra_value(word.text))
    value = override.value()
    since, values = renamed.VALUES.get(word.key, ("0", {}))
    if isinstance(value, str) and value in values and not keys.older(verl.version, since):
        return word.but(f"{word.key}={value} is {values[value]} since verl {since}", text=values[value])
    if free or value is None or (isinstance(value, str) and "${" in value):
        return word
    return _of_kind(word, value, default)


def _of_kind(word: _Word, value: Any, default: Any) -> _Word:
    kind = type(default)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return word
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return replace(word, text=hydra_value(word.text))  # 007 is a name where a name is wanted
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (kind is str and isinstance(value, list)) or (number and (kind is float or word.key in FRACTIONS)):
        return word
    if kind is dict or kind not in _NAMES:
        return word
    whole = f"; write {int(value)}" if number and kind is int and value == int(value) else ""
    shown = f"[{word.text}]" if kind is list and not isinstance(value, dict) else ""
    hint = whole or (f"; write {word.key}={shown}" if shown else f"; verl's default is {default}")
    raise _Misfit(f"verl wants {_NAMES[kind]} here{hint}")


def _compose(folder: Path, words: list[str]) -> None:
    """Have Hydra put the overrides over verl's YAML; raises EngineError with what it says."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        keys.compose(folder, [word for word in words if not word.startswith(("hydra.", "hydra/"))])
    except (HydraException, OmegaConfBaseException) as problem:
        first, *rest = str(problem).splitlines()
        raise EngineError(
            f"verl's configuration does not take these overrides: {' '.join([first, *rest[:1]])}"
        ) from None
