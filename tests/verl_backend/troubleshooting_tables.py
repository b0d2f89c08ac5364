"""The tables of docs/troubleshooting.md and docs/troubleshooting.zh.md, made from grpo/verl_backend/failures.yaml.

`python -m tests.verl_backend.troubleshooting_tables` writes them between their marks; test_failures.py fails while they
are not the same.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from grpo.verl_backend.failures import Failure, load_failures

REPO = Path(__file__).resolve().parents[2]
PAGES = {"en": REPO / "docs" / "troubleshooting.md", "zh": REPO / "docs" / "troubleshooting.zh.md"}
HEADS = {
    "en": ("what the log says", "why", "what to do", "change"),
    "zh": ("日志内容", "原因", "办法", "修改"),
}
BEGIN = "<!-- failures: made by python -m tests.verl_backend.troubleshooting_tables -->\n"
END = "<!-- end of failures -->\n"


def tables(lang: str) -> str:
    """A heading and a table for each group."""
    parts = []
    for title, failures in groupby(load_failures(), key=lambda failure: failure.group[lang]):
        rows = [HEADS[lang], ("---",) * len(HEADS[lang]), *(_row(failure, lang) for failure in failures)]
        parts.append(f"## {title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows))
    return "\n".join(parts)


def filled(page: str, lang: str) -> str:
    """`page` with the tables as they should be."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark, f"the page has lost its mark {BEGIN}"
    assert end, f"the page has lost its mark {END}"
    return f"{before}{BEGIN}\n{tables(lang)}\n{END}{after}"


def _row(failure: Failure, lang: str) -> tuple[str, ...]:
    said = "<br>".join(_code("…".join(pieces).strip()) for pieces in failure.says)
    where = f" ({'内含' if lang == 'zh' else 'with'} {_code(failure.inside[0])})" if failure.inside else ""
    change = _code(failure.flag) if failure.flag else "–"
    row = (said + where if said else "–", failure.cause[lang], failure.fix[lang], change)
    return tuple(cell.replace("|", "\\|") for cell in row)


def _code(text: str) -> str:
    """A code span; one with backticks in it has two at each end."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def main() -> None:
    """Write both pages."""
    for lang, path in PAGES.items():
        path.write_text(filled(path.read_text(encoding="utf-8"), lang), encoding="utf-8")
        print(f"wrote the tables of {path.name}")


if __name__ == "__main__":
    main()
