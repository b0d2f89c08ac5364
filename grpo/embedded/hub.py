"""Fetches a model of the Hub before it is opened: with a progress bar, and with nothing touched when it cannot be."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from grpo.engine import EngineError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
LEFT = ("*/*", "consolidated*")  # copies of the weights in other forms
PATIENCE = 10.0  # seconds for the Hub's first answer


def fetch(name: str, say: Callable[[str], None], *, code: bool = False) -> None:
    """Bring the model or tokenizer `name` into the Hub's cache, unless it is a folder or no name of the Hub.

    code: its Python files, too. What is there already is not fetched again; without a network it is enough. Weights
    that are no safetensors are left to whoever opens the model. Raises EngineError.
    """
    if Path(name).expanduser().exists() or not NAME.fullmatch(name):
        return
    import httpx
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
    from huggingface_hub.utils import enable_progress_bars

    here = isinstance(try_to_load_from_cache(name, "config.json"), str)
    if not here:
        say(f"{name} is no folder here: fetching it from the Hub")
    try:
        HfApi().model_info(name, timeout=PATIENCE)
        enable_progress_bars()  # transformers' switch for its own bars has turned these off, too
        snapshot_download(name, allow_patterns=[*WANTED, *(["*.py"] if code else [])], ignore_patterns=list(LEFT))
    except GatedRepoError:
        raise EngineError(f"{name}: this model asks for permission; accept its terms, then set HF_TOKEN") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise EngineError(
            f"{name}: no such folder here, and no such model on the Hub (or a private one: HF_TOKEN)"
        ) from None
    except (OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        reason = " ".join(str(error).split(". ")[0].split())[:200] or type(error).__name__
        if not here:
            raise EngineError(
                f"{name}: no such folder here, and it could not be fetched from the Hub ({reason}); try "
                "HF_ENDPOINT=https://hf-mirror.com, or give a local folder with --model"
            ) from error
        say(f"{name}: the Hub does not answer ({reason}); going on with what its cache holds")
        _keep_to_the_cache()


def _keep_to_the_cache() -> None:
    """Ask the Hub for nothing more: every file would be asked for again and again, for minutes."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = "1"  # of processes that this one starts, and of what is imported later
