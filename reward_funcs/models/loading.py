"""What both kinds of model need before they load: a local folder, a device, a prompt as messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reward_funcs.errors import RewardError


def local_folder(path: str, name: str) -> str:
    """The folder of a model; raises RewardError for one that is none. Nothing is downloaded by a reward."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise RewardError(f"--reward {name}:{path}: no such folder; a model for a reward is a local folder")
    if not (folder / "config.json").is_file():
        raise RewardError(f"--reward {name}:{path}: no config.json in it, so it is no model in Hugging Face's format")
    if not any(folder.glob("*.safetensors")):
        raise RewardError(
            f"--reward {name}:{path}: no *.safetensors in it; other formats can run code and are not read"
        )
    return str(folder)


def chosen_device(device: str) -> str:
    """`auto` as cuda where there is one, else cpu."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def messages_of(prompt: Any) -> list[dict[str, str]]:
    """A prompt as messages; text as the user's only one; None as no message."""
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in prompt]
