"""The text of --help, made from configs/flags.yaml and configs/grpo.yaml. Reads no setting and decides nothing.

Chinese where the locale is Chinese; bold names on a terminal, plain text in a pipe; 60 to 120 columns.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping

from grpo.flags import COMMANDS, Flag, load_flags, nearest
from grpo.values import KEYS_FILE, defaults, kind, shown

INDENT = 26

WORDS = {
    "en": {
        "usage": "./train.sh [--flag VALUE] [key=value] ...",
        "alone": "Prompts and a reward go in, a fine-tuned model comes out. Without data and without a model it runs "
        "the recipe demo. Flags, --flag=VALUE and raw Hydra overrides (key=value, +key=value, ++key=value, ~key) stand "
        "in any order; a later layer wins: default, recipe, --config file, environment, flag, override.",
        "commands": "Sub-commands",
        "overrides": "Raw overrides",
        "override_text": "any key of configs/grpo.yaml, and any key that verl knows (verl engine); "
        "--help WORD shows the keys with WORD",
        "example": "for example",
        "keys": "Keys without a flag (write key=value)",
        "default": "default",
        "also": "also",
        "nothing": "Nothing in --help mentions {word!r}.",
        "near": "Try --help {near}.",
        "none": "none",
    },
    "zh": {
        "usage": "./train.sh [--flag 值] [key=value] ...",
        "alone": "输入提示和奖励函数，得到微调后的模型。不指定数据和模型时运行 demo。--flag 值、--flag=值 与 Hydra 覆盖"
        "（key=value、+key=value、++key=value、~key）可任意混排；后者优先：默认值、recipe、--config 文件、环境变量、"
        "命令行参数、覆盖。",
        "commands": "子命令",
        "overrides": "直接覆盖",
        "override_text": "configs/grpo.yaml 的任意键，以及 verl 认识的任意键（verl 引擎）；--help 词 显示含该词的键",
        "example": "例如",
        "keys": "没有对应参数的键（写作 key=value）",
        "default": "默认",
        "also": "亦作",
        "nothing": "--help 中没有 {word!r}。",
        "near": "试试 --help {near}。",
        "none": "无",
    },
}
EXAMPLE = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"


def language(environ: Mapping[str, str]) -> str:
    """ "zh" in a Chinese locale, else "en"; LC_ALL wins over LC_MESSAGES over LANG, as everywhere."""
    locale = environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
    return "zh" if locale.lower().startswith("zh") else "en"


def render(word: str = "", *, width: int = 80, lang: str = "en", bold: bool = False) -> str:
    """The help text. word: only what mentions it (then also keys that have no flag); width: columns."""
    width = max(60, min(width, 120))
    say = WORDS[lang]
    lines: list[str] = []
    if not word:
        lines += [say["usage"], "", *wrap(say["alone"], width)]
    previous = None
    for flag in load_flags():
        if word and not _mentions(flag, word):
            continue
        if flag.group["en"] != previous:
            lines += ["", _strong(flag.group[lang], bold)]
            previous = flag.group["en"]
        lines += _entry(flag, width, lang, bold)
    lines += _keys(word, width, lang, bold) if word else _footer(width, lang, bold)
    if not any(lines):
        return _nothing(word, say)
    return "\n".join(lines).strip("\n")


def show(word: str) -> None:
    """Print the help on standard output; a reader that stops early (`| head`) is no error."""
    width = shutil.get_terminal_size((80, 24)).columns
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(render(word, width=width, lang=language(os.environ), bold=bold))


def default_text(key: str) -> str | None:
    """A key's default as written for people: `1e-6`, `true`, `= data.train_batch_size`; None where there is none."""
    value = defaults()[key]
    if value is None:
        return None
    if isinstance(value, list):
        return ",".join(map(shown, value))
    return re.sub(r"^\$\{(.+)\}$", r"= \1", shown(value))


def key_comments() -> dict[str, str]:
    """Key -> its comment in grpo.yaml, where the unit and the effect of each stand."""
    comments, parents = {}, []
    for line in KEYS_FILE.read_text(encoding="utf-8").splitlines():
        match = re.match(r"( *)([\w]+):(.*)$", line)
        if not match:
            continue
        depth = len(match[1]) // 2
        parents = [*parents[:depth], match[2]]
        value, _, comment = match[3].partition(" # ")
        if value.strip():
            comments[".".join(parents)] = comment.strip()
    return comments


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns; a Chinese character is two columns and may end a line."""
    lines, line, used = [], "", 0
    for piece in re.findall(r"[^\s\u2e80-\uffef]+\s*|[\u2e80-\uffef]\s*|\s+", text):
        wide = columns(piece.rstrip())
        if line and used + wide > width:
            lines.append(line.rstrip())
            line, used = "", 0
        line, used = line + piece, used + columns(piece)
    return [*lines, line.rstrip()] if line.strip() else lines


def columns(text: str) -> int:
    """How many terminal columns `text` takes."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _entry(flag: Flag, width: int, lang: str, bold: bool) -> Iterator[str]:
    """A flag's lines: what it does, then its unit, default, environment name and key."""
    say = WORDS[lang]
    facts = [flag.unit] if flag.unit and flag.unit not in (flag.metavar.lower(), "folder") else []
    if flag.key:
        facts.append(f"{say['default']} {default_text(flag.key) or say['none']}")
    if flag.env:
        facts.append(f"env {flag.env}")
    if flag.key:
        facts.append(flag.key)
    if flag.aliases:
        facts.append(f"{say['also']} " + ", ".join(f"--{alias}" for alias in flag.aliases))
    text = [*wrap(flag.help[lang], width - INDENT), *_facts(facts, width - INDENT)]
    name = f"  --{flag.name} {_metavar(flag)}".rstrip()
    yield from _columns(name, text, bold)


def _metavar(flag: Flag) -> str:
    if flag.const is not None:
        return f"[{flag.metavar}]"
    return flag.metavar or {"bool": "BOOL", "str": "NAME"}.get(kind(flag.key or ""), "N")


def _facts(facts: list[str], width: int) -> list[str]:
    """The facts joined by dots, no fact cut in two."""
    lines: list[str] = []
    for fact in facts:
        if lines and columns(lines[-1]) + columns(fact) + 3 <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return lines


def _columns(name: str, text: list[str], bold: bool) -> Iterator[str]:
    """`name` in the left column, `text` in the right one; a long name has its own line."""
    strong = _strong(name, bold)
    if columns(name) < INDENT - 1 and text:
        yield strong + " " * (INDENT - columns(name)) + text[0]
        text = text[1:]
    else:
        yield strong
    yield from (" " * INDENT + line for line in text)


def _footer(width: int, lang: str, bold: bool) -> Iterator[str]:
    say = WORDS[lang]
    yield from ("", _strong(say["commands"], bold))
    for name, texts in COMMANDS.items():
        yield from _columns(f"  {name}", wrap(texts[lang], width - INDENT), bold)
    yield from ("", _strong(say["overrides"], bold))
    text = [*wrap(say["override_text"], width - INDENT), f"{say['example']}:"]
    yield from _columns("  key=value", text, bold)
    yield f"      {EXAMPLE}"


def _keys(word: str, width: int, lang: str, bold: bool) -> Iterator[str]:
    """Keys of grpo.yaml that no flag sets and that mention `word`; their comments are English."""
    flagged = {flag.key for flag in load_flags()}
    comments = key_comments()
    found = [key for key in comments if key not in flagged and word.lower() in f"{key} {comments[key]}".lower()]
    if found:
        yield from ("", _strong(WORDS[lang]["keys"], bold))
    for key in found:
        yield _strong(f"  {key}={shown(defaults()[key])}", bold)
        yield from (" " * 6 + line for line in wrap(comments[key], width - 6))


def _mentions(flag: Flag, word: str) -> bool:
    texts = [flag.name, *flag.aliases, flag.key or "", flag.env or "", flag.help["en"], flag.help["zh"]]
    return any(word.lower().lstrip("-") in text.lower() for text in texts)


def _nothing(word: str, say: Mapping[str, str]) -> str:
    near = nearest(word, [flag.name for flag in load_flags()])
    return say["nothing"].format(word=word) + (" " + say["near"].format(near=near) if near else "")


def _strong(text: str, bold: bool) -> str:
    return f"\033[1m{text}\033[0m" if bold else text
