"""Reads settings out of Python text: GRPOConfig(...), GRPOTrainer(...), LoraConfig(...). Runs nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grpo.convert.arithmetic import Unreadable, value_of

LORA = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
TRAINER = {"model": "model_name_or_path", "train_dataset": "dataset_name", "eval_dataset": "eval_dataset"}
# Arguments of the trainer that hold the other calls, or objects that a run of ours makes itself.
_ELSEWHERE = (
    "args",
    "peft_config",
    "processing_class",
    "tokenizer",
    "callbacks",
    "optimizers",
    "reward_processing_classes",
)


@dataclass
class Found:
    """options: name -> value. unread: name -> the expression that only running could tell. declared: name -> default of
    fields (`group_size: int = 5`) and parameters, for code that is its own trainer."""

    options: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    declared: dict[str, Any] = field(default_factory=dict)


def read(text: str) -> Found:
    """What the text's calls set; raises SyntaxError."""
    tree = ast.parse(text)
    names: dict[str, Any] = {}
    found = Found()
    for node in ast.walk(tree):  # top to bottom within each level
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            names |= _assigned(node.targets[0].id, node.value, names)
    for name, node in _defaults(tree):
        found.declared |= _assigned(name, node, names)
    for call in _calls(tree):
        name = _called(call)
        for keyword in call.keywords:
            _take(found, name, keyword, names)
        if name == "LoraConfig":
            found.options["use_peft"] = True
    return found


def _defaults(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Annotated fields with a value, parameters with a default, and keywords of calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args]
            last = named[len(named) - len(node.defaults) :]
            yield from ((argument.arg, value) for argument, value in zip(last, node.defaults, strict=True))
            pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((argument.arg, value) for argument, value in pairs if value is not None)
        elif isinstance(node, ast.Call):
            yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg is not None)


def _assigned(name: str, node: ast.expr, names: dict[str, Any]) -> dict[str, Any]:
    """`name` with its value, where that can be read: a literal, arithmetic, or load_dataset("NAME")."""
    try:
        return {name: _value(node, names)}
    except Unreadable:
        return {}


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Call) and _called(node) in ("load_dataset", "from_pretrained") and node.args:
        return value_of(node.args[0], names)
    return value_of(node, names)


def _take(found: Found, call: str, keyword: ast.keyword, names: dict[str, Any]) -> None:
    if keyword.arg is None:
        found.unread[f"**{ast.unparse(keyword.value)}"] = f"**{ast.unparse(keyword.value)}"
        return
    renamed = {"LoraConfig": LORA, "GRPOTrainer": TRAINER}.get(call, {})
    name = renamed.get(keyword.arg, keyword.arg)
    if call == "GRPOTrainer" and keyword.arg in _ELSEWHERE:
        return
    if name == "reward_funcs":
        functions = keyword.value.elts if isinstance(keyword.value, ast.List) else [keyword.value]
        found.options[name] = [_function(node) for node in functions]
        return
    try:
        found.options[name] = _value(keyword.value, names)
    except Unreadable as expression:
        found.unread[name] = str(expression)


def _function(node: ast.expr) -> str:
    """A reward as the text names it: accuracy_reward, "org/reward-model", get_soft_overlong_punishment."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return _called(node) if isinstance(node, ast.Call) else ast.unparse(node)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (
            _called(node) in ("GRPOTrainer", "LoraConfig") or _called(node).endswith(("GRPOConfig", "GRPO"))
        ):
            yield node


def _called(node: ast.Call) -> str:
    """`trl.GRPOConfig(...)` -> GRPOConfig."""
    return ast.unparse(node.func).rpartition(".")[2]
