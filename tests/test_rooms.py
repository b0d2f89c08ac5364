"""The rooms and who may import whom, read from every file's import statements (docs: the map in the README)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
OURS = ("grpo", "data_prep", "reward_funcs")
# Modules of grpo that make up one room together; every other module or package of grpo is a room by its own name.
TOGETHER = {
    "main": ("__main__", "api", "launch", "prompt_lengths", "repair", "plan", "batches", "final"),
    "config": (
        "flags",
        "values",
        "unlisted",
        "config",
        "overrides",
        "rules",
        "model_rules",
        "algorithm_rules",
        "presets",
        "start_from",
        "defaults",
        "resolve",
        "help",
    ),
    "run_dir": ("run_dir", "run_record"),
}
ROOM_OF = {module: room for room, modules in TOGETHER.items() for module in modules}
MAIN_MAY = {
    *("config", "run_dir", "commands", "data_prep", "reward_funcs", "engine", "report", "metrics", "atomic", "memory"),
    *(
        "embedded.engine",
        "verl_backend.engine",
        "verl_backend.installation.environment",
    ),  # the latter for --engine auto
}
MAY_IMPORT = {
    "main": MAIN_MAY,
    "commands": MAIN_MAY
    | {"launch", "repair", "batches", "embedded.talk", "embedded.probe"}
    | {"convert"}
    | {
        f"verl_backend.{name}"
        for name in ("finishing.export", "installation.environment", "failures", "running.child_log")
    },
    # resolve.py reads a stored run for a bare --resume; the keys that verl knows are a list, not the engine.
    "config": {"verl_backend.settings.keys", "verl_backend.settings.renamed", "run_dir", "hydra_text"},
    "run_dir": {"config", "atomic", "hydra_text"},
    # The keys that verl knows, and their older names, are lists.
    "convert": {"config", "hydra_text", "verl_backend.settings.keys", "verl_backend.settings.renamed"},
    # Of the machine it asks nvidia-smi only.
    "memory": {"config", "known_models", "verl_backend.installation.nvidia"},
    "known_models": set(),  # a table
    "engine": set(),
    "atomic": set(),
    "publish": {"atomic"},
    "hydra_text": set(),
    "algorithm": set(),
    "metrics": {"atomic"},
    "report": {"metrics", "atomic"},
    # A run ends with its report, so the engine has it written.
    "embedded": {"engine", "algorithm", "metrics", "data_prep", "reward_funcs", "atomic", "publish", "report"},
    "verl_backend": {"engine", "known_models", "metrics", "reward_funcs", "atomic", "publish", "hydra_text", "report"},
    # What runs inside verl's own processes and environment: it may see the rewards, and nothing of the launcher.
    "verl_inside": {"reward_funcs", "atomic"},
    "data_prep": set(),
    "reward_funcs": {"reward_models"},
    "reward_models": {"reward_funcs"},  # rewards that are models: the only ones with torch, and only when asked for
}
# Heavy or foreign packages, and the only rooms that may name them at all.
HEAVY = {
    "torch": {"algorithm", "embedded", "verl_inside", "reward_models"},
    "transformers": {"embedded", "verl_inside", "reward_models"},
    "verl": {"verl_inside"},  # runs as a subprocess
    "vllm": {"verl_inside"},
    "ray": {"verl_inside"},
    "matplotlib": {"report", "metrics"},
    "omegaconf": {"main", "config", "run_dir", "engine", "embedded", "verl_backend", "commands"},
    "hydra": {"hydra_text", "config", "verl_backend"},
    "trl": set(),
}


def python_files() -> list[Path]:
    return sorted(path for name in OURS for path in (REPO / name).rglob("*.py") if "__pycache__" not in path.parts)


def room_of(module: str) -> str:
    """`grpo.embedded.loop` -> `embedded`, `grpo.flags` -> `config`, `data_prep.convert` -> `data_prep`."""
    parts = module.split(".")
    if parts[:2] == ["reward_funcs", "models"]:
        return "reward_models"
    if parts[0] != "grpo":
        return parts[0]
    if parts[1:3] == ["verl_backend", "inside"]:
        return "verl_inside"
    return ROOM_OF.get(parts[1], parts[1]) if len(parts) > 1 else "grpo"


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, inside functions too; `from x import y` as x.y where that is one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = REPO.joinpath(*node.module.split("."), alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def wrong_arrows(module: str, imported: list[str]) -> list[str]:
    """What `module` imports against the map."""
    room, wrong = room_of(module), []
    for name in imported:
        top = name.split(".")[0]
        if top in HEAVY and room not in HEAVY[top]:
            wrong.append(f"{module} imports {top}, which only {', '.join(sorted(HEAVY[top])) or 'nobody'} may")
        if top not in OURS:
            continue
        target = room_of(name)
        inside = name.removeprefix("grpo.")
        if target not in (room, "grpo") and target not in MAY_IMPORT[room] and inside not in MAY_IMPORT[room]:
            wrong.append(
                f"{module} imports {name}: {room} may import {', '.join(sorted(MAY_IMPORT[room])) or 'nothing'}"
            )
    return wrong


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(REPO)))
def test_no_file_imports_against_the_map(path: Path):
    module = ".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")
    assert wrong_arrows(module, list(imports(path))) == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("grpo.embedded.loop", "grpo.verl_backend.settings.keys"),
        ("grpo.verl_backend.engine", "grpo.embedded.engine"),
        ("grpo.launch", "grpo.embedded.loop"),
        ("grpo.launch", "grpo.algorithm"),
        ("grpo.flags", "grpo.engine"),
        ("grpo.report", "data_prep.records"),
        ("data_prep.convert", "reward_funcs"),
        ("data_prep.convert", "grpo.flags"),
        ("reward_funcs.score", "grpo.config"),
        ("reward_funcs.score", "torch"),
        ("grpo.launch", "torch.nn"),
        ("grpo.verl_backend.engine", "verl.utils"),
    ],
)
def test_the_map_forbids(module: str, imported: str):
    assert len(wrong_arrows(module, [imported])) == 1


def test_every_room_is_on_the_map():
    modules = [".".join(path.relative_to(REPO).with_suffix("").parts) for path in python_files()]
    rooms = {room_of(module.removesuffix(".__init__")) for module in modules} - {"grpo"}
    assert rooms <= set(MAY_IMPORT)


def test_no_file_is_longer_than_a_reader_can_hold():
    long = {str(path.relative_to(REPO)): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: lines for name, lines in long.items() if lines > 300} == {}


def test_help_and_a_dry_run_import_nothing_heavy(tmp_path: Path):
    """--help answers without even OmegaConf; a dry run without torch, pyarrow or a drawing library."""
    program = """
import sys
from grpo.__main__ import main
assert main(["--help"]) == 0
heavy = {"torch", "transformers", "omegaconf", "hydra", "pyarrow", "rich", "matplotlib", "numpy"} & set(sys.modules)
assert not heavy, heavy
assert main(["--dry_run", "data.seed=3"]) == 0
heavy = {"torch", "transformers", "pyarrow", "rich", "matplotlib", "numpy", "datasets"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(REPO)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []  # a dry run writes nothing
