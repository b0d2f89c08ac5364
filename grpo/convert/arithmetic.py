"""The value of a small expression of numbers and names, read from its syntax tree; nothing is run."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST = 10**15  # more than any setting; keeps an expression from growing without end


class Unreadable(ValueError):
    """Not a value that can be read without running something; the text is the expression."""


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A literal, a name of `names`, or arithmetic of them; raises Unreadable."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [value_of(item, names) for item in node.elts]
    if isinstance(node, ast.Dict) and all(node.keys):
        keys = [value_of(key, names) for key in node.keys if key is not None]
        return dict(zip(keys, [value_of(item, names) for item in node.values], strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _combined(node, names)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(value_of(part, names)) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.format_spec is None:
        return value_of(node.value, names)
    raise Unreadable(ast.unparse(node))


def whole_number(text: str, names: Mapping[str, str]) -> int:
    """bash's `$((text))`: whole numbers, division towards zero; raises Unreadable."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        value = value_of(tree, {name: int(value) for name, value in names.items() if _is_whole(value)})
        return math.trunc(value)
    except (SyntaxError, TypeError, ValueError, OverflowError):
        raise Unreadable(f"$(({text}))") from None


def _is_whole(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal()


def _combined(node: ast.BinOp, names: Mapping[str, Any]) -> Any:
    operation = _OPERATIONS.get(type(node.op))
    if operation is None:
        raise Unreadable(ast.unparse(node))
    left, right = value_of(node.left, names), value_of(node.right, names)
    if isinstance(node.op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return left + right
    try:
        value = operation(_plain(left, node), _plain(right, node))
    except ZeroDivisionError:
        raise Unreadable(ast.unparse(node)) from None
    if abs(value) > _LARGEST:
        raise Unreadable(ast.unparse(node))
    return value


def _number(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return _plain(value_of(node, names), node)


def _plain(value: Any, node: ast.expr) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unreadable(ast.unparse(node))
    return value
