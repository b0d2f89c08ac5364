"""Lays the settings over each other: grpo.yaml <- recipe <- --config file <- environment <- flags <- overrides.

Each value remembers where it came from. A key that neither we nor verl know is refused with the nearest one; a key that
only verl knows is kept aside, verbatim. Whether values make sense together is rules.py's question; what the launcher
decides for the user is in defaults.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.flags import REPO, Given, nearest
from grpo.hydra_text import hydra_value
from grpo.unlisted import refused_by_verl
from grpo.values import (
    WrongKind,
    absolute,
    convert,
    defaults,
    flatten,
    groups,
    is_reference,
    kind,
    literal,
    references,
    shown,
)
from grpo.verl_backend.settings.renamed import new_name

if TYPE_CHECKING:
    from omegaconf import DictConfig

RECIPES = REPO / "recipes"
# Values that may be a file: a shipped recipe names them from the root of the checkout, wherever it is run from.
FILE_KEYS = (
    "data.train_files",
    "data.val_files",
    "launcher.sft.files",
    "launcher.data.system",
    "reward.custom_reward_function.path",
)


class ConfigError(Exception):
    """Settings that cannot be used. problems: one line each (what, where it came from, what to do).

    fix: key -> the nearest value that works, where there is one for every problem; None = leave the key out.
    """

    def __init__(self, *problems: str, fix: Mapping[str, Any] | None = None) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.fix = fix or {}


def one_fix(fixes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fixes of several problems as one, the first word for a key counting; {} where a problem has none."""
    return {key: value for fix in reversed(fixes) for key, value in fix.items()} if all(fixes) else {}


@dataclass(frozen=True)
class Settings:
    """Every key with its final value and origin.

    values, origins: dotted key -> value, where it came from. passthrough: key -> Hydra override for verl alone.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    passthrough: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def changed(self) -> list[str]:
        """Keys whose value is not the default, in the order of grpo.yaml."""
        standard = _resolved(dict(defaults()))[0]
        return [key for key, value in self.values.items() if value != standard[key]]

    def said(self, key: str) -> str:
        """`data.train_batch_size=100 (flag --train_batch_size)`."""
        return f"{key}={shown(self[key])} ({self.origins[key]})"

    def by_user(self, key: str) -> bool:
        """Whether the user set this, rather than a default, a recipe or the launcher."""
        return not ours(self.origins[key])

    def config(self) -> DictConfig:
        """The values as a read-only, struct-locked OmegaConf tree."""
        from omegaconf import OmegaConf

        plain = {key: literal(value) if isinstance(value, str) else value for key, value in self.values.items()}
        config = OmegaConf.create(_nested(plain))
        OmegaConf.set_struct(config, True)
        OmegaConf.set_readonly(config, True)
        return config


class Draft:
    """Settings while layers are laid over each other. Mistakes are collected and raised together by `settings()`."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = dict(defaults())
        self.origins: dict[str, str] = dict.fromkeys(self.raw, "default")
        self.passthrough: dict[str, str] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []

    def put(self, key: str, value: Any, origin: str) -> None:
        """Set one of our keys; the kind of its value is checked."""
        try:
            self.raw[key] = convert(key, value)
            self.origins[key] = origin
        except WrongKind as wrong:
            self.problems.append(f"{key}={shown(value)} ({origin}) {wrong}")

    def reset(self, key: str) -> None:
        """Back to what grpo.yaml says."""
        self.raw[key], self.origins[key] = defaults()[key], "default"

    def given(self, settings: Iterable[Given]) -> None:
        """Flags or environment variables: their text is taken as it is, `${` included."""
        for setting in settings:
            if setting.text is None:
                self.reset(setting.key)
            elif kind(setting.key) == "str":
                self.put(setting.key, literal(setting.text), setting.origin)
            else:
                self.put(setting.key, setting.text, setting.origin)

    def tree(self, tree: Mapping[str, Any], origin: str) -> None:
        """Nested (or dotted) keys of a recipe or a --config file."""
        for key, value in flatten(tree):
            self.key(key, value, origin)

    def key(self, key: str, value: Any, origin: str, override: str | None = None) -> None:
        """Set a key of ours, or keep verl's aside. override: how verl would be told, `++key=value` if not given."""
        if key not in defaults() and (new := new_name(key)):
            name, since = new
            self.notes.append(f"{key} ({origin}) is called {name} since verl {since}: taken as that")
            self.key(name, value, origin, override and override.replace(key, name, 1))
        elif key in defaults():
            self.put(key, value, origin)
        elif key in groups():
            if value not in (None, {}):
                first = next(name for name in defaults() if name.startswith(key + "."))
                self.problems.append(f"{key} ({origin}) is a group of keys, not a value; for example {first}=...")
        else:
            # A file cannot say `+` for "this is new on purpose", so there a key like a known one is a mistake sooner.
            likeness = 0.6 if override is None else 0.8
            self.unlisted(key, origin, override or f"++{key}={hydra_value(value, references=True)}", likeness)

    def unlisted(self, key: str, origin: str, override: str, likeness: float = 0.8) -> None:
        """A key that is not in grpo.yaml: verl's, or a mistake."""
        reason = refused_by_verl(key, added=override.startswith("+"), likeness=likeness)
        if reason is None:
            self.passthrough[key] = override
            self.origins[key] = origin
        else:
            self.problems.append(f"{key} ({origin}) {reason}")

    def settings(self) -> Settings:
        """All values resolved; raises ConfigError with everything that was wrong so far."""
        values, problems = _resolved(self.raw)
        if self.problems or problems:
            raise ConfigError(*self.problems, *(f"{key} ({self.origins[key]}) {why}" for key, why in problems.items()))
        origins = {key: _origin(key, self.raw, self.origins) for key in self.raw}
        origins.update({key: self.origins[key] for key in self.passthrough})
        return Settings(values, origins, dict(self.passthrough))


def ours(origin: str) -> bool:
    """Whether a value with this origin was chosen by us: a default, a recipe or the launcher."""
    return origin in ("default", "launcher") or origin.startswith("recipe ")


def read_recipe(name: str) -> dict[str, Any]:
    """recipes/NAME.yaml as a tree; raises ConfigError naming the nearest recipe."""
    names = [path.stem for path in recipe_files()]
    if name not in names:
        near = nearest(name, names)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(names)}"
        if Path(name).suffix in (".yaml", ".yml"):
            hint = f"a file of your own is given as --config {name}"
        raise ConfigError(f"--recipe {name}: no such recipe; {hint}")
    tree = read_yaml(RECIPES / f"{name}.yaml", said=f"recipes/{name}.yaml")
    flat = dict(flatten(tree))
    for key in FILE_KEYS:
        value = flat.get(key)
        if isinstance(value, str) and (REPO / value.partition("#")[0]).is_file():
            flat[key] = str(REPO / value)
    return flat


def recipe_files() -> list[Path]:
    """The shipped recipes."""
    return sorted(RECIPES.glob("*.yaml"))


def recipe_line(path: Path) -> str:
    """A recipe's first comment line, which says what it is for."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").rstrip() if first.startswith("#") else ""


def read_yaml(path: Path, said: str) -> dict[str, Any]:
    """A YAML file of nested keys, references kept; raises ConfigError with line and column. said: its name."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import MarkedYAMLError, YAMLError

    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ConfigError(f"{said}: cannot be read ({problem.strerror}); --config names a YAML file") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{said}: byte {problem.start} is not UTF-8; save the file as UTF-8") from None
    try:
        tree = OmegaConf.to_container(OmegaConf.create(text), resolve=False) if text.strip() else {}
    except MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{said}{where}: not YAML: {problem.problem or problem.context}") from None
    except (YAMLError, OmegaConfBaseException) as problem:
        raise ConfigError(f"{said}: not YAML: {str(problem).splitlines()[0]}") from None
    if not isinstance(tree, dict) or any(not isinstance(key, str) for key, _ in tree.items()):
        raise ConfigError(f"{said}: holds no keys; write for example `data: {{train_batch_size: 64}}`")
    return tree  # type: ignore[return-value]


def _resolved(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Every value with its references followed, and what went wrong, by key."""
    values, problems = dict(raw), {}
    waiting = [key for key, value in raw.items() if is_reference(value)]
    if not any(isinstance(value, str) and "${" in value for value in raw.values()):
        return values, problems
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    tree = OmegaConf.create(_nested(raw))
    for key, value in raw.items():
        if isinstance(value, str) and "\\${" in value:
            values[key] = OmegaConf.select(tree, key)
    for key in waiting:
        try:
            found = OmegaConf.select(tree, key, throw_on_missing=True)
            found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
            values[key] = convert(key, found)
        except WrongKind as wrong:
            problems[key] = f"points at {shown(found)}, which {wrong}"
        except OmegaConfBaseException as problem:
            problems[key] = f"{raw[key]} leads nowhere: {str(problem).splitlines()[0]}"
    return values, problems


def _origin(key: str, raw: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Where a value came from; a default that follows another key has that key's origin."""
    if origins[key] == "default":
        for reference in references(raw[key]):
            target = absolute(reference, key)
            if target in raw and _origin(target, raw, origins) != "default":
                return _origin(target, raw, origins)
    return origins[key]


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as a tree."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, name = key.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = value
    return tree
