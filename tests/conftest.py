"""What every test may ask for, and the clean environment each one runs in. Fixtures of one room live with that room."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

REPO = Path(__file__).resolve().parent.parent

# Before any test imports a library that reads them: no test reaches a hub, and a machine's idle GPU changes nothing.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the embedded engine does for itself


def _our_environment_names() -> list[str]:
    """Every environment variable that sets a key (`ROLLOUT_N`, ...), as configs/flags.yaml lists them."""
    groups = yaml.safe_load((REPO / "configs" / "flags.yaml").read_text(encoding="utf-8"))
    return [flag["env"] for group in groups for flag in group["flags"].values() if "env" in flag]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own `SEED=7` must not decide a test; ./train.sh runs with the Python that runs the tests."""
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRPO_PYTHON", sys.executable)


_NAMES = _our_environment_names()


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return REPO


@pytest.fixture(scope="session")
def missing() -> Callable[[str], NoReturn]:
    """`missing("what is not here; how to get it")`: skips on a developer's machine, fails in CI, where all must run."""

    def stop(reason: str) -> NoReturn:
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"CI runs every test, but: {reason}")
        pytest.skip(reason)

    return stop


@pytest.fixture(scope="session")
def shared() -> Path:
    """The optional folder `shared` beside the checkout (GSM8K files); skips where there is none."""
    folder = REPO.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip(f"no folder {folder} with the GSM8K files")
    return folder


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory whose path has a space and Chinese characters, as a user's may."""
    folder = tmp_path / "工作 目录"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` are skipped where there is no CUDA device."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
