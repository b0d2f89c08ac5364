"""The parameter tables of README.md and README.zh.md, made from configs/flags.yaml and configs/grpo.yaml.

`python -m tests.readme_tables` writes them between their marks. tests/test_readme.py fails while they are not the same.
"""

from __future__ import annotations

from pathlib import Path

from grpo.flags import Flag, load_flags
from grpo.help import default_text

REPO = Path(__file__).resolve().parent.parent
PAGES = {"en": REPO / "README.md", "zh": REPO / "README.zh.md"}
# S2-12 to S2-20, in the order of the requirements: the names under which they were asked for.
MAIN = (
    *("ROLLOUT_N", "NORM_ADV_BY_STD", "USE_KL_LOSS", "KL_LOSS_COEF", "KL_LOSS_TYPE", "TRAIN_BATCH_SIZE"),
    *("LEARNING_RATE", "TOTAL_EPOCHS", "MAX_RESPONSE_LENGTH"),
)
HEADS = {
    "en": ("environment variable", "flag", "default", "meaning"),
    "zh": ("环境变量", "命令行参数", "默认值", "含义"),
}
# What is counted: one of it, and its Chinese name. Files, folders and shares are not counted.
UNITS = {
    "responses": ("response", "个回答"),
    "prompts": ("prompt", "个提示"),
    "tokens": ("token", "个 token"),
    "passes": ("pass", "遍"),
    "steps": ("step", "步"),
    "GPUs": ("GPU", "块"),
    "machines": ("machine", "台"),
    "checkpoints": ("checkpoint", "个"),
}
END = "<!-- end of parameters -->\n"


def begin(which: str) -> str:
    """The mark before the table `main` or `all`."""
    return f"<!-- parameters: {which} -->\n"


def table(which: str, lang: str) -> str:
    """The Markdown between the marks. which: `main` (the nine of the requirements) or `all`, by group."""
    if which == "main":
        by_env = {flag.env: flag for flag in load_flags()}
        return _table([by_env[name] for name in MAIN], lang)
    groups: dict[str, list[Flag]] = {}
    for flag in load_flags():
        groups.setdefault(flag.group[lang], []).append(flag)
    return "\n".join(f"**{title}**\n\n{_table(flags, lang)}" for title, flags in groups.items())


def filled(page: str, lang: str) -> str:
    """`page` with both tables as they should be."""
    for which in ("main", "all"):
        before, mark, rest = page.partition(begin(which))
        assert mark, f"the page has lost its mark {begin(which)}"
        _, end, after = rest.partition(END)
        assert end, f"the page has lost its mark {END}"
        page = f"{before}{mark}{table(which, lang)}{end}{after}"
    return page


def _table(flags: list[Flag], lang: str) -> str:
    rows = [HEADS[lang], ("---",) * len(HEADS[lang]), *(_row(flag, lang) for flag in flags)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(flag: Flag, lang: str) -> tuple[str, ...]:
    names = ", ".join(f"`--{name}`" for name in (flag.name, *flag.aliases))
    meaning = flag.help[lang].replace("|", "\\|")  # a bar would end the cell
    return (f"`{flag.env}`" if flag.env else "–", names, _default(flag, lang), meaning)


def _default(flag: Flag, lang: str) -> str:
    """`5` responses, `low_var_kl`, or a dash where there is none."""
    text = default_text(flag.key) if flag.key else None
    if text is None:
        return "–"
    shown = f"`{text.removeprefix('= ')}`"
    if flag.unit not in UNITS or not text.isdigit():
        return shown
    one, chinese = UNITS[flag.unit]
    return f"{shown} {chinese if lang == 'zh' else one if text == '1' else flag.unit}"


def main() -> None:
    """Write both pages."""
    for lang, path in PAGES.items():
        path.write_text(filled(path.read_text(encoding="utf-8"), lang), encoding="utf-8")
        print(f"wrote the parameter tables of {path.name}")


if __name__ == "__main__":
    main()
