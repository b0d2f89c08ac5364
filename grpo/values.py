"""What a key may hold: its kind, taken from its default in grpo.yaml, and the one conversion into that kind.

Text, YAML values and Hydra values all pass through `convert`, which never rounds, cuts or guesses: `2.5` is no whole
number, `maybe` is no boolean, and a number is not silently made a text. Which values make sense is rules.py's question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from grpo.flags import REPO

KEYS_FILE = REPO / "configs" / "grpo.yaml"

# Keys whose default, null, does not say what they hold; every other null key holds text.
NULL_KINDS = {
    "actor_rollout_ref.model.enable_gradient_checkpointing": "bool",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "int",
    "actor_rollout_ref.actor.loss_scale_factor": "float",
    "trainer.total_training_steps": "int",
    "algorithm.gdpo_reward_keys": "list",
    "algorithm.gdpo_reward_weights": "list",
    "launcher.clip_range_score": "float",
    "reward.reward_kwargs.overlong_buffer_cfg.len": "int",
    "launcher.normalize_advantage": "bool",
    "launcher.qlora": "int",
}
# What a list holds whose default does not say; every other such list holds text.
ITEM_KINDS = {"algorithm.gdpo_reward_weights": "float", "launcher.reward.weights": "float"}
# verl takes one name or a list here.
TEXT_OR_LIST = ("actor_rollout_ref.model.target_modules",)
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list [a,b]"}


class WrongKind(ValueError):
    """A value that its key cannot hold; the text completes "KEY=VALUE (origin): ..."."""


@cache
def defaults() -> Mapping[str, Any]:
    """Dotted key -> default as written, interpolations unresolved."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return dict(flatten(yaml.load(KEYS_FILE.read_text(encoding="utf-8"), Loader=loader)))


@cache
def groups() -> frozenset[str]:
    """Every dotted name that stands for a group of keys: `data`, `actor_rollout_ref.actor`, ..."""
    return frozenset(key[: match.start()] for key in defaults() for match in re.finditer(r"\.", key))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf; an empty mapping is a leaf."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def kind(key: str) -> str:
    """int, float, bool, str or list; a default that follows another key has that key's kind."""
    default = defaults()[key]
    if default is None:
        return NULL_KINDS.get(key, "str")
    whole = re.fullmatch(r"\$\{([\w.]+)\}", default) if isinstance(default, str) else None
    return kind(absolute(whole[1], key)) if whole else type(default).__name__


def nullable(key: str) -> bool:
    """Whether null is a value of this key."""
    return defaults()[key] is None


def references(value: Any) -> list[str]:
    """The keys that a text such as "${data.train_batch_size}" points at, as written."""
    return re.findall(r"(?<!\\)(?:\\\\)*\$\{([\w.]+)\}", value) if isinstance(value, str) else []


def is_reference(value: Any) -> bool:
    """Whether a value is settled only when the whole configuration is known."""
    return isinstance(value, str) and re.search(r"(?<!\\)(?:\\\\)*\$\{", value) is not None


def literal(text: str) -> str:
    """`text` as OmegaConf must be given it for a "${" to stay two characters: n backslashes before it become 2n + 1."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def absolute(reference: str, key: str) -> str:
    """`.clip_ratio`, as seen from `key`, as a full key."""
    dots = len(reference) - len(reference.lstrip("."))
    return reference if not dots else ".".join([*key.split(".")[:-dots], reference[dots:]])


def convert(key: str, value: Any) -> Any:
    """`value` as the kind of `key`; raises WrongKind. References are left for later."""
    if is_reference(value):
        return value
    wanted = kind(key)
    if value is None or (wanted != "str" and isinstance(value, str) and value.strip().lower() == "null"):
        if nullable(key):
            return None
        raise WrongKind(f"needs {NAMES[wanted]}; its default is {shown(defaults()[key])}")
    if wanted == "list" or (key in TEXT_OR_LIST and (isinstance(value, list) or _names(value))):
        return _list(key, value)
    return _CONVERT[wanted](value)


def _names(value: Any) -> bool:
    """Whether a text is several names: `q_proj,v_proj`, `[q_proj]`."""
    return isinstance(value, str) and re.fullmatch(r"\[[\w., ]+\]|[\w.]+(, ?[\w.]+)+", value.strip()) is not None


def shown(value: Any) -> str:
    """A value as a person writes it: true, null, 1e-6, [a,b]."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return re.sub(r"e([+-])0?", lambda match: "e" + match[1].replace("+", ""), repr(value))
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(shown, value)) + "]"
    return str(value)


def _int(value: Any) -> int:
    number = _number(value, "int")
    if number != int(number):
        raise WrongKind(f"is not a whole number; {math.floor(number)} and {math.ceil(number)} are the nearest")
    return int(number)


def _float(value: Any) -> float:
    return float(_number(value, "float"))


def _number(value: Any, wanted: str) -> int | float:
    """A finite number out of a number or its text; whole numbers keep all their digits."""
    if isinstance(value, str):
        text = value.strip()
        for read in (int, float):
            try:
                value = read(text)
                break
            except ValueError:
                continue
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise WrongKind(f"is not {NAMES[wanted]}")
    return value


def _bool(value: Any) -> bool:
    word = shown(value).strip().lower()
    if isinstance(value, (bool, int, str)) and word in TRUE + FALSE:
        return word in TRUE
    raise WrongKind("is not true or false (yes, no, on, off, 1 and 0 are taken too)")


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    # YAML has already read 007 as 7 and `no` as false: what was written is lost.
    raise WrongKind(f"is not text; write it in quotes: '{shown(value)}'")


def _list(key: str, value: Any) -> list[Any]:
    """A list, or words parted by commas; `none` is the empty list."""
    if isinstance(value, str):
        text = value.strip().removeprefix("[").removesuffix("]")
        value = [] if text.lower() == "none" else [word.strip() for word in text.split(",") if word.strip()]
    if not isinstance(value, (list, tuple)):
        raise WrongKind(f"is not {NAMES['list']}")
    default = defaults()[key]
    item = type(default[0]).__name__ if isinstance(default, list) and default else ITEM_KINDS.get(key, "str")
    return [_CONVERT[item](each) for each in value]


_CONVERT = {"int": _int, "float": _float, "bool": _bool, "str": _str}
