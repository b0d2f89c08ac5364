"""As much of well-known models' config.json as counts (known_models.yaml): of Hub names whose folder is not here.

Shared by the plan of memory and by the checks before a start; judges nothing and opens no folder.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("known_models.yaml")


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """Hub id -> a part of its config.json."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    models = yaml.load(FILE.read_text(encoding="utf-8"), Loader=loader)
    return {
        name: {key: value for key, value in model.items() if key != "names"}
        for model in models
        for name in model["names"]
    }
