"""Two real FSDP2 ranks (gloo, CPU) that write checkpoints in verl's layout. `python -m tests.verl_backend.fsdp_ranks`.

Each checkpoint has, beside verl's files, `full.safetensors`: the weights before they were cut, under the names that
the trained model gives them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from grpo.embedded.scratch import make_tokenizer

RANKS = 2
LAYERS = ["q_proj", "v_proj", "down_proj"]


def main(folder: Path) -> None:
    """Write every kind of checkpoint into `folder`."""
    torch.multiprocessing.spawn(_rank, args=(str(folder),), nprocs=RANKS)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    for name, (model, mesh) in _kinds().items():
        _save(Path(folder) / name / "checkpoints" / "global_step_3", model, mesh, rank)
    dist.destroy_process_group()


def _kinds() -> dict[str, tuple[Any, tuple[int, ...]]]:
    return {
        "tied": (small_model(tied=True), (2,)),
        "untied": (small_model(tied=False), (2,)),
        "replicated": (small_model(tied=False), (2, 1)),  # two copies of a model that is not cut
        "bfloat16": (small_model(tied=False).bfloat16(), (2,)),
        "lora": (with_lora(small_model(tied=True)), (2,)),
        "experts": (_experts(), (2,)),
    }


def small_model(*, tied: bool) -> PreTrainedModel:
    """A Qwen2 of 20 000 numbers, always the same, in float32."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(**_common(tied), **sizes, num_key_value_heads=1)).float()


def _experts() -> PreTrainedModel:
    torch.manual_seed(4)
    sizes = {"hidden_size": 24, "moe_intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"num_key_value_heads": 1, "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_common(False), **sizes, **more)).float()


def _common(tied: bool) -> dict[str, Any]:
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    # 259 rows do not split evenly between two ranks.
    return {"vocab_size": 259, "tie_word_embeddings": tied, "dtype": "bfloat16", **ids}


def with_lora(model: PreTrainedModel) -> Any:
    """The model as peft adapts it, with an adapter that does something."""
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=LAYERS, task_type="CAUSAL_LM"))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:  # peft begins with zeros there, which would hide a wrong merge
            torch.nn.init.normal_(weight, std=0.1)
    return adapted


def _save(step: Path, model: Any, mesh: tuple[int, ...], rank: int) -> None:
    actor = step / "actor"
    actor.mkdir(parents=True, exist_ok=True)
    full = {name: weight.clone() for name, weight in model.state_dict().items()}
    names = ("fsdp",) if len(mesh) == 1 else ("ddp", "fsdp")
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    devices = init_device_mesh("cpu", mesh, mesh_dim_names=names)
    for layer in base.model.layers:
        fully_shard(layer, mesh=devices)
    fully_shard(model, mesh=devices)
    torch.save(model.state_dict(), actor / f"model_world_size_{RANKS}_rank_{rank}.pt")
    if rank == 0:
        save_file(full, actor.parent / "full.safetensors")
        (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": RANKS}))
        base.config.dtype = "bfloat16"  # as of a downloaded model: the trainer widens the weights, not the config
        base.config.save_pretrained(actor / "huggingface")
        config = json.loads((actor / "huggingface" / "config.json").read_text())
        architecture = type(base).__name__.removeprefix("FSDP")
        more = {"architectures": [architecture], "attn_implementation": "flash_attention_2"}
        (actor / "huggingface" / "config.json").write_text(json.dumps(config | more))
        make_tokenizer("bytes", []).save_pretrained(actor / "huggingface")
        if base is not model:
            meta = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"}
            (actor / "lora_train_meta.json").write_text(json.dumps(meta))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
