"""From the options of a run file to settings of ours: every option has exactly one outcome.

The tables say what an option is here; computed.py works out what takes several of them; overrides.py is for verl's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from grpo.config import ConfigError
from grpo.convert.reading import RunFile
from grpo.convert.shell import OUTSIDE
from grpo.convert.tables import NOTHING, Option, Text, Tool, as_text, tool
from grpo.flags import by_spelling, nearest
from grpo.values import WrongKind, convert, defaults

# set: it is these settings. always: it is so here without a setting. none: no counterpart. unread: its value could not
# be read or used.
How = Literal["set", "always", "none", "unread"]


@dataclass(frozen=True)
class Outcome:
    """What became of `options` (those of the file; () = it follows from the tool's defaults or from its GPUs)."""

    options: tuple[str, ...]
    how: How
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: Text | None = None


@dataclass(frozen=True)
class Answer:
    """What a rule works out. options: None = all of the rule's; the defaults are those of Outcome."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    why: Text | None = None
    how: How = "set"
    options: tuple[str, ...] | None = None


@dataclass
class Ask:
    """What a rule may ask for: the options, the tool's defaults, the machine, and the settings so far."""

    file: RunFile
    tool: Tool
    gpus: int  # that train, in all
    counts: Literal["prompts", "completions"]
    settings: dict[str, Any]

    def given(self, name: str) -> bool:
        """Whether the file sets this option, under any of its spellings."""
        return any(self.tool.options.get(option) is self.tool.options[name] for option in self.file.options)

    def value(self, name: str) -> Any:
        """The option's value in the file, else the tool's default."""
        if name not in self.tool.options:
            return None
        for option, value in self.file.options.items():
            if self.tool.options.get(option) is self.tool.options[name]:
                return value
        return self.tool.options[name].default

    def number(self, name: str) -> float | None:
        """The value as a number; None where there is none. Raises ConfigError for what is no number."""
        value = self.value(name)
        if value is None or as_text(value) in ("", "null", "none"):
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{self.file.name}: {name}={value} is not a number") from None

    def whole(self, name: str) -> int | None:
        """The value as a whole number of at least 1; None where there is none. Raises ConfigError."""
        number = self.number(name)
        if number is not None and (number != int(number) or number < 1):
            raise ConfigError(f"{self.file.name}: {name}={self.value(name)} is not a whole number of at least 1")
        return None if number is None else int(number)

    def truth(self, name: str) -> bool:
        """The value as yes or no; nothing is no."""
        return as_text(self.value(name)) in ("true", "1", "yes", "on")

    def words(self, name: str) -> list[str]:
        """The value as words: a list, or a text with commas or spaces."""
        value = self.value(name)
        if value is None:
            return []
        return [str(word) for word in value] if isinstance(value, list) else str(value).replace(",", " ").split()


Rule = Callable[[Ask], Iterator[Answer]]


@dataclass
class Conversion:
    """A run file, converted. settings: key -> value, ours or verl's alone; defaults_said: keys that the tool's own
    defaults decide, since ours are others."""

    file: RunFile
    tool: Tool
    outcomes: list[Outcome]
    settings: dict[str, Any]
    defaults_said: set[str]


def convert_file(
    file: RunFile, *, gpus: int | None = None, counts: Literal["prompts", "completions"] = "completions"
) -> Conversion:
    """The settings that do what the file does. gpus: in all, over what the file says. Raises ConfigError."""
    from grpo.convert.computed import RULES
    from grpo.convert.counting import machine
    from grpo.convert.overrides import convert_overrides

    which = tool(file.tool)
    training = gpus or (file.gpus or file.cards or 1) * file.nodes
    ask = Ask(file, which, training, counts, {})
    done = Conversion(file, which, [], ask.settings, set())
    if file.tool == "verl":
        _add(done, convert_overrides(ask))
    else:
        _add(done, list(machine(ask, said=gpus is not None)))
        _add(done, _plain(ask, done))
        for name in dict.fromkeys(option.rule for option in which.all() if option.rule):
            _add(done, _ruled(ask, name, RULES[name]))
    for name, piece in file.unread.items():
        _add(done, [Outcome((name,), "unread", why=Text("not_run", {"piece": piece}))])
    _leave_out_what_the_engine_cannot(done)
    return done


def _add(done: Conversion, outcomes: list[Outcome]) -> None:
    """Keep the outcomes; a value that its key cannot hold makes one that could not be read."""
    for outcome in outcomes:
        settings: dict[str, Any] = {}
        try:
            for key, value in outcome.settings.items():
                settings[key] = _fit(key, value)
        except WrongKind as wrong:
            done.outcomes.append(
                Outcome(outcome.options, "unread", why=Text("wrong_kind", {"key": key, "value": value, "why": wrong}))
            )
            continue
        if outcome.options or outcome.why is not None:
            done.outcomes.append(Outcome(outcome.options, outcome.how, settings, outcome.why))
        else:
            settings = {key: value for key, value in settings.items() if key not in done.settings}
            settings = {key: value for key, value in settings.items() if defaults().get(key) != value}
            done.defaults_said |= set(settings)
        done.settings |= settings


def _fit(key: str, value: Any) -> Any:
    """The value as its key holds it; of a key that only verl has, as YAML reads it."""
    if isinstance(value, str) and OUTSIDE in value:
        return value
    if key in defaults():
        return convert(key, value)
    return yaml.safe_load(value) if isinstance(value, str) and re.fullmatch(r"[\w.+-]+", value) else value


def _plain(ask: Ask, done: Conversion) -> list[Outcome]:
    """The options that one table entry answers, and those that no table has."""
    outcomes = []
    for name, value in ask.file.options.items():
        option = ask.tool.options.get(name)
        if option is None:
            near = nearest(name, ask.tool.options, cutoff=0.8)
            why = Text("unknown_near", {"near": near}) if near else Text("unknown", {"tool": ask.tool.title})
            outcomes.append(Outcome((name,), "none", why=why))
        elif option.rule is None:
            outcomes.append(_one(name, value, option))
    given = {id(ask.tool.options[name]) for name in ask.file.options if name in ask.tool.options}
    for option in ask.tool.all():
        if option.default is not None and option.rule is None and id(option) not in given:
            outcome = _one(option.name, option.default, option)
            outcomes.append(Outcome((), "set", outcome.settings))
    return outcomes


def _one(name: str, value: Any, option: Option) -> Outcome:
    """What one option with one value is here."""
    text, why = as_text(value), Text(option.why) if option.why else None
    if text in map(as_text, option.neutral) or (option.none and value in NOTHING):
        return Outcome((name,), "always", why=Text("nothing_asked"))
    if option.none or option.always:
        return Outcome((name,), "none" if option.none else "always", why=why)
    if option.sets or option.values:
        if text not in (option.sets or option.values):
            known = ", ".join(option.sets or option.values)
            return Outcome((name,), "none", why=why or Text("value_unknown", {"value": value, "known": known}))
        settings = option.sets[text] if option.sets else {option.key or "": option.values[text]}
        how: How = "set" if settings else "always"
        return Outcome((name,), how, settings, None if settings else Text("nothing_asked"))
    key = by_spelling()[option.flag].key if option.flag else option.key
    assert key is not None, name
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return Outcome((name,), "set", {key: value}, why)


def _ruled(ask: Ask, name: str, rule: Rule) -> list[Outcome]:
    """What a rule makes of its options; nothing where the file has none of them and the tool no defaults for them."""
    mine = {id(option) for option in ask.tool.all() if option.rule == name}
    given = tuple(option for option in ask.file.options if id(ask.tool.options.get(option)) in mine)
    defaulted = any(option.default is not None for option in ask.tool.all() if option.rule == name)
    if not given and not defaulted:
        return []
    outcomes, answered = [], set()
    for answer in rule(ask):
        options = given if answer.options is None else tuple(o for o in answer.options if o in given)
        if answer.options is not None and not options and answer.how != "set":
            continue  # about an option that the file does not have
        answered |= set(options)
        why = answer.why if given else None
        outcomes.append(Outcome(options, answer.how, answer.settings, why))
    rest = tuple(option for option in given if option not in answered)
    if rest:
        outcomes.append(Outcome(rest, "always", why=Text("nothing_asked")))
    return outcomes


def _leave_out_what_the_engine_cannot(done: Conversion) -> None:
    """Settings of the other engine than the one that the file's GPUs or vLLM call for."""
    verl = done.settings.get("launcher.engine") == "verl"
    for index, outcome in enumerate(done.outcomes):
        engines = {option.engine for name in outcome.options if (option := done.tool.options.get(name))} - {None}
        wrong = ("embedded" in engines and verl) or (
            not verl and any(key not in defaults() for key in outcome.settings)
        )
        served = verl and any("reward_model:" in str(value) for value in outcome.settings.values())
        if outcome.how == "set" and (wrong or served):
            said = {"settings": " ".join(f"{key}={value}" for key, value in outcome.settings.items())}
            why = Text("serve_model" if served else "only_embedded" if verl else "only_verl", said)
            done.outcomes[index] = Outcome(outcome.options, "none", why=why)
            for key in outcome.settings:
                done.settings.pop(key, None)
