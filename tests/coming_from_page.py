"""The tables of docs/coming_from.md and docs/coming_from.zh.md, made from grpo/convert/*.yaml.

`python -m tests.coming_from_page` writes them between their marks. tests/grpo/test_convert_command.py fails while they
are not the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from grpo.convert.tables import TOOLS, Option, Text, Tool, keys_of, tool
from grpo.flags import load_flags
from grpo.values import defaults
from grpo.verl_backend.settings.renamed import GONE, NAMES, PER_GPU

REPO = Path(__file__).resolve().parent.parent
PAGES = {"en": REPO / "docs" / "coming_from.md", "zh": REPO / "docs" / "coming_from.zh.md"}
HEADS = {"en": ("theirs", "ours", "note"), "zh": ("原选项", "对应", "说明")}
WORDS = {
    "en": {
        "always": "always so",
        "none": "no counterpart",
        "default": "default there: {value}",
        "embedded": "embedded engine",
        "renamed": "since verl {since}",
        "gone": "not read since verl {since}; {instead}",
        "per_gpu": "divided by the number of GPUs",
        "names": "Old names of verl's own keys",
        "extends": "All options of {title} above are taken too.",
    },
    "zh": {
        "always": "总是如此",
        "none": "没有对应",
        "default": "原默认值：{value}",
        "embedded": "embedded 引擎",
        "renamed": "自 verl {since} 起",
        "gone": "自 verl {since} 起不再读取；{instead}",
        "per_gpu": "除以 GPU 数",
        "names": "verl 自己的旧名称",
        "extends": "上面 {title} 的所有选项同样适用。",
    },
}
END = "<!-- end of table -->\n"
_CODE = re.compile(
    r"(?<![\w`/])(--[a-z_]+|(?:data|actor_rollout_ref|algorithm|reward|trainer|launcher)\.[a-z_][\w.]*\w(?:=[\w.]+)?)"
)


def begin(name: str) -> str:
    """The mark before the table of a tool."""
    return f"<!-- table: {name} -->\n"


def table(which: Tool, lang: str) -> str:
    """The Markdown between the marks."""
    text = ""
    if which.extends:
        text += WORDS[lang]["extends"].format(title=tool(which.extends).title) + "\n\n"
    groups: dict[str, list[Option]] = {}
    for option in which.own:
        groups.setdefault(option.group[lang], []).append(option)
    rows = {title: list(_rows(options, lang)) for title, options in groups.items()}
    if which.name == "verl":
        rows[WORDS[lang]["names"]] = list(_old_names(lang))
    for title, lines in rows.items():
        heads = [HEADS[lang], ("---",) * 3, *_merged(lines)]
        text += f"**{title}**\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in heads) + "\n"
    return text.rstrip("\n") + "\n"


def filled(page: str, lang: str) -> str:
    """`page` with every table as it should be."""
    for name in re.findall(r"<!-- table: (\w+) -->\n", page):
        before, _, rest = page.partition(begin(name))
        _, end, after = rest.partition(END)
        assert end, f"the page has lost its mark {END}"
        page = f"{before}{begin(name)}{table(tool(name), lang)}{END}{after}"
    return page


def foreign_names() -> set[str]:
    """What looks like a key of ours on the page and is none: options of other tools, and names that verl once had."""
    names = {name for _, (_, *old) in NAMES for name in old} | set(PER_GPU) | set(GONE)
    return {name.rstrip(".") for name in names} | {name for each in TOOLS for name in tool(each).options}


def _rows(options: list[Option], lang: str) -> Iterator[tuple[str, str, str]]:
    for option in options:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        yield names, _ours(option, lang), _note(option, lang)


def _ours(option: Option, lang: str) -> str:
    if option.always:
        return WORDS[lang]["always"]
    spelled = {flag.key: f"--{flag.name}" for flag in load_flags()}
    names = [f"--{option.flag}"] if option.flag else [spelled.get(key, key) for key in keys_of(option)]
    return ", ".join(f"`{name}`" for name in names) or WORDS[lang]["none" if option.none else "always"]


def _note(option: Option, lang: str) -> str:
    parts = []
    if option.why and "{" not in Text(option.why).in_language(lang):
        parts.append(Text(option.why).in_language(lang))
    translated = {**option.values, **option.sets}
    if option.values:
        parts.append(", ".join(f"{theirs} → {ours}" for theirs, ours in translated.items() if theirs != str(ours)))
    if option.sets:
        parts += _choices(option)
    if option.engine:
        parts.append(WORDS[lang]["embedded"])
    if option.default is not None:
        shown = str(option.default).lower() if isinstance(option.default, bool) else option.default
        parts.append(WORDS[lang]["default"].format(value=shown))
    text = ("；" if lang == "zh" else "; ").join(part for part in parts if part)
    return _CODE.sub(r"`\1`", text).replace("|", "\\|")


def _choices(option: Option) -> list[str]:
    """`group_norm → grpo`: what the values of an option become."""
    found = []
    for theirs, settings in option.sets.items():
        last = [f"{key.rpartition('.')[2]}={str(value).lower()}" for key, value in settings.items()]
        if last and theirs:
            found.append(f"{theirs} → {', '.join(last)}")
    return found


def _old_names(lang: str) -> Iterator[tuple[str, str, str]]:
    say = WORDS[lang]
    for since, (new, *old) in NAMES:
        names = ", ".join(f"`{name.rstrip('.')}`" for name in old)
        yield names, f"`{new.rstrip('.')}`", say["renamed"].format(since=since)
    for old, new in PER_GPU.items():
        yield f"`{old}`", f"`{new}`", say["per_gpu"]
    for key, (since, instead) in GONE.items():
        if key in defaults() or key in tool("verl").options:
            continue  # ours by now
        yield f"`{key.rstrip('.')}`", say["none"], _CODE.sub(r"`\1`", say["gone"].format(since=since, instead=instead))


def _merged(rows: list[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Rows with the same counterpart and note as one; those with a note and no names of keys alone."""
    found: dict[tuple[str, str], str] = {}
    for names, ours, note in rows:
        plain = not ours.startswith("`") and note
        key = (ours, note) if plain else (ours, f"{note}\0{names}")
        found[key] = f"{found[key]}, {names}" if key in found else names
    yield from ((names, ours, note.partition("\0")[0]) for (ours, note), names in found.items())


def main() -> None:
    """Write both pages."""
    for lang, path in PAGES.items():
        path.write_text(filled(path.read_text(encoding="utf-8"), lang), encoding="utf-8")
        print(f"wrote the tables of {path.name}")


if __name__ == "__main__":
    main()
