"""From the command line and the environment to settings: the layers in their order, the demo, a bare --resume.

Reads no data and loads no reward (launch.py does).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo import defaults, flags, overrides, rules
from grpo.config import ConfigError, Draft, Settings, ours, read_recipe, read_yaml
from grpo.flags import CommandLine
from grpo.presets import read_algorithm
from grpo.values import flatten, is_reference, literal

OUTPUT, RESUME = "launcher.output_dir", "trainer.resume_mode"


@dataclass
class Resolved:
    """What the user asked for. draft: still open to what the launcher decides once the data is known."""

    line: CommandLine
    draft: Draft
    notes: list[str]
    recipe: str | None
    command: str

    def settings(self) -> Settings:
        """The values as they stand; raises ConfigError."""
        return self.draft.settings()


def resolve(
    line: CommandLine, environ: Mapping[str, str], *, preset: Mapping[str, Any] | None = None, sft: bool = False
) -> Resolved:
    """All layers laid over each other and checked by kind; raises ConfigError with every problem.

    preset: keys set from Python (origin "python"), over everything; sft: for ./train.sh sft, whose runs it resumes.
    """
    from_environment = flags.environment(environ)
    notes = list(line.notes)
    command = _command(line.words, from_environment, environ)
    if _is_bare_resume(line, from_environment, preset):
        return _resumed(line, command, sft=sft)
    recipes = list(line.recipes)
    draft = _layers(recipes, line, environ, preset or {})
    if defaults.wants_demo(draft) and not draft.problems:
        notes.append(defaults.demo_note(recipes))
        recipes = [defaults.DEMO, *recipes]
        draft = _layers(recipes, line, environ, preset or {})
    if draft.problems:
        raise ConfigError(*draft.problems)
    notes += [*draft.notes, *defaults.fill(draft)]
    if from_environment:
        used = [given for given in from_environment if draft.origins[given.key] == given.origin]
        names = dict.fromkeys(given.origin.removeprefix("env ") for given in used)
        if names:
            notes.append("from the environment: " + ", ".join(f"{name}={environ[name].strip()}" for name in names))
    return Resolved(line, draft, notes, " + ".join([*recipes, *line.algorithms]) or None, command)


def checked(resolved: Resolved, *, own_reward: bool = False) -> Settings:
    """The settings, once the rules have passed them; warnings go to the notes. Raises ConfigError."""
    settings = resolved.settings()
    rules.check(settings, own_reward=own_reward)
    resolved.notes += [f"warning: {warning}" for warning in rules.warnings(settings)]
    return settings


def _layers(recipes: list[str], line: CommandLine, environ: Mapping[str, str], preset: Mapping[str, Any]) -> Draft:
    """The layers in their order, each over the one before."""
    draft = Draft()
    draft.problems += line.problems
    files = [(lambda name=name: read_recipe(name), f"recipe {name}") for name in recipes]
    files += [(lambda file=file: _read_config(file), _file_origin(file)) for file in line.configs]
    _trees(draft, files)
    draft.given(flags.environment(environ))
    _trees(draft, [(lambda name=name: read_algorithm(name), f"flag --algorithm {name}") for name in line.algorithms])
    draft.given(line.given)
    overrides.apply(draft, line.overrides)
    for key, value in preset.items():
        draft.put(key, value, "python")
    return draft


def _trees(draft: Draft, files: Sequence[tuple[Callable[[], Mapping[str, Any]], str]]) -> None:
    """Lay over the draft what each file holds, by its origin; what cannot be read is a problem of the draft."""
    for read, origin in files:
        try:
            draft.tree(read(), origin)
        except ConfigError as problem:
            draft.problems += problem.problems


def _read_config(file: str) -> dict[str, Any]:
    """A --config file; of one that a run left in its output folder, only what was decided."""
    path = Path(file).expanduser()
    tree = read_yaml(path, said=file)
    if path.name != "config.yaml" or not (path.parent / "run.json").is_file():
        return tree
    from omegaconf import OmegaConf

    # Resolved, since texts stand in it with their "${" escaped.
    resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    assert isinstance(resolved, dict)
    known = _without_followers(dict(flatten(resolved)))  # type: ignore[arg-type]
    standard, origins = Draft().settings().values, _stored_origins(path)
    left = [key for key in known if origins.get(key) == "default" and known[key] == standard.get(key)]
    return {key: value for key, value in known.items() if key not in left}


def _file_origin(file: str) -> str:
    """The file's name as its values' origin; never one that would be taken for ours."""
    return f"./{file}" if ours(file) else file


def _is_bare_resume(line: CommandLine, from_environment: list[flags.Given], preset: Mapping[str, Any] | None) -> bool:
    """`--resume` with nothing beside it but the output folder: the run in it goes on with its own settings."""
    resume = [given for given in line.given if given.key == RESUME]
    others = [given for given in line.given if given.key not in (RESUME, OUTPUT)]
    files = [*line.recipes, *line.configs, *line.algorithms]
    alone = not (others or line.overrides or files or line.problems or preset)
    named = any(given.key != OUTPUT for given in from_environment)
    return bool(resume) and resume[-1].text == "auto" and alone and not named


def _resumed(line: CommandLine, command: str, *, sft: bool) -> Resolved:
    from grpo.run_dir import stored_config
    from grpo.run_record import flat, read_run_json

    draft = Draft()
    draft.given(line.given)
    folder = str(draft.raw[OUTPUT])
    stored = stored_config(folder)
    if stored is None:
        raise ConfigError(f"--resume: {folder} holds no unfinished run; --output_dir names the folder of one")
    of_sft = str((read_run_json(Path(folder) / "run.json") or {}).get("command", "")).startswith("./train.sh sft ")
    if of_sft != sft:
        other = "./train.sh sft" if of_sft else "./train.sh"
        raise ConfigError(
            f"--resume: the run in {folder} goes on with {other} --resume --output_dir {shlex.quote(folder)}"
        )
    origins = _stored_origins(Path(folder) / "config.yaml")
    for key, value in _without_followers(flat(stored)).items():
        if key not in (OUTPUT, RESUME):
            draft.put(key, value, origins.get(key, f"{folder}/config.yaml"))
    recipes = dict.fromkeys(
        origin.removeprefix("recipe ") for origin in origins.values() if origin.startswith("recipe ")
    )
    return Resolved(line, draft, list(line.notes), " + ".join(recipes) or None, command)


def _without_followers(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored run's plain values, less those that only followed another: with the other they are to change again."""
    known = {key: literal(value) if isinstance(value, str) else value for key, value in stored.items()}
    followers = {key for key in known if is_reference(Draft().raw.get(key))}
    draft = Draft()
    draft.tree({key: value for key, value in known.items() if key not in followers}, "")
    followed = draft.settings()
    return {key: value for key, value in known.items() if key not in followers or followed[key] != stored[key]}


def _stored_origins(path: Path) -> dict[str, str]:
    """Key -> origin, from the comments that run_record.config_yaml put behind each value."""
    origins: dict[str, str] = {}
    parents: list[str] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"( *)([\w-]+):(.*)$", text)
        if match:
            parents = [*parents[: len(match[1]) // 2], match[2]]
            _, mark, origin = match[3].rpartition("  # ")
            if mark:
                origins[".".join(parents)] = origin
    return origins


def _command(words: Sequence[str], from_environment: list[flags.Given], environ: Mapping[str, str]) -> str:
    """What the user typed, as a line that can be typed again."""
    names = dict.fromkeys(given.origin.removeprefix("env ") for given in from_environment)
    variables = [f"{name}={shlex.quote(environ[name])}" for name in names]
    return " ".join([*variables, "./train.sh", *map(shlex.quote, words)])
