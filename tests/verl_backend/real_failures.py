"""Failures made to happen: each call raises the error of the library itself. `name:which` where a failure has several.

Everything here runs on a CPU, without a network, in the launcher's own environment.
"""

from __future__ import annotations

import importlib
import json
import pickle
import socket
import threading
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf


def _composed(override: str) -> None:
    Path("c.yaml").write_text("data: {seed: 1, train_files: x}\n")
    with initialize_config_dir(str(Path.cwd()), version_base=None):
        compose("c", [override])


def _typed() -> None:
    from dataclasses import dataclass

    @dataclass
    class Data:
        train_batch_size: int = 1

    OmegaConf.merge(OmegaConf.structured(Data), {"train_batch_size": "abc"})


def _model(config: dict[str, Any] | None) -> str:
    folder = Path("model")
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


TINY = {"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2} | {
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "vocab_size": 9,
}


def _auto(kind: str, path: str, **kwargs: Any) -> Any:
    return getattr(importlib.import_module("transformers"), kind).from_pretrained(path, **kwargs)


def _without_template() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({"a": 0}, unk_token="a")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).apply_chat_template([{"role": "user", "content": "a"}])


def _flash_attention() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(_model(TINY))
    AutoModelForCausalLM.from_config(config, attn_implementation="flash_attention_2")


def _damaged_weights() -> None:
    from safetensors.torch import load_file

    Path("w.safetensors").write_bytes(b"\xff" * 20)
    load_file("w.safetensors")


def _damaged_checkpoint(cut: bool) -> None:
    torch.save({"a": torch.zeros(99)}, "c.pt")
    whole = Path("c.pt").read_bytes()
    Path("c.pt").write_bytes(whole[: len(whole) // 2] if cut else b"x" * 10)
    torch.load("c.pt", weights_only=False)


def _port(how: Callable[[int], Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        how(taken.getsockname()[1])


def _store(port: int) -> None:
    torch.distributed.TCPStore("127.0.0.1", port, is_master=True)


def _bind(port: int) -> None:
    with socket.socket() as another:
        another.bind(("127.0.0.1", port))


def _process_group(backend: str) -> None:
    torch.distributed.init_process_group(backend, rank=0, world_size=1, store=torch.distributed.HashStore())


def _held_memory() -> None:
    memory = SharedMemory(create=True, size=9)
    view = memory.buf[:2]
    try:
        memory.close()
    finally:
        view.release()
        memory.close()
        memory.unlink()


def _damaged_parquet() -> None:
    Path("a.parquet").write_text("no parquet at all")
    pyarrow.parquet.read_table("a.parquet")


def compute_score(text: str, truth: str) -> float:
    """A reward that takes less than it is given."""
    return float(text == truth)


def _steps_per_epoch() -> int:
    class Trainer:
        global_steps, steps_per_epoch = 0, 0

        def fit(self) -> int:
            return self.global_steps // self.steps_per_epoch

    return Trainer().fit()


def _our_reward() -> None:
    from grpo.verl_backend.inside.scoring import scored

    Path("r.py").write_text("def compute_score(*a, **k):\n    raise ValueError('no number')\n")
    scored(("math", "1", "2", {}), reward=json.dumps({"file": "r.py"}), folder=None, failed="raise")


REAL: dict[str, Callable[[], Any]] = {
    "flash_attn_missing": _flash_attention,
    "transformers_and_vllm": lambda: importlib.import_module("transformers.models.qwen99"),
    "module_missing": lambda: importlib.import_module("a_package_that_nobody_has"),
    "no_gpu": lambda: torch.zeros(1, device="cuda"),
    "no_gpu:nccl": lambda: _process_group("nccl"),
    "key_unknown": lambda: _composed("data.train_batchsize=8"),
    "key_exists": lambda: _composed("+data.seed=2"),
    "key_not_there_to_delete": lambda: _composed("~data.z"),
    "override_unreadable": lambda: _composed("data.train_files=/数据/a.parquet"),
    "override_unreadable:equals": lambda: _composed("data.train_files=x=1"),
    "override_unreadable:brace": lambda: _composed("data.train_files={"),
    "override_unreadable:bracket": lambda: _composed("data.train_files=[1,2]]"),
    "override_unreadable:no value": lambda: _composed("data.train_files"),
    "value_missing": lambda: OmegaConf.create({"name": "???"}).name,
    "wrong_type": _typed,
    "no_step_in_an_epoch": _steps_per_epoch,
    "host_memory": lambda: torch.empty(10**14),
    "duplicate_device": lambda: _process_group("cpu:gloo,cpu:gloo"),
    "not_a_number": lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1),
    "no_chat_template": _without_template,
    "tokenizer_missing": lambda: _auto("AutoTokenizer", _model({"model_type": "llama"})),
    "model_too_new": lambda: _auto("AutoConfig", _model({"model_type": "qwen99"})),
    "model_config_missing": lambda: _auto("AutoConfig", _model({})),
    "model_config_missing:file": lambda: _auto("AutoConfig", _model(None)),
    "model_weights_missing": lambda: _auto("AutoModelForCausalLM", _model(TINY)),
    "model_weights_damaged": _damaged_weights,
    "hub_offline": lambda: _auto("AutoConfig", "nobody/nothing"),
    "reward_signature": lambda: compute_score("math", "1", "1", None),
    "reward_signature:keyword": lambda: compute_score("1", "1", extra_info=None),
    "reward_signature:missing": lambda: compute_score("1"),
    "reward_raised": _our_reward,
    "cannot_pickle": lambda: pickle.dumps(lambda: 1),
    "cannot_pickle:lock": lambda: pickle.dumps(threading.Lock()),
    "data_file_missing": lambda: pyarrow.parquet.read_table("/nowhere/train.parquet"),
    "data_file_damaged": _damaged_parquet,
    "port_in_use": lambda: _port(_bind),
    "port_in_use:torch": lambda: _port(_store),
    "checkpoint_damaged": lambda: _damaged_checkpoint(cut=True),
    "checkpoint_damaged:pickle": lambda: _damaged_checkpoint(cut=False),
    "checkpoint_of_another_model": lambda: torch.nn.Linear(2, 2).load_state_dict(torch.nn.Linear(3, 3).state_dict()),
    "resume_other_world_size": lambda: torch.load("actor/model_world_size_4_rank_0.pt", weights_only=False),
    "weights_not_received": _held_memory,
}
