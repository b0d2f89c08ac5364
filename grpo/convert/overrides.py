"""verl's own command: its overrides as ours. Names of older versions are taken as today's; what verl dropped is said.

A key that only verl knows goes on to it. What is not the same here stands in verl.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from grpo.convert.conversion import Ask, Outcome
from grpo.convert.shell import OUTSIDE
from grpo.convert.tables import FOLDER, NOTHING, Option, Text, as_text
from grpo.flags import by_spelling
from grpo.hydra_text import cut, read_override
from grpo.rules import DYNAMIC, GROUP_METHODS, LOGGERS, MICRO
from grpo.unlisted import refused_by_verl
from grpo.values import defaults, kind
from grpo.verl_backend.settings.keys import follow, verl_keys
from grpo.verl_backend.settings.renamed import PER_GPU, new_name

GPUS, NODES, ENGINE = "trainer.n_gpus_per_node", "trainer.nnodes", "launcher.engine"
FILTER, TRUNCATION = "data.filter_overlong_prompts", "data.truncation"
ESTIMATORS = (*GROUP_METHODS, "reinforce_plus_plus", "gpg")


def convert_overrides(ask: Ask) -> list[Outcome]:
    """One outcome for each override, and for the defaults of verl that are not ours."""
    read = {word: _read(word, value) for word, value in ask.file.options.items()}
    values = {key: value for key, value in read.values() if key is not None}
    gpus = _number(values.get(GPUS, verl_keys()[GPUS])) * _number(values.get(NODES, 1))
    outcomes = [Outcome((), "set", {ENGINE: "verl"}, Text("gpus", {"gpus": gpus}))]
    for word, (key, value) in read.items():
        outcome = _one(ask, word, key, value, gpus)
        outcomes += [outcome] if outcome else []
    outcomes += _reward_model(ask, read)
    if values.get(DYNAMIC) is True:  # then verl reads no counts
        counts = (MICRO, *PER_GPU, *PER_GPU.values())
        words = tuple(word for word, (key, _) in read.items() if key in counts)
        outcomes = [each for each in outcomes if not set(each.options) & set(words)]
        outcomes += [Outcome(words, "always", why=Text("by_tokens"))] if words else []
    said = {new for key in values if (new := (new_name(key) or (key,))[0])}
    outcomes += [Outcome((), "set", {key: _default(key)}) for key in _defaults_to_say() if key not in said]
    if values.get(FILTER, False) is not True:
        # Whatever data.truncation says: it is stored, and the rollout cuts on the left.
        words = tuple(word for word, (key, _) in read.items() if key == TRUNCATION)
        outcomes = [each for each in outcomes if not words or each.options != words]
        outcomes.append(Outcome(words, "set", {TRUNCATION: "left"}, Text("verl_cuts")))
    return outcomes


def _read(word: str, value: Any) -> tuple[str | None, Any]:
    """(today's key, value) of one override; the key is None for Hydra's own words."""
    if word.startswith(("-", "hydra.", "hydra/")):
        return None, value
    sign, name, _ = cut(word)
    if value is None or not isinstance(value, str) or OUTSIDE in value:
        return name, value
    if kind_of(name) in ("str", None):
        # Text as typed, unless Hydra reads a list out of it; of a strange key, whatever Hydra reads.
        override, _ = read_override(f"{sign}{name}={value}")
        found = override.value() if override is not None and not override.is_sweep_override() else value
        return name, found if isinstance(found, list) or kind_of(name) is None else _unquoted(value)
    override, _ = read_override(f"{name}={value}")
    return name, override.value() if override is not None and not override.is_sweep_override() else value


def kind_of(name: str) -> str | None:
    """The kind of a key of ours, under any of its names; None for others."""
    key = (new_name(name) or (name,))[0]
    return kind(key) if key in defaults() else None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _one(ask: Ask, word: str, key: str | None, value: Any, gpus: int) -> Outcome | None:
    if key is None:
        return Outcome((word,), "none", why=Text("hydra"))
    today = (new_name(key) or (key,))[0]
    option = ask.tool.options.get(today) or ask.tool.options.get(today.partition(".")[0])
    if today == "algorithm.adv_estimator" and value in ESTIMATORS:
        return Outcome((word,), "set", {today: value})
    if option is not None and option.flag is not None:
        return None  # of the reward model, which is one answer
    if option is not None:
        return _by_table(word, value, option)
    if key in PER_GPU and value is not None:
        each = max(1, _number(value) // gpus)
        return Outcome((word,), "set", {PER_GPU[key]: each}, Text("per_gpu", {"count": value, "gpus": gpus}))
    if today == "trainer.logger":
        return _loggers(word, value)
    if today in defaults() and value is not None:
        if isinstance(value, list) and kind(today) == "str" and today.startswith("data."):
            why = Text("several_data", {"rest": " ".join(map(str, value[1:]))}) if len(value) > 1 else None
            return Outcome((word,), "set", {today: value[0]}, why)
        return Outcome((word,), "set", {today: value})
    added = word.startswith("+")
    if reason := refused_by_verl(today, added=added):
        return Outcome((word,), "none", why=Text("verl_says", {"why": f"{today} {reason}"}))
    if word.startswith("~") or value is None:
        return Outcome((word,), "none", why=Text("verl_says", {"why": "give it on the command line as it is"}))
    return Outcome((word,), "set", {today: value})


def _by_table(word: str, value: Any, option: Option) -> Outcome:
    why = Text(option.why) if option.why else None
    if value in (*NOTHING, *option.neutral):
        return Outcome((word,), "always", why=Text("nothing_asked"))
    if option.always or option.none:
        return Outcome((word,), "always" if option.always else "none", why=why)
    assert option.key is not None
    return Outcome((word,), "set", {option.key: value}, why)


def _reward_model(ask: Ask, read: Mapping[str, tuple[str | None, Any]]) -> Iterator[Outcome]:
    """A reward model is one of our rewards by name; enable and model_path are one answer."""
    named = {today: (word, value) for word, (key, value) in read.items() if (today := _today(key))}
    enable, path = (named.get(f"reward.reward_model.{name}") for name in ("enable", "model_path"))
    words = tuple(each[0] for each in (enable, path) if each)
    if not words:
        return
    if enable and as_text(enable[1]) == "true" and path and (flag := by_spelling()["reward"].key):
        yield Outcome(words, "set", {flag: [f"reward_model:{path[1]}"]})
    else:
        yield Outcome(words, "always", why=Text("nothing_asked"))


def _today(key: str | None) -> str | None:
    return None if key is None else (new_name(key) or (key,))[0]


def _loggers(word: str, value: Any) -> Outcome:
    names = value if isinstance(value, list) else [value]
    known = list(dict.fromkeys(["console", "file", *(name for name in names if name in LOGGERS)]))
    strange = ", ".join(str(name) for name in names if name not in LOGGERS)
    why = Text("other_services", {"names": strange}) if strange else None
    return Outcome((word,), "set", {"trainer.logger": known}, why)


def _defaults_to_say() -> Iterator[str]:
    return iter(yaml.safe_load((FOLDER / "verl.yaml").read_text(encoding="utf-8"))["defaults"])


def _default(key: str) -> Any:
    return follow(verl_keys(), key)


def _number(value: Any) -> int:
    return int(value) if str(value).isdecimal() and int(value) > 0 else 1
