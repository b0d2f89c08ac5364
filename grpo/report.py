"""report.html: one offline page about a run. Reads what the run left in its output folder, whole or not.

Leaves out drawing (grpo/metrics/curves.py), judging (grpo/metrics/verdicts.py) and layout (report.html.j2).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo.metrics.changes import Change, most_changed, text_of
from grpo.metrics.history import History, read_history
from grpo.metrics.names import BY_NAME, PART, TABLE
from grpo.metrics.safe_text import redact, visible
from grpo.metrics.verdicts import verdicts

NAME = "report.html"
_TEMPLATE = Path(__file__).with_name("report.html.j2")
_WHEN = (("start", "at the start", "开始"), ("sft", "after SFT", "SFT 后"), ("final", "after GRPO", "GRPO 后"))
_PARTS = 12  # reward parts drawn at most
_SHOWN = 1500  # characters shown of a response
_SETTING = re.compile(r"( *)(\"[^\"]*\"|[^\s:#\"][^:]*):(?: (.*))?")  # a line of config.yaml, its comment taken off


def write_report(output_dir: str | Path, *, language: str | None = None) -> Path:
    """Write OUTPUT/report.html and return its path. Raises OSError when it cannot be written.

    language: "en" or "zh", which of the page's two languages it opens in; by default that of the environment (LANG).
    """
    folder = Path(output_dir)
    path = folder / NAME
    page = _render(_contents(folder) | {"opens_in": language or _language()})
    unfinished = path.with_name(f".{NAME}.tmp-{os.getpid()}")
    try:
        unfinished.write_bytes(page.encode("utf-8", "backslashreplace"))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _render(contents: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = lambda value: visible(redact(str(value)))
    environment.filters["number"] = _number
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(contents)


def _contents(folder: Path) -> dict[str, Any]:
    """Everything the template needs; what the run did not leave behind is empty."""
    history, summary = read_history(folder), _json(folder / "summary.json")
    split, changed = most_changed(folder)
    return {
        "title": folder.absolute().name,
        "finished": bool(summary),
        "steps": summary.get("steps") or max((s.steps[-1] for s in history.values() if s.steps), default=0),
        "summary": summary,
        "results": _results(summary, history),
        "example": _example(summary),
        "verdicts": verdicts(history),
        "labels": {metric.name: metric for metric in TABLE},
        "curves": list(_curves(history)),
        "changed": [_shown_change(change) for change in changed],
        "changed_split": split,
        "run": _json(folder / "run.json"),
        "settings": list(_settings(folder / "config.yaml")),
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _results(summary: Mapping[str, Any], history: History) -> list[dict[str, Any]]:
    """The before/after table: a row for each moment that was evaluated, by summary.json or else by the evaluations."""
    accuracy, reward = _moments(summary.get("accuracy")), _moments(summary.get("reward_mean"))
    if not accuracy and not reward:
        for found, name in ((accuracy, "val_accuracy"), (reward, "val_reward_mean")):
            values = history[name].values if name in history else []
            found |= dict(zip(("start", "final"), (values[0], values[-1]) if len(values) > 1 else values, strict=False))
    return [
        {"en": en, "zh": zh, "accuracy": accuracy.get(when), "reward": reward.get(when)}
        for when, en, zh in _WHEN
        if when in accuracy or when in reward
    ]


def _moments(values: object) -> dict[str, float]:
    return {k: v for k, v in values.items() if isinstance(v, (int, float))} if isinstance(values, dict) else {}


def _example(summary: Mapping[str, Any]) -> dict[str, str] | None:
    example = summary.get("example")
    if not isinstance(example, dict):
        return None
    return {name: _short(text_of(example.get(name, ""))) for name in ("prompt", "ground_truth", "first", "last")}


def _curves(history: History) -> Iterator[dict[str, Any]]:
    """A drawing and its caption for every metric of the table that was measured, then for the parts of the reward."""
    from grpo.metrics.curves import curve

    parts = sorted(name for name in history if name.startswith(PART) and name not in BY_NAME)[:_PARTS]
    for number, name in enumerate([*(metric.name for metric in TABLE if metric.curve), *parts]):
        series = history.get(name)
        if not series or not series.steps:
            continue
        metric = BY_NAME.get(name)
        part = name[len(PART) :]
        yield {
            "name": name,
            "metric": metric,
            "en": metric.label if metric else f"reward, part {part}",
            "zh": metric.label_zh if metric else f"奖励分量 {part}",
            "last": series.values[-1],
            "low": min(series.values),
            "high": max(series.values),
            "bad": len(series.bad),
            "svg": curve(
                f"c{number}",
                f"{name}, {len(series.steps)} values",
                series,
                spread=history.get("reward_std") if name == "reward_mean" else None,
                healthy=metric.band if metric else None,
                logarithmic=name == "kl_loss",
            ),
        }


def _shown_change(change: Change) -> dict[str, Any]:
    return {
        "prompt": _short(change.prompt),
        "ground_truth": _short(change.ground_truth),
        "gain": change.gain,
        "looks": [
            {"step": look.step, "reward": look.reward, "count": look.count, "text": _short(look.response)}
            for look in (change.first, change.last)
        ],
    }


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… (+{len(text) - _SHOWN:,})"


def _settings(path: Path) -> Iterator[tuple[str, str, str]]:
    """(dotted key, value, origin) of every value that is not the default, from the comments of config.yaml."""
    try:
        text = path.read_text(encoding="utf-8")
        yaml.safe_load(text)  # a torn or foreign file is left out whole rather than read wrongly
    except (OSError, ValueError, yaml.YAMLError):
        return
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        setting, mark, origin = line.rpartition("  # ")
        found = _SETTING.fullmatch(setting if mark else line)
        if not found:
            continue
        depth, key, value = len(found[1]), found[2].strip('"'), found[3]
        above = [one for one in above if one[0] < depth]
        if value is None:
            above.append((depth, key))
        elif mark and origin != "default":
            yield ".".join([*(name for _, name in above), key]), value, origin


def _number(value: object) -> str:
    """A number with as many digits as a reader wants; a dash for none."""
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _language() -> str:
    words: Sequence[str] = [os.environ.get(name, "") for name in ("LC_ALL", "LC_MESSAGES", "LANG")]
    return "zh" if next((word for word in words if word), "").startswith("zh") else "en"
