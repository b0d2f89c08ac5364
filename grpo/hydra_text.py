"""Trees of settings as dotted keys, and values as texts in Hydra's override grammar, written and read.

Imports Hydra only where a text is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_PLAIN_TEXT = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)  # needs no quotes in Hydra's grammar
_NOT_TEXT = {"null", "true", "false", "inf", "nan"}


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf of nested dicts, in order; lists and empty dicts are values."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def hydra_value(value: Any, *, references: bool = False) -> str:
    """A value in Hydra's override grammar that arrives as it is, whatever characters it has.

    references: `${key}` in a text is a reference, to be followed where it arrives; otherwise it is text like any other.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "True", False: "False"}[value]
    if isinstance(value, str):
        return value if _PLAIN_TEXT.fullmatch(value) and value.lower() not in _NOT_TEXT else _quoted(value, references)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(item, references=references)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_value(item, references=references) for item in value) + "]"
    return repr(value)


def cut(word: str) -> tuple[str, str, str | None]:
    """Sign, key and text of an override `[+|++|~]key[=text]`; the text is None where there is no `=`."""
    match = re.fullmatch(r"(~|\+{0,2})([^=]*)(?:=(.*))?", word, re.DOTALL)
    assert match is not None
    return match[1], match[2].strip(), match[3]


def read_override(word: str) -> tuple[Override | None, str]:
    """Hydra's reading of an override, or None and what it did not like, in one line."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(word), ""
    except HydraException as problem:
        return None, f"{str(problem).splitlines()[0]}; quote the value: 'key=\"value\"'"


def _quoted(text: str, references: bool) -> str:
    # OmegaConf would follow `${`; to Hydra a backslash counts only before a quote and at the end.
    if not references:
        text = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)
    text = re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
    return f'"{text}"'
