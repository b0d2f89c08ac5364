"""What each option of another tool is here: the tables of grpo/convert/*.yaml, which docs/coming_from.md shows too.

Leaves out reading a run file (reading.py) and what has to be computed (computed.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
TOOLS = ("trl", "swift", "openrlhf", "paddle", "verl", "seq2seq")
NOTHING = (None, False, "", "none", "null", "false", [], {})  # values by which nothing is asked for


@dataclass(frozen=True)
class Text:
    """A sentence of texts.yaml with its numbers; `in_language` renders it."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def in_language(self, lang: str) -> str:
        """The sentence in "en" or "zh"."""
        return texts()[self.name][lang].format(**self.values)


@dataclass(frozen=True)
class Option:
    """One option of a tool.

    key: ours, where there is one; its value is the same, or goes through `values` (as text -> ours), or decides about
    several keys (`sets`: as text -> {key: value}). rule: what computed.py works out from several options; `to` names
    the keys that come of it. why: a sentence of texts.yaml. none: there is no counterpart. always: it is so here
    anyway. neutral: values by which nothing is asked for. default: the tool's own, where ours is another. engine: the
    only one that can do it.
    """

    name: str
    group: Mapping[str, str]
    key: str | None = None
    flag: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rule: str | None = None
    to: tuple[str, ...] = ()
    why: str | None = None
    none: bool = False
    always: bool = False
    neutral: tuple[Any, ...] = ()
    default: Any = None
    engine: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """name: as in TOOLS. title: as people call it. options: by name and by alias; own: those of its own table."""

    name: str
    title: str
    version: str
    options: Mapping[str, Option]
    own: tuple[Option, ...]
    extends: str | None = None

    def all(self) -> Iterator[Option]:
        """Each option once."""
        return iter({id(option): option for option in self.options.values()}.values())


@cache
def texts() -> Mapping[str, Mapping[str, str]]:
    """Name -> {"en", "zh"} of every sentence."""
    return _read("texts")


@cache
def tool(name: str) -> Tool:
    """One of TOOLS."""
    tree = _read(name)
    own = tuple(_options(tree))
    options: dict[str, Option] = {}
    for option in own:
        for spelling in (option.name, *option.aliases):
            assert spelling not in options, f"{name}.yaml has {spelling} twice"
            options[spelling] = option
    base = tree.get("extends")
    inherited = _not_in(tool(base).options, options) if base else {}
    return Tool(name, tree["title"], str(tree["version"]), {**options, **inherited}, own, base)


def keys_of(option: Option) -> list[str]:
    """The keys of ours that an option may set."""
    keys = [option.key] if option.key else []
    keys += [key for settings in option.sets.values() for key in settings]
    return list(dict.fromkeys([*keys, *option.to]))


def _not_in(inherited: Mapping[str, Option], own: Mapping[str, Option]) -> dict[str, Option]:
    """The inherited options that a table does not say anew, under none of their spellings."""
    said = {id(option) for spelling, option in inherited.items() if spelling in own}
    return {spelling: option for spelling, option in inherited.items() if id(option) not in said}


def _options(tree: Mapping[str, Any]) -> Iterator[Option]:
    for group in tree["groups"]:
        titles = {"en": group["en"], "zh": group["zh"]}
        for name, entry in group.get("options", {}).items():
            yield _option(name, titles, entry or {})
        for kind in ("none", "always"):
            for why, names in group.get(kind, {}).items():
                yield from (_option(name, titles, {kind: why}) for name in names)


def _option(name: str, group: Mapping[str, str], entry: Mapping[str, Any]) -> Option:
    entry = dict(entry)
    for kind in ("none", "always"):  # `none: why`
        if isinstance(entry.get(kind), str):
            entry |= {"why": entry[kind], kind: True}
    for several in ("to", "neutral", "aliases"):
        if several in entry:
            value = entry[several]
            entry[several] = tuple(value) if isinstance(value, list) else (value,)
    for mapping in ("values", "sets"):
        if mapping in entry:
            entry[mapping] = {as_text(key): value for key, value in entry[mapping].items()}
    assert "why" not in entry or entry["why"] in texts(), f"{name}: no sentence {entry['why']}"
    return Option(name=name, group=group, **entry)


def as_text(value: Any) -> str:
    """A value as tables write it: true, null, 0.2, in lower case."""
    return "null" if value is None else str(value).strip().lower()


def _read(name: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), Loader=loader)
