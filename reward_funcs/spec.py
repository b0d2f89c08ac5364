"""Reads `accuracy,cosine:max_len=1024:min_len_value_wrong=-0.5,server:http://127.0.0.1:8731`: names and parameters.

A colon begins a parameter where `name=` follows it; other colons (of a URL) belong to the value before them. Leaves out
what the names mean.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reward_funcs.errors import RewardError

_PARAMETER = re.compile(r":(?=[A-Za-z_]\w*=)")
_OF_FILE = re.compile(r"(?P<file>.*\.py)(?::(?P<name>[A-Za-z_]\w*))?", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """name: as written. value: what follows the name's colon without a name of its own. values: name=value pairs.

    file: of `FILE.py:NAME`, which is a spec of its own kind.
    """

    text: str
    name: str
    value: str | None = None
    values: dict[str, str] = field(default_factory=dict)
    file: str | None = None


def read_specs(specs: str | Iterable[str]) -> list[Spec]:
    """The rewards of `--reward`: one text with commas, or a list of texts. Raises RewardError."""
    texts = specs.split(",") if isinstance(specs, str) else list(specs)
    return [read_spec(text.strip()) for text in texts]


def read_spec(text: str) -> Spec:
    """One reward with its parameters; raises RewardError."""
    head, *pairs = _PARAMETER.split(text)
    if not head or text.startswith(":"):
        raise RewardError(f"--reward {text!r}: no name; write NAME, NAME:parameter=value, or several with commas")
    values: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in values:
            raise RewardError(f"--reward {text}: {name} is given twice")
        values[name] = value
    if match := _OF_FILE.fullmatch(head):
        return Spec(text, match["name"] or "compute_score", None, values, match["file"])
    name, colon, value = head.partition(":")
    return Spec(text, name, value if colon else None, values)


def bound(spec: Spec, function: Callable[..., Any], *, skip: int) -> dict[str, Any]:
    """The parameters of a spec, converted to the types that `function` declares. skip: leading ones that are not its.

    Raises RewardError for an unknown one, naming the nearest, and for a value of the wrong type.
    """
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    known = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    found: dict[str, Any] = {}
    if spec.value is not None:
        first = next((p for p in known.values() if p.kind is p.POSITIONAL_OR_KEYWORD), None)
        if first is None:
            has = ", ".join(f"{name}=" for name in known) or "none"
            raise RewardError(f"--reward {spec.text}: {spec.value!r} is no parameter; {spec.name} takes: {has}")
        found[first.name] = _converted(spec, first, spec.value)
    for written, text in spec.values.items():
        name = written.removeprefix(f"{spec.name}_") if written not in known else written  # cosine_max_len, as in swift
        if name not in known:
            raise RewardError(f"--reward {spec.text}: {spec.name} has no parameter '{written}'{_hint(written, known)}")
        found[name] = _converted(spec, known[name], text)
    lacking = [p.name for p in known.values() if p.default is p.empty and p.name not in found]
    if lacking:
        shown = spec.name + (":VALUE" if known[lacking[0]].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD else "")
        raise RewardError(f"--reward {spec.text}: {spec.name} needs its {lacking[0]}; write {shown or lacking[0]}")
    return found


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name most like `name`, if any is."""
    import difflib

    close = difflib.get_close_matches(name.lower(), known, n=1)
    return close[0] if close else None


def _hint(name: str, known: dict[str, inspect.Parameter]) -> str:
    near = nearest(name, list(known))
    listed = ", ".join(known) or "none"
    return f"; did you mean {near}? It has: {listed}" if near else f"; it has: {listed}"


def _converted(spec: Spec, parameter: inspect.Parameter, text: str) -> Any:
    declared = str(parameter.annotation)
    try:
        if "bool" in declared:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if "int" in declared:
            return int(text)
        if "float" in declared:
            value = float(text)
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError(text)
            return value
    except (ValueError, KeyError):
        kind = "true or false" if "bool" in declared else "a whole number" if "int" in declared else "a number"
        raise RewardError(f"--reward {spec.text}: {parameter.name}={text} is not {kind}") from None
    return text
