"""Services that draw metrics while training runs: TensorBoard, Weights & Biases, SwanLab, MLflow, VisualDL.

A service is started on the first step, and one that fails is named once and left out: training goes on without it.
Leaves out the adapters (services.py), and `console` (live.py) and `file` (log.py), which are ours and need no package.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.metrics.safe_text import redact, visible
from grpo.metrics.services import STARTERS, Service, Target

OURS = ("console", "file")
NAMES = (*OURS, *STARTERS, "all", "none")
_IDS = "loggers.json"  # the service's own name of this run, so that a resumed run goes on in the same curve


def available(name: str) -> str | None:
    """None when the logger can be used; the pip line to install it when its package is missing. Imports nothing."""
    known = name not in STARTERS or importlib.util.find_spec(name) is not None  # modules and packages share names
    return None if known else f"pip install {name}"


def problems(names: Sequence[str]) -> list[str]:
    """What is wrong with a list of logger names, one line each with what to do; empty when nothing is."""
    lines = []
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            lines.append(f"no logger is called '{name}': {hint}There are {', '.join(NAMES)}")
        elif pip := available(name):
            lines.append(f"logger '{name}' is not installed: {pip}")
    if "none" in names and len(names) > 1:
        lines.append("logger 'none' stands alone: leave it out, or leave the others out")
    return lines


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """`names` without repetition; `all` becomes every logger that is installed, `none` nothing."""
    wanted = [*OURS, *(name for name in STARTERS if not available(name))] if "all" in names else names
    return tuple(dict.fromkeys(name for name in wanted if name != "none"))


class Services:
    """The services of one run. What one of them raises is said once, by its name, and never reaches training."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        output_dir: Path,
        project: str,
        experiment: str,
        config: Mapping[str, Any],
        resume_step: int | None,
        say: Callable[[str], None],
    ) -> None:
        self._waiting = [name for name in expand(names) if name not in OURS]
        self._started: dict[str, Service] = {}
        self._say = say
        ids = _read_ids(output_dir) if resume_step is not None else {}
        self._ids = {name: ids.get(name, secrets.token_hex(4)) for name in self._waiting}
        self._target = Target(output_dir, project, experiment, _redacted(config), "", resume_step, say)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hand one step's values to every service that still works."""
        self._start()
        for name in list(self._started):
            self._guard(name, lambda service: service.log(step, values))

    def close(self) -> None:
        """End every service; a second call does nothing."""
        for name in list(self._started):
            self._guard(name, lambda service: service.close())
            self._started.pop(name, None)
        self._waiting.clear()

    def _start(self) -> None:
        if not self._waiting:
            return
        (self._target.output_dir / _IDS).write_text(json.dumps(self._ids) + "\n", encoding="utf-8")
        while self._waiting:
            name = self._waiting.pop(0)
            if pip := available(name):
                self._say(f"logger {name}: not installed, left out; {pip}")
                continue
            target = replace(self._target, run_id=self._ids[name])
            try:
                self._started[name] = STARTERS[name](target)
            except Exception as problem:  # noqa: BLE001 - services share no type of error; it is said, by name
                self._lost(name, problem)

    def _guard(self, name: str, call: Callable[[Service], None]) -> None:
        try:
            call(self._started[name])
        except Exception as problem:  # noqa: BLE001 - as in _start
            del self._started[name]
            self._lost(name, problem)

    def _lost(self, name: str, problem: Exception) -> None:
        lines = str(problem).strip().splitlines() or [""]
        why = visible(redact(f"{type(problem).__name__}: {lines[0]}"))
        self._say(f"logger {name} failed, training goes on without it ({why}); metrics.jsonl has every value")


def _read_ids(output_dir: Path) -> dict[str, str]:
    try:
        return dict(json.loads((output_dir / _IDS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _redacted(value: Any) -> Any:
    """A configuration as plain data, without secrets in its texts."""
    if isinstance(value, Mapping):
        return {str(name): _redacted(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(one) for one in value]
    return redact(value) if isinstance(value, str) else value
