"""Reads a run file of another tool: which tool it is, the options it sets and the GPUs it names. Runs nothing.

A shell script, a YAML or JSON file, or Python text. What the options are here is conversion.py's question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.config import ConfigError, read_yaml
from grpo.convert import python_text, shell
from grpo.convert.tables import TOOLS, tool
from grpo.flags import nearest
from grpo.values import flatten

LARGEST = 2**20  # characters of a run file
# What a command that trains has in it: tool -> the words, one after the other.
_MARKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "verl": ((r"(?:.*\.)?main_(?:ppo|dapo|grpo)\w*",), (r".*/main_(?:ppo|dapo|grpo)\w*\.py",)),
    "openrlhf": ((r"openrlhf\.cli\.train_ppo(?:_ray)?",), (r".*train_ppo(?:_ray)?\.py",)),
    "swift": ((r"(?:.*/)?swift|megatron", "rlhf"), (r".*cli/rlhf\.py",), (r"swift\.cli\.rlhf",)),
    "trl": (("trl", "grpo"), (r"(?:.*/)?\w*grpo\w*\.py",), (r"trl\.scripts\.grpo",)),
    "paddle": ((r"(?:.*/)?run_rl\.py",),),
}
_PROCESSES = ("nproc_per_node", "nproc-per-node", "num_gpus")
_ALL_PROCESSES = ("num_processes", "num-processes")
_NODES = ("nnodes", "num_machines", "num-machines")


@dataclass
class RunFile:
    """What a file asks for.

    options: name -> value. unread: name -> the piece that only running could tell. skipped: statements of a script that
    stand under a condition. gpus, nodes: None where the file does not say; cards: the GPUs that it lets programs see.
    """

    name: str
    tool: str
    options: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    gpus: int | None = None
    nodes: int = 1
    cards: int | None = None


def read(path: Path, wanted: str | None = None) -> RunFile:
    """The file at `path`. wanted: the tool, where the user says which. Raises ConfigError."""
    text = _text(path)
    kind = path.suffix.lower()
    if kind in (".yaml", ".yml", ".json"):
        return _of_tree(str(path), read_yaml(path, said=str(path)), wanted)
    if kind == ".py" or (kind not in (".sh", ".bash") and re.search(r"\bGRPOConfig\s*\(", text)):
        return _of_python(str(path), text, wanted)
    return _of_script(path, text, wanted)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem.strerror}); name the file that starts your run") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path}: byte {problem.start} is not UTF-8; save the file as UTF-8") from None
    if not text.strip():
        raise ConfigError(f"{path}: is empty; name the file that starts your run")
    if len(text) > LARGEST:
        raise ConfigError(f"{path}: is over {LARGEST:,} characters; no run file is as long")
    return text


def _of_tree(name: str, tree: Mapping[str, Any], wanted: str | None) -> RunFile:
    if wanted == "verl" or (wanted is None and "actor_rollout_ref" in {key.partition(".")[0] for key in tree}):
        return RunFile(name, "verl", dict(flatten(tree)))
    options = {_underscored(key): value for key, value in tree.items()}
    return RunFile(name, wanted or _recognised(name, options), options)


def _of_python(name: str, text: str, wanted: str | None) -> RunFile:
    try:
        found = python_text.read(text)
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None)
        where = f", line {line}" if line else ""
        raise ConfigError(f"{name}{where}: not Python: {getattr(problem, 'msg', problem)}") from None
    declared = {option: value for option, value in found.declared.items() if option in tool("seq2seq").options}
    if not found.options and declared and wanted in (None, "seq2seq"):
        return RunFile(name, "seq2seq", declared)
    if not found.options and not found.unread:
        raise ConfigError(f"{name}: calls no GRPOConfig(...) with settings; name the file that does")
    return RunFile(name, wanted or _recognised(name, found.options), found.options, found.unread)


def _recognised(name: str, options: Mapping[str, Any]) -> str:
    """The tool whose table has the most of these options."""
    known = {each: sum(option in tool(each).options for option in options) for each in TOOLS if each != "verl"}
    best = max(known, key=lambda each: known[each])
    if known[best] * 2 < len(options) or known[best] == 0:
        near = nearest(next(iter(options), ""), tool("trl").options) if options else None
        hint = f" (did you mean {near}?)" if near else ""
        raise ConfigError(f"{name}: too few of its options are of {', '.join(TOOLS)}{hint}; --from names the tool")
    same = [each for each in known if known[each] == known[best]]
    if set(same) == {"trl", "swift"}:  # ms-swift takes TRL's options too
        return "swift" if "rlhf_type" in options else "trl"
    if len(same) > 1:
        raise ConfigError(f"{name}: could be of {' or '.join(same)}; --from says which")
    return best


def _of_script(path: Path, text: str, wanted: str | None) -> RunFile:
    try:
        script = shell.read(text)
    except ValueError:  # shlex's only complaint
        raise ConfigError(f"{path}: not a shell script: a quote in it never ends") from None
    found = [hit for command in script.commands if (hit := _trains(command, wanted))]
    if not found:
        names = wanted or ", ".join(each for each in TOOLS if each in _MARKS)
        raise ConfigError(f"{path}: no command in it starts a training of {names}; name the script that does")
    found.sort(key=lambda hit: hit[0].conditional)  # what surely runs first
    command, which, position = found[0]
    if which == "paddle":
        files = [word for word in command.words[position:] if word.endswith((".yaml", ".yml", ".json"))]
        raise ConfigError(
            f"{path}: run_rl.py takes its settings from {files[0] if files else 'a YAML file'}; name that"
        )
    run = RunFile(str(path), which, skipped=script.skipped)
    words = [word for word in command.words[position:] if word]
    options = dict(_overrides(words)) if which == "verl" else dict(_flags(words))
    for name, value in _with_config(path, which, options).items():
        hidden = [piece for piece in (value if isinstance(value, list) else [value]) if shell.UNKNOWN in str(piece)]
        if hidden:
            run.unread[name] = str(hidden[0]).split(shell.UNKNOWN)[1]
        else:
            run.options[name] = value
    _machine(run, command, command.words[:position])
    return run


def _trains(command: shell.Command, wanted: str | None) -> tuple[shell.Command, str, int] | None:
    """(the command, its tool, where its options begin), or None for one that does not train."""
    for which, marks in _MARKS.items():
        if wanted not in (None, which):
            continue
        for mark in marks:
            for start in range(len(command.words) - len(mark) + 1):
                if all(re.fullmatch(m, w) for m, w in zip(mark, command.words[start:], strict=False)):
                    return command, which, start + len(mark)
    return None


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`--name value ...`, `--name=value` and `--name` alone; a word before any flag is a file of options."""
    name: str | None = None
    values: list[str] = []
    for word in [*words, "--"]:
        if word.startswith("--"):
            if name is not None:
                yield name, True if not values else values[0] if len(values) == 1 else values
            name, equals, value = word[2:].partition("=")
            name, values = _underscored(name), [value] if equals else []
        elif name is None:
            yield "config", word
        else:
            values.append(word)


def _overrides(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Hydra's words; the sign stays with the key."""
    for word in words:
        key, equals, value = word.partition("=")
        yield (key, value) if equals else (word, None)


def _with_config(path: Path, which: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with those of the YAML file that they name below them."""
    file = options.pop("config", None) if which in ("trl", "swift") else None
    if file is None or not isinstance(file, str):
        return options
    places = [Path(file), path.parent / file]
    there = next((place for place in places if place.is_file()), None)
    if there is None:
        raise ConfigError(f"{path}: takes settings from {file}, which is not here; convert a script beside that file")
    return {_underscored(key): value for key, value in read_yaml(there, said=file).items()} | options


def _machine(run: RunFile, command: shell.Command, launcher: Sequence[str]) -> None:
    """How many GPUs and machines: from torchrun's, accelerate's or ms-swift's words, else from the visible ones."""
    flags = _flags([word for word in launcher if word != "--"])
    given = {name: value[0] if isinstance(value, list) else str(value) for name, value in flags}
    environment = command.environment
    nodes = _first_number([given.get(_underscored(name)) for name in _NODES] + [environment.get("NNODES")])
    run.nodes = nodes or 1
    run.gpus = _first_number(
        [given.get(_underscored(name)) for name in _PROCESSES] + [environment.get("NPROC_PER_NODE")]
    )
    everywhere = _first_number([given.get(_underscored(name)) for name in _ALL_PROCESSES])
    if run.gpus is None and everywhere:
        run.gpus = max(1, everywhere // run.nodes)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if re.fullmatch(r"\d+(,\d+)*", visible):
        run.cards = visible.count(",") + 1


def _first_number(texts: Sequence[str | None]) -> int | None:
    return next((int(text) for text in texts if text is not None and text.isdecimal()), None)


def _underscored(name: str) -> str:
    return name.replace("-", "_")
