"""Reads the command line and the environment by configs/flags.yaml: which setting, which text, where from.

Nothing is converted or merged here (config.py does) and the help text is help.py's. Not argparse: flags stand among
`key=value` overrides, `--top_k -1` and `--dry_run key=value` mean what they say, all mistakes are told at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parent.parent
FLAGS_FILE = REPO / "configs" / "flags.yaml"
REWARD_PATH = "reward.custom_reward_function.path"
REWARD_NAME = "reward.custom_reward_function.name"

# Sub-command -> what it does. grpo/commands/NAME.py holds each one.
COMMANDS = {
    "plan": {
        "en": "--model X --n_gpus N ...: memory of each phase, what saves it, how long a step takes; trains nothing",
        "zh": "--model X --n_gpus N ...：各阶段的显存、如何节省显存、每步耗时；不训练",
    },
    "check": {
        "en": "--data FILE ...: try the reward on the data, before training; takes the words of a training command",
        "zh": "--data FILE ...：训练前用数据检验奖励函数；参数与训练命令相同",
    },
    "score": {
        "en": "--responses FILE [--data FILE]: score a file of model outputs: pass@1 and pass@k",
        "zh": "--responses FILE [--data FILE]：为模型输出文件打分，给出 pass@1 与 pass@k",
    },
    "data": {
        "en": "IN [OUT.parquet]: check a data file and convert it, without training",
        "zh": "IN [OUT.parquet]：只检查并转换数据，不训练",
    },
    "reward": {
        "en": "new FILE.py: write a commented reward of your own to start from",
        "zh": "new FILE.py：生成一个带注释的自定义奖励模板",
    },
    "serve-reward": {
        "en": "[--port 8731]: serve a reward over HTTP, for --reward server:URL",
        "zh": "[--port 8731]：通过 HTTP 提供奖励，配合 --reward server:URL 使用",
    },
    "sft": {
        "en": "--data DEMOS [--flag VALUE] ...: supervised training on demonstrations, before GRPO",
        "zh": "--data 示范数据 [--flag 值] ...：GRPO 之前的监督微调",
    },
    "eval": {
        "en": "--model A --model B --data FILE [-k 8]: models side by side: accuracy, pass@k, maj@k, with intervals",
        "zh": "--model A --model B --data FILE [-k 8]：并排评估模型：准确率、pass@k、maj@k 及其置信区间",
    },
    "chat": {
        "en": "--model FOLDER [--base MODEL]: talk to what was trained, beside the base model",
        "zh": "--model 目录 [--base 模型]：与训练好的模型对话，可与基座模型并排",
    },
    "setup": {
        "en": "--engine verl [--device cpu]: make verl's environment and check this machine",
        "zh": "--engine verl [--device cpu]：建立 verl 的环境并检查本机",
    },
    "export": {
        "en": "--from global_step_N [--lora merge|adapter] [--dtype bf16]: a checkpoint as a Hugging Face folder",
        "zh": "--from global_step_N [--lora merge|adapter] [--dtype bf16]：把检查点导出为 Hugging Face 目录",
    },
    "convert-config": {
        "en": "FILE: a run file of verl, TRL, ms-swift, OpenRLHF or PaddleNLP as a command of ours",
        "zh": "FILE：把 verl、TRL、ms-swift、OpenRLHF、PaddleNLP 的训练文件转换为本项目的命令",
    },
    "explain-log": {
        "en": "FILE: causes and fixes of the failures in a verl log",
        "zh": "FILE：解释 verl 日志中的故障及其解决办法",
    },
}

# What other tools call the last part of a key.
_ELSEWHERE: Mapping[str, str] = dict.fromkeys(("tp", "tp_size", "tensor_parallel_size"), "tensor_model_parallel_size")
_LOOKS_LIKE_FLAG = re.compile(r"--?[A-Za-z][\w-]*(=.*)?$", re.DOTALL)
_LOOKS_LIKE_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w-]*(\.[\w-]+)+=", re.DOTALL)


@dataclass(frozen=True)
class Flag:
    """One entry of flags.yaml. values: what an optional value may be; empty = the value is required."""

    name: str
    group: Mapping[str, str]
    help: Mapping[str, str]
    key: str | None = None
    env: str | None = None
    aliases: tuple[str, ...] = ()
    metavar: str = ""
    unit: str = ""
    const: str | None = None
    is_list: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The words that may follow a flag whose value is optional."""
        return tuple(self.metavar.split("|")) if self.const is not None else ()


@dataclass(frozen=True)
class Given:
    """One setting as the user gave it. text: not yet converted, None = back to the default; origin: "flag --lr"."""

    key: str
    text: str | None
    origin: str


@dataclass
class CommandLine:
    """What a command line says, in the words of flags.yaml. words: as typed."""

    words: tuple[str, ...] = ()
    given: list[Given] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    recipes: list[str] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)
    algorithms: list[str] = field(default_factory=list)
    dry_run: str | None = None
    fix: str | None = None
    help: str | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@cache
def load_flags() -> tuple[Flag, ...]:
    """All flags, in the order of flags.yaml."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    flags = []
    for group in yaml.load(FLAGS_FILE.read_text(encoding="utf-8"), Loader=loader):
        titles = {"en": group["group"], "zh": group["zh"]}
        for name, entry in group["flags"].items():
            flags.append(_flag(name, titles, entry))
    return tuple(flags)


def by_spelling() -> dict[str, Flag]:
    """Name or alias -> flag."""
    return {spelling: flag for flag in load_flags() for spelling in (flag.name, *flag.aliases)}


def parse(argv: Sequence[str]) -> CommandLine:
    """The command line, sorted into settings, overrides and what steers the command itself; mistakes in `.problems`."""
    line = CommandLine(words=tuple(argv))
    words = list(argv)
    position = 0
    while position < len(words):
        word = words[position]
        following = words[position + 1] if position + 1 < len(words) else None
        position += 1
        if word.startswith("-"):
            position += _read_flag(line, word, following)
        elif "=" in word or word.startswith("~"):
            line.overrides.append(word)
        else:
            line.problems.append(_stray(word))
    return line


def environment(environ: Mapping[str, str]) -> list[Given]:
    """Settings from environment variables; an empty variable counts as not set."""
    found = []
    for flag in load_flags():
        if flag.env and flag.key and environ.get(flag.env, "").strip():
            found += _settings(flag, environ[flag.env].strip(), f"env {flag.env}")
    return found


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The candidate most like `word`, or None when nothing is close (1 = the same, 0 = nothing in common)."""
    close = difflib.get_close_matches(word, list(candidates), n=1, cutoff=cutoff)
    return close[0] if close else None


def _flag(name: str, group: Mapping[str, str], entry: Mapping[str, Any]) -> Flag:
    return Flag(
        name=name,
        group=group,
        help={"en": entry["help"], "zh": entry["zh"]},
        key=entry.get("key"),
        env=entry.get("env"),
        aliases=tuple(entry.get("alias", ())),
        metavar=entry.get("metavar", ""),
        unit=entry.get("unit", ""),
        const=entry["const"] if entry.get("nargs") == "?" else None,
        is_list=bool(entry.get("list")),
    )


def _read_flag(line: CommandLine, word: str, following: str | None) -> int:
    """Take one flag into `line`; how many of the following words it used."""
    spelling, equals, attached = word.removeprefix("--").partition("=")
    spelling = "help" if word == "-h" else spelling.replace("-", "_")
    flag = by_spelling().get(spelling)
    if flag is None:
        # Its value is unknown too: not worth a second message.
        is_value = following is not None and "=" not in following and not _LOOKS_LIKE_FLAG.match(following)
        line.problems.append(_unknown(word, attached or (following if is_value else None) or "VALUE"))
        return int(is_value and not equals)
    if equals:
        value, used = attached, 0
    elif flag.const is not None:
        takes = following in flag.values if flag.name != "help" else following and not following.startswith("-")
        value, used = (str(following), 1) if takes else (flag.const, 0)
    else:
        value, used = following or "", int(following is not None)
        if _LOOKS_LIKE_FLAG.match(value) or _LOOKS_LIKE_OVERRIDE.match(value):
            kind = "flag" if value.startswith("-") else "override"
            line.problems.append(f"--{spelling} needs a value, but the next word is the {kind} {value}; {_usage(flag)}")
            return 0
    if not value and flag.name != "help":
        line.problems.append(f"--{spelling} needs a value; {_usage(flag)}")
    else:
        _store(line, flag, spelling, value)
    return used


def _store(line: CommandLine, flag: Flag, spelling: str, value: str) -> None:
    if flag.key:
        if any(earlier.key == flag.key for earlier in line.given):
            line.notes.append(f"--{flag.name} is given more than once: the last value, {value}, counts")
        line.given += _settings(flag, value, f"flag --{spelling}")
    elif flag.name in ("config", "recipe", "algorithm"):
        getattr(line, f"{flag.name}s").append(value)
    elif flag.values and flag.name != "help" and value not in (*flag.values, flag.const):
        line.problems.append(f"--{flag.name}={value}: {flag.name} is {' or '.join(flag.values)}, or stands alone")
    else:
        setattr(line, flag.name, value)


def _settings(flag: Flag, text: str, origin: str) -> list[Given]:
    """The key or keys that one flag sets: `--reward_func FILE:NAME` holds two."""
    assert flag.key is not None
    if flag.key != REWARD_PATH:
        return [Given(flag.key, text, origin)]
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py") and name.isidentifier():
        return [Given(REWARD_PATH, path, origin), Given(REWARD_NAME, name, origin)]
    # A file without a name must not inherit the function's name from a file that it replaces.
    return [Given(REWARD_PATH, text, origin), Given(REWARD_NAME, None, origin)]


def _usage(flag: Flag) -> str:
    metavar = flag.metavar or "VALUE"
    return f"write --{flag.name} {metavar} or --{flag.name}={metavar}"


def _unknown(word: str, value: str) -> str:
    name = word.partition("=")[0]
    if "." in name:
        return f"{name} is no flag; a key is written without dashes: {name.lstrip('-')}=VALUE"
    meant = name.lstrip("-").replace("-", "_")
    if key := _key_that_ends(_ELSEWHERE.get(meant, meant)):
        return f"{name} is no flag; the key is written without dashes: {key}={value}"
    near = nearest(meant, by_spelling())
    return f"{name} is no flag; " + (f"did you mean --{near}?" if near else "--help lists all flags")


def _key_that_ends(name: str) -> str | None:
    """The one key, ours or else verl's, whose last part is `name`; None where there is none or more than one."""
    from grpo.values import defaults  # --help waits for neither
    from grpo.verl_backend.settings.keys import verl_keys

    for keys in (defaults(), verl_keys()):
        found = [key for key in keys if key.rpartition(".")[2] == name]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _stray(word: str) -> str:
    """What a bare word was probably meant to be."""
    suffix = Path(word.partition("#")[0]).suffix.lower()
    meant = None
    if suffix in (".json", ".jsonl", ".csv", ".parquet"):
        meant = f"--data {word}"
    elif suffix in (".yaml", ".yml"):
        meant = f"--config {word}"
    elif word in by_spelling():
        meant = f"--{word}"
    elif near := nearest(word, COMMANDS):
        meant = f"./train.sh {near}"
    elif near := nearest(word, by_spelling()):
        meant = f"--{near}"
    hint = f"did you mean {meant}?" if meant else "--help shows what there is"
    return f"{word} is no flag, no key=value and no sub-command; {hint}"
