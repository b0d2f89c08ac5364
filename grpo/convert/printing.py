"""A conversion as text: a script with a comment for each option that is not in it, or a YAML file for --config."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from grpo.convert.conversion import Conversion, How, Outcome
from grpo.convert.shell import OUTSIDE
from grpo.convert.tables import as_text
from grpo.flags import load_flags
from grpo.hydra_text import hydra_value
from grpo.values import defaults, kind, shown
from grpo.verl_backend.settings.keys import verl_keys

WORDS = {
    "en": {
        "from": "{file}, a run of {title}, as a run of ours",
        "defaults": "{title} {version}'s own defaults, where ours are others: {settings}",
        "skipped": "stands under a condition in the script and is not read: {statement}",
        "set": "how numbers and names came about",
        "always": "no setting is needed",
        "none": "no counterpart",
        "unread": "could not be taken over",
        "use": "use it: ./train.sh --config {file}",
    },
    "zh": {
        "from": "{file}：{title} 的训练，转换为本项目的命令",
        "defaults": "{title} {version} 的默认值与这里不同：{settings}",
        "skipped": "脚本中带条件的语句，未读取：{statement}",
        "set": "数值与名称的由来",
        "always": "无需设置",
        "none": "没有对应",
        "unread": "无法转换",
        "use": "使用：./train.sh --config {file}",
    },
}
ORDER: tuple[How, ...] = ("set", "always", "none", "unread")
LONGEST = 100  # characters of a quoted value


def command(done: Conversion, lang: str) -> str:
    """The command line, one word group a line, and the comments below it."""
    lines = ["#!/usr/bin/env bash", f"# {_head(done, lang)}", "./train.sh"]
    for key, value in in_order(done.settings):
        lines[-1] += " \\"
        lines.append(f"  {word(key, value)}")
    return "\n".join([*lines, *(f"# {text}".rstrip() for text in comments(done, lang))]) + "\n"


def yaml_text(done: Conversion, lang: str) -> str:
    """The same as a file for --config: nested keys, the comments above them."""
    import yaml

    tree: dict[str, Any] = {}
    for key, value in in_order(done.settings):
        *parents, name = key.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = _for_yaml(value)
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000)
    heads = [f"# {line}".rstrip() for line in [_head(done, lang), *comments(done, lang)]]
    return "\n".join([*heads, "", text if tree else ""])


def comments(done: Conversion, lang: str) -> Iterator[str]:
    """What became of every option that is not simply a setting of the same value."""
    say = WORDS[lang]
    if done.defaults_said:
        said = ", ".join(
            f"{_name(key)}={shown(value)}" for key, value in done.settings.items() if key in done.defaults_said
        )
        text = say["defaults"].format(title=done.tool.title, version=done.tool.version, settings=said)
        yield from ("", text)
    for how in ORDER:
        mine = [outcome for outcome in done.outcomes if outcome.how == how and (outcome.why or how != "set")]
        if mine:
            yield from ("", f"{say[how]}:")
            yield from (f"  {_line(done, outcome, lang)}" for outcome in _merged(mine))
    for statement in done.file.skipped:
        yield say["skipped"].format(statement=" ".join(statement.split())[:LONGEST])


def in_order(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What has a short flag first, as --help lists them; then as in grpo.yaml; last what only verl has."""
    flags, keys = [flag.key for flag in load_flags()], list(defaults())

    def place(key: str) -> tuple[int, int]:
        if key in flags:
            return 0, flags.index(key)
        return (1, keys.index(key)) if key in keys else (2, 0)

    return sorted(settings.items(), key=lambda item: place(item[0]))


def word(key: str, value: Any) -> str:
    """One setting as words of a command line: its short flag where it has one, else an override."""
    flag = next((flag.name for flag in load_flags() if flag.key == key), None)
    if flag is not None:
        text = ",".join(map(shown, value)) if isinstance(value, (list, tuple)) else shown(value)
        return f"--{flag} {_quoted(text)}"
    if isinstance(value, str) and key in defaults() and kind(key) == "str":
        return _quoted(f"{key}={value}")  # a key of text takes it as typed
    plus = "" if key in defaults() or key in verl_keys() else "+"
    return _quoted(f"{plus}{key}={value if OUTSIDE in str(value) else _hydra(value)}")


def _hydra(value: Any) -> str:
    return shown(value) if isinstance(value, (bool, int, float)) or value is None else hydra_value(value)


def _quoted(text: str) -> str:
    """For a shell; what a variable of the outside gives is left to the shell."""
    if OUTSIDE not in text:
        return shlex.quote(text)
    inside = re.sub(r'([\\"$`])', r"\\\1", text)
    return '"' + re.sub(f"{OUTSIDE}(\\w+){OUTSIDE}", r"${\1}", inside) + '"'


def _for_yaml(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(f"{OUTSIDE}(\\w+){OUTSIDE}", r"${oc.env:\1}", value.replace("${", "\\${"))
    return value


def _head(done: Conversion, lang: str) -> str:
    return WORDS[lang]["from"].format(file=done.file.name, title=done.tool.title)


def _merged(outcomes: list[Outcome]) -> list[Outcome]:
    """Outcomes with the same reason and without settings as one."""
    found: dict[Any, Outcome] = {}
    for outcome in outcomes:
        plain = not outcome.settings and bool(outcome.options)
        values = tuple(sorted(outcome.why.values.items(), key=str)) if outcome.why else ()
        same: Any = (outcome.how, outcome.why.name if outcome.why else None, str(values)) if plain else id(outcome)
        before = found.get(same)
        found[same] = Outcome((*before.options, *outcome.options), outcome.how, {}, outcome.why) if before else outcome
    return list(found.values())


def _line(done: Conversion, outcome: Outcome, lang: str) -> str:
    """`fp16=true, tf32=true: float32 or bfloat16 ...`, or `train_batch_size: 1 x 2 x 7 GPUs = ...`."""
    names = ", ".join(_given(done, option) for option in outcome.options)
    names = names or ", ".join(_name(key) for key in outcome.settings)
    why = outcome.why.in_language(lang) if outcome.why else ""
    return _outside(": ".join(part for part in (names, why) if part))


def _given(done: Conversion, option: str) -> str:
    value = done.file.options.get(option)
    if option in done.file.unread or value is None:
        return option
    text = (
        " ".join(map(str, value))
        if isinstance(value, list)
        else as_text(value)
        if isinstance(value, bool)
        else str(value)
    )
    text = " ".join(text.split())
    return f"{option}={text[:LONGEST]}{'...' if len(text) > LONGEST else ''}"


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _outside(text: str) -> str:
    return re.sub(f"{OUTSIDE}(\\w+){OUTSIDE}", r"$\1", text)
