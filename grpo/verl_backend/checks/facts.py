"""What preflight.py must know beside the settings: the model's files, the machine, the environment. Judges nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.engine import Run
from grpo.hydra_text import read_override
from grpo.known_models import known_models
from grpo.verl_backend.installation.environment import environment_problems, find_environment, look

# A process that torchrun (or a PyTorch job of Kubernetes) has started; verl starts its own through Ray.
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
# Settings that name a port which verl or Ray opens on this machine.
PORTS = ("ray_kwargs.ray_init.dashboard_port", "ray_kwargs.ray_init.ray_client_server_port")
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM 0.24 to 0.31
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Facts:
    """Everything that is not known, or that does not matter to a plan, is None (or empty).

    gpus:          visible on this machine; no_gpu: why there are none
    model:         the contents of the model's config.json; unreadable: why it cannot be read
    known:         a part of the config.json of a well-known model of the Hub, whose folder is not here
    files:         names in the model's folder
    chat_template: whether the tokenizer has one
    parameters:    of the model
    prompts, val_prompts: how many there are to train and to evaluate on
    versions:      distribution -> version, of the environment that runs verl; broken: what is wrong with it
    lora_ranks:    that its vLLM takes
    busy_ports:    key -> (port that is in use, the next free one)
    disk:          bytes free where checkpoints go
    shared_memory: bytes free in /dev/shm
    ray:           address of a running Ray that verl would join unasked, and where that is written
    torchrun:      names of its environment variables
    """

    gpus: int | None = None
    no_gpu: str | None = None
    model: Mapping[str, Any] | None = None
    unreadable: str | None = None
    known: Mapping[str, Any] | None = None
    files: frozenset[str] | None = None
    chat_template: bool | None = None
    parameters: int | None = None
    prompts: int | None = None
    val_prompts: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    lora_ranks: tuple[int, ...] = LORA_RANKS
    busy_ports: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    disk: int | None = None
    shared_memory: int | None = None
    ray: tuple[str, str] | None = None
    torchrun: tuple[str, ...] = ()

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The model's heads and positions, under the names of config.json; empty where they are not known."""
        model = self.model or self.known or {}
        return {**model, **(model.get("text_config") or {})}


def gather(run: Run, *, here: bool) -> Facts:
    """What can be known about a run now. here: it is to start on this machine; False = it is only planned."""
    facts = of_files(run)
    if here:
        facts |= of_machine(run, os.environ) | _of_environment(run)
    return Facts(**facts)


def _of_environment(run: Run) -> dict[str, Any]:
    """The facts about the environment that would run verl, and about the GPUs."""
    device = "cpu" if run.config.trainer.device == "cpu" else "cuda"
    environment = find_environment(device)
    facts: dict[str, Any] = {}
    if device == "cuda":
        machine = look()
        facts |= {"gpus": len(machine.gpus), "no_gpu": machine.problem}
    if environment is not None:
        facts["versions"] = environment.versions
        facts["broken"] = tuple(environment_problems(environment, device))
        facts["lora_ranks"] = lora_ranks(environment.packages)
    return facts


def of_files(run: Run) -> dict[str, Any]:
    """The facts that a plan depends on: what stands in the model's folder; of a Hub name what is known of it."""
    name = str(run.config.actor_rollout_ref.model.path)
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        return {"known": known_models()[name]} if name in known_models() else {}
    files = frozenset(path.name for path in folder.iterdir())
    facts: dict[str, Any] = {"files": files}
    try:
        facts["model"] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = Path(str(run.config.actor_rollout_ref.model.tokenizer_path or folder)).expanduser()
        if tokenizer.is_dir():
            facts["chat_template"] = _has_chat_template(tokenizer)
    except (OSError, ValueError) as problem:
        facts["unreadable"] = str(problem).splitlines()[0]
        return facts
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    dtype = facts["model"].get("dtype") or facts["model"].get("torch_dtype")
    if weights and dtype in _BYTES:
        facts["parameters"] = weights // _BYTES[dtype]
    return facts


def of_machine(run: Run, environ: Mapping[str, str]) -> dict[str, Any]:
    """The facts about this machine and this process, apart from GPUs and packages."""
    existing = next(path for path in (run.output_dir, *run.output_dir.parents) if path.is_dir())
    shm = Path("/dev/shm")
    return {
        "busy_ports": {key: (port, _next_free(port)) for key, port in _ports(run).items() if not _is_free(port)},
        "disk": shutil.disk_usage(existing).free,
        "shared_memory": shutil.disk_usage(shm).free if shm.is_dir() else None,
        "ray": _running_ray(environ),
        "torchrun": tuple(name for name in TORCHRUN if environ.get(name)),
    }


def lora_ranks(packages: Path) -> tuple[int, ...]:
    """The LoRA ranks that the vLLM in this site-packages takes, read from its source; ours where it does not say."""
    source = packages / "vllm" / "config" / "lora.py"
    match = re.search(r"MaxLoRARanks = Literal\[([\d, ]+)\]", source.read_text()) if source.is_file() else None
    return tuple(map(int, match[1].split(","))) if match else LORA_RANKS


def _has_chat_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json", "chat_templates")):
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and bool(json.loads(settings.read_text(encoding="utf-8")).get("chat_template"))


def _running_ray(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """What `ray.init()` without an address would join: that of the environment, else the last one started here."""
    if address := environ.get("RAY_ADDRESS"):
        return address, "RAY_ADDRESS"
    note = Path(environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    try:
        return note.read_text(encoding="utf-8").strip(), str(note)
    except OSError:
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _next_free(port: int) -> int:
    return next(other for other in range(port + 1, 65536) if _is_free(other))


def _ports(run: Run) -> dict[str, int]:
    """The ports that the user's overrides name."""
    words = {key: read_override(run.passthrough[key])[0] for key in PORTS if key in run.passthrough}
    return {key: port for key, word in words.items() if word and isinstance(port := word.value(), int)}
