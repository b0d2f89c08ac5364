"""The READMEs and docs/ as tests read them: blocks, the files that a page shows, commands, links. Tries nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "README.zh.md", *sorted(f"docs/{path.name}" for path in (REPO / "docs").glob("*.md")))
# A page may name a file that is like one which it, or another page, shows.
LIKE = {"gsm8k_test.jsonl": "gsm8k_train.jsonl", "test.json": "prompts.json"}

_NAMED = re.compile(r"`([\w.]+\.(?:json|jsonl|csv|py|yaml))`[^`]*[:：]$")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block. language: what stands behind the fence; name: the file that the line above names, or None."""

    language: str
    name: str | None
    text: str


def text_of(page: str) -> str:
    """A page of PAGES."""
    return (REPO / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, language, inside, above = [], None, [], ""
    for line in text_of(page).splitlines():
        fence = re.fullmatch(r"```(\w*)", line)
        if language is None and fence:
            language, inside = fence[1], []
        elif language is not None and fence:
            named = _NAMED.search(above)
            found.append(Block(language, named[1] if named else None, "".join(f"{text}\n" for text in inside)))
            language, above = None, ""
        elif language is not None:
            inside.append(line)
        elif line.strip():
            above = line.strip()
    assert language is None, f"{page}: a block that never ends"
    return found


def commands(page: str) -> list[str]:
    """Every line of the page's ```bash blocks."""
    return [line for block in blocks(page) if block.language == "bash" for line in block.text.splitlines()]


def shown_files(page: str) -> dict[str, str]:
    """Name -> text of the files that a reader of `page` has seen: on it, else in the README or on another page."""
    others = [other for other in PAGES if other != page]
    files: dict[str, str] = {}
    for source in (*reversed(others), page):  # the README is the first of PAGES, so it wins over the other pages
        files.update({block.name: block.text for block in blocks(source) if block.name})
    return files | {name: files[model] for name, model in LIKE.items()}


def links(page: str) -> list[tuple[str, str]]:
    """(text, target) of every link outside of blocks."""
    return _LINK.findall(prose(page))


def prose(page: str) -> str:
    """The page without its blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def code_spans(page: str) -> list[str]:
    """Everything in backticks outside of blocks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: str) -> set[str]:
    """The anchors that GitHub makes of the page's headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
