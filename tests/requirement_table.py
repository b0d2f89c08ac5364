"""docs/requirements.md: every requirement with the tests that cite it, or with why there is none yet.

`python -m tests.requirement_table` writes the page, and takes the reason away from what is cited by now;
tests/test_requirement_table.py fails while the page is not the same. The requirements stand in tests/requirements.yaml.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parent.parent
PAGE, LIST = REPO / "docs" / "requirements.md", REPO / "tests" / "requirements.yaml"
# They speak of identities, and prove nothing.
NOT_TESTS = ("requirement_table.py", "test_requirement_table.py")
PARTS = {
    "S2": "The one-command launcher",
    "S0": "GRPO and REINFORCE++ as in PaddleNLP",
    "S1": "Summarisation with encoder-decoder models",
    "S3": "Rewards and options as in ms-swift",
    "S4": "The algorithm as in TRL",
}
_CITED = re.compile(r"\b(S[0-4])-(\d\d)(?:(?: to |\.\.|–)(?:S[0-4]-)?(\d\d))?\b")
HEAD = "\n".join(
    (
        "# What was asked for, and what proves it",
        "",
        "Every requirement with the tests that cite it: each fails when what it asks for is taken out. Where none does "
        "yet, why, and what to use instead. Written by `python -m tests.requirement_table`.",
        "",
    )
)


def requirements() -> dict[str, dict[str, Any]]:
    """Identity -> title, and `open`: why no test cites it."""
    return yaml.safe_load(LIST.read_text(encoding="utf-8"))


def identities(text: str) -> Iterator[str]:
    """Every identity in a text; `S2-04 to S2-10` is seven."""
    for part, first, last in _CITED.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{part}-{number:02d}"


def citations() -> dict[str, list[str]]:
    """Identity -> the tests that cite it, as `file::test`, or the file where it stands outside of a test."""
    found: dict[str, dict[str, None]] = {}
    for path in sorted((REPO / "tests").rglob("*.py")):
        if path.name in NOT_TESTS:
            continue
        for identity, place in _cited_in(path):
            found.setdefault(identity, {})[place] = None
    return {identity: _without_their_files(list(places)) for identity, places in found.items()}


def _without_their_files(places: list[str]) -> list[str]:
    """The places, less the files of which a test is among them."""
    files = {place.partition("::")[0] for place in places if "::" in place}
    return [place for place in places if place not in files]


def page() -> str:
    """The Markdown of docs/requirements.md."""
    cited, lines = citations(), [HEAD]
    for part, title in PARTS.items():
        lines.append(f"## {part}: {title}\n\n| | asked for | proof |\n| --- | --- | --- |")
        for identity, entry in requirements().items():
            if identity.startswith(part):
                lines.append(f"| {identity} | {entry['title']} | {_proof(identity, entry, cited)} |")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def problems() -> list[str]:
    """Requirements with neither a citation nor a reason, with both, and citations of none that exists."""
    cited, known = citations(), requirements()
    told = [f"{identity}: cited in {cited[identity][0]}, but no such requirement" for identity in cited.keys() - known]
    for identity, entry in known.items():
        if identity in cited and "open" in entry:
            told.append(f"{identity}: is cited by now; python -m tests.requirement_table takes its reason away")
        if identity not in cited and "open" not in entry:
            told.append(f"{identity}: no test cites it; write one, or say in tests/requirements.yaml why not (open:)")
    return sorted(told)


def _proof(identity: str, entry: dict[str, Any], cited: dict[str, list[str]]) -> str:
    if identity not in cited:
        return f"open: {entry.get('open', '')}"
    return "<br>".join(f"`{place}`" for place in cited[identity])


def _cited_in(path: Path) -> Iterator[tuple[str, str]]:
    """(identity, place) for all of a file; a test's decorators and docstring are its own."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(REPO).as_posix()
    lines = source.splitlines()
    owner: dict[int, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            owner |= dict.fromkeys(range(first, (node.end_lineno or first) + 1), f"{name}::{node.name}")
    for number, line in enumerate(lines, start=1):
        for identity in identities(line):
            yield identity, owner.get(number, name)


def main() -> None:
    """Write the page; reasons of what is cited by now go."""
    cited = citations()
    lines = LIST.read_text(encoding="utf-8").splitlines()
    kept = [re.sub(r', open: ".*"\}$', "}", line) if line.partition(":")[0] in cited else line for line in lines]
    LIST.write_text("\n".join(kept) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    for problem in problems():
        print(problem)
    print(f"wrote {PAGE.relative_to(REPO)}")


if __name__ == "__main__":
    main()
