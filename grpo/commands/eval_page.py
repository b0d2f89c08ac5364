"""compare.html: what ./train.sh eval measured, and the responses of all models to a prompt side by side.

One offline page, as grpo/report.py's: no script, and nothing loaded, whatever a model wrote. Layout: eval_page.html.j2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.atomic import atomic_write
from grpo.commands.eval_numbers import ALL, Group, Line
from grpo.commands.eval_table import shown
from grpo.engine import EngineError
from grpo.metrics.safe_text import redact, visible

NAME = "compare.html"
PROMPTS = 100  # shown, those first whose responses differ most
RESPONSES = 8  # of each model to a prompt
LONGEST = 2000  # characters of a text
_TEMPLATE = Path(__file__).with_name("eval_page.html.j2")


def write_page(
    folder: Path, told: Mapping[str, Any], groups: Sequence[Group], lines: Sequence[Line], *, language: str = "en"
) -> Path:
    """Write the page and return its path. language: `en` or `zh`, in which it opens. Raises EngineError."""
    from jinja2 import Environment, StrictUndefined

    prompts = _prompts(lines, list(told["models"]))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = lambda value: visible(redact(str(value)))
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        told=told,
        tables=[_table(group) for group in groups],
        prompts=prompts[:PROMPTS],
        left_out=max(0, len(prompts) - PROMPTS),
        opens_in=language,
    )
    path = folder / NAME
    try:
        atomic_write(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}; free some space, and the same command goes on") from error
    return path


def _table(group: Group) -> dict[str, Any]:
    first = next(iter(group.by_model))
    rows = []
    for name in group.names:
        cells = [{"text": shown(name, numbers[name]), "sure": ""} for numbers in group.by_model.values()]
        for numbers in group.differences.values():
            difference = numbers[name]
            level = ("good" if difference.value > 0 else "bad") if difference.excludes_zero else ""
            neutral = name in ("length",)
            worse_when_more = name in ("truncated", "failed")
            if level and worse_when_more:
                level = "bad" if level == "good" else "good"
            cells.append({"text": shown(name, difference, difference=True), "sure": "" if neutral else level})
        rows.append({"name": name, "cells": cells})
    return {
        "title": group.data if group.data_source == ALL else f"{group.data} · {group.data_source}",
        "prompts": group.prompts,
        "heads": [*group.by_model, *(f"{label} − {first}" for label in group.differences)],
        "rows": rows,
    }


def _prompts(lines: Sequence[Line], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Each prompt with all models' responses; first those whose mean rewards differ most."""
    asked: dict[tuple[str, int], dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        asked[line["data"], line["record"]][line["model"]].append(line)
    found = []
    for (data, record), by_model in asked.items():
        means = {label: _mean(by_model[label]) for label in labels}
        known = [mean for mean in means.values() if mean is not None]
        one = by_model[labels[0]][0]
        answers = [
            {
                "label": label,
                "mean": means[label],
                "responses": [_response(line) for line in by_model[label][:RESPONSES]],
            }
            for label in labels
        ]
        found.append(
            {
                "data": data,
                "record": record,
                "prompt": _short(one["prompt"]),
                "ground_truth": _short(str(one["ground_truth"])),
                "answers": answers,
                "spread": max(known) - min(known) if known else 0.0,
            }
        )
    return sorted(found, key=lambda prompt: -prompt["spread"])


def _response(line: Line) -> dict[str, Any]:
    parts = ", ".join(f"{name} {value:.3g}" for name, value in line["parts"].items())
    return {
        "text": _short(line["response"]),
        "reward": None if line["reward"] is None else f"{line['reward']:.3g}",
        "parts": parts,
        "length": line["length"],
        "truncated": line["truncated"],
    }


def _mean(lines: Sequence[Line]) -> float | None:
    rewards = [line["reward"] for line in lines if line["reward"] is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… (+{len(text) - LONGEST:,})"
