"""What is written down about a run: config.yaml (every value with its origin) and run.json (command, versions, hashes).

Leaves out where they are kept and when (grpo/run_dir.py).
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from grpo.hydra_text import leaves

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "omegaconf",
    "verl",
    "vllm",
    "ray",
)
_PLAIN = re.compile(r"[^\W\d][\w./@-]*")  # text that YAML cannot take for a number, a sign or two values
_YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "nan", "inf", "infinity"}
_SECRET_VALUE = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)|\b(?:hf_|sk-|ghp_|glpat-)[\w-]{16,}")  # user:password@, tokens
_SECRET_WORD = re.compile(r"(?i)((?:token|api_?key|passw(?:or)?d|secret)['\"]?\s*[=:]\s*)[^\s,}\]]+")


def flat(config: DictConfig) -> dict[str, Any]:
    """Dotted key -> resolved value, in the file's order; lists and empty mappings are values."""
    return dict(leaves(_plain_tree(config)))


def config_yaml(config: DictConfig, origins: Mapping[str, str]) -> str:
    """`config` resolved as nested YAML, each value followed by where it came from; `--config` reads it again."""
    lines = [
        "# The settings of a run, resolved, each with where it came from. `./train.sh --config FILE` uses them again.",
        *_yaml_lines(_plain_tree(config), origins, "", 0),
    ]
    return "\n".join(lines) + "\n"


def run_json(command: str, fingerprint: Mapping[str, str], earlier: Mapping[str, Any] | None) -> str:
    """The contents of run.json. earlier: that of the run which goes on; it keeps its start, the new one is added."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    record = {
        "launcher": "grpo",
        "command": earlier["command"] if earlier else without_secrets(command),
        "started": earlier["started"] if earlier else now,
        "resumed": [*earlier["resumed"], {"at": now, "command": without_secrets(command)}] if earlier else [],
        "python": platform.python_version(),
        "packages": _versions(),
        "fingerprint": dict(fingerprint),
        "host": _host(),
    }
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def read_run_json(path: Path) -> dict[str, Any] | None:
    """A run.json that this launcher wrote, or None where there is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("launcher") == "grpo" else None


def without_secrets(text: str) -> str:
    """`text` with passwords in addresses, access tokens and `password=...` replaced by ***."""
    return _SECRET_WORD.sub(r"\1***", _SECRET_VALUE.sub("***", text))


def _plain_tree(config: DictConfig) -> dict[Any, Any]:
    tree = OmegaConf.to_container(config, resolve=True)
    assert isinstance(tree, dict)
    return tree


def _yaml_lines(node: Mapping[Any, Any], origins: Mapping[str, str], prefix: str, depth: int) -> Iterator[str]:
    for key, value in node.items():
        start, dotted = "  " * depth + f"{_scalar(key)}:", f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield start
            yield from _yaml_lines(value, origins, f"{dotted}.", depth + 1)
        else:
            yield f"{start} {_inline(value)}  # {' '.join(origins.get(dotted, 'default').split())}"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """One YAML value on one line that OmegaConf reads back as the same value of the same type."""
    if isinstance(value, str):
        value = _SECRET_VALUE.sub("***", value)  # a prompt may speak of passwords: words are not enough
        # OmegaConf would take `${` for a reference: n backslashes before it become 2n + 1.
        value = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
        if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
            return value
        return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=10**9).rstrip("\n")
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).split("\n")[0]


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _host() -> dict[str, Any]:
    """Facts about the machine that explain a speed or a number; no name, no user, no environment."""
    facts: dict[str, Any] = {"system": platform.platform(), "machine": platform.machine(), "cpus": os.cpu_count()}
    if "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_mb"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return facts
