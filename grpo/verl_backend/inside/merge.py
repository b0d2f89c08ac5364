"""`python -m grpo.verl_backend.inside.merge ACTOR FOLDER`: verl's FSDP shards as a Hugging Face folder, and checked.

Runs in verl's environment, started by finishing/export.py, which makes the folder appear whole or not at all.
Prints a line for each stage; a problem is one line on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from grpo.verl_backend.inside import same_logits
from grpo.verl_backend.inside.lora import Lora, base_weights, find_lora, merged, write_adapter
from grpo.verl_backend.inside.model_folder import (
    copy_tokenizer,
    main_dtype,
    tied,
    without_copies,
    write_config,
    write_weights,
)
from grpo.verl_backend.inside.shards import MergeError, Weight, open_shards

SETTINGS = "huggingface"  # the folder beside the shards with config, tokenizer and chat template


def main(argv: list[str] | None = None) -> int:
    """Run one merge; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("actor", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--lora", choices=("merge", "adapter"), default="merge")
    parser.add_argument("--base", help="the model that training began from, as a folder or a Hub id")
    parser.add_argument("--initial_adapter", type=Path, help="the adapter that training began from")
    parser.add_argument("--trust_remote_code", action="store_true")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    try:
        merge(**vars(parser.parse_args(argv)))
    except MergeError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


def merge(
    actor: Path,
    folder: Path,
    *,
    dtype: str | None = None,
    lora: str = "merge",
    base: str | None = None,
    initial_adapter: Path | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Write what the shards in `actor` hold into `folder`, and compare the two. Raises MergeError."""
    weights = open_shards(actor)
    settings = actor / SETTINGS
    config = _config(settings, trust_remote_code)
    before = getattr(config, same_logits.DTYPE)
    adapter = find_lora(actor, weights, initial_adapter)
    if adapter is None and lora == "adapter":
        raise MergeError(f"{actor} was trained without LoRA: leave --lora adapter out")
    trained = main_dtype(weights)
    asked = getattr(torch, dtype) if dtype else None
    _say(f"{len(weights)} tensors in {_name(trained)}{_about(adapter)}")
    frozen = weights if adapter is None else base_weights(weights) or _of_the_base(base, weights, trust_remote_code)
    frozen, model = _fitting(frozen, config, trust_remote_code)
    if adapter is not None and lora == "adapter":
        if base is None:
            raise MergeError("which model the adapter belongs to is not known: name it with --model")
        write_adapter(folder, adapter, model, base, asked)
        _say(f"writing the adapter of {len(adapter.layers)} layers, for {base}")
    else:
        whole = frozen if adapter is None else merged(frozen, adapter, model)
        write_weights(folder, whole, model, asked, _say)
        write_config(settings, folder, model, asked or trained)
    copy_tokenizer(settings, folder)
    _say(_about_dtype(trained, asked, before))
    if missing := same_logits.memory_missing(frozen):
        _say(f"warning: the result was not compared with the trained weights: {missing}")
        return
    found = same_logits.compare(
        folder, frozen, adapter, config, asked or trained, adapter=lora == "adapter", trust=trust_remote_code
    )
    _say(_about_agreement(found))


def _config(settings: Path, trust: bool) -> Any:
    if not (settings / "config.json").is_file():
        raise MergeError(f"{settings} has no config.json, so the model that the shards belong to is unknown")
    return AutoConfig.from_pretrained(settings, trust_remote_code=trust)


def _of_the_base(base: str | None, weights: dict[str, Weight], trust: bool) -> dict[str, Weight]:
    """The frozen weights where the trainer saved the adapter alone (`save_lora_only`)."""
    if base is None:
        raise MergeError("the checkpoint has the adapter alone, and its base model is not known: name it with --model")
    try:
        config = AutoConfig.from_pretrained(base, trust_remote_code=trust)
        opener = same_logits.auto_class(config)
        model = opener.from_pretrained(base, trust_remote_code=trust, **{same_logits.DTYPE: main_dtype(weights)})
    except OSError as problem:
        reason = str(problem).splitlines()[0]
        raise MergeError(f"the checkpoint has the adapter alone, and {base} cannot be opened ({reason})") from None
    return {
        name: Weight(tensor.shape, tensor.dtype, lambda tensor=tensor: tensor)
        for name, tensor in model.state_dict().items()
    }


def _fitting(weights: dict[str, Weight], config: Any, trust: bool) -> tuple[dict[str, Weight], PreTrainedModel]:
    """`weights` without the copies that tying makes, and the (empty) model they fit to the last name and shape."""
    model = same_logits.empty_model(config, trust)
    weights, apart = without_copies(weights, model)
    if apart:
        _say(f"note: {', '.join(apart)} was trained apart from the weight it was tied to; the export unties them")
        config.tie_word_embeddings = False
        model = same_logits.empty_model(config, trust)
    described = {name: tensor.shape for name, tensor in model.state_dict().items() if name not in tied(model)}
    shapes = {name: weight.shape for name, weight in weights.items()}
    wrong = sorted(name for name in described.keys() | shapes.keys() if described.get(name) != shapes.get(name))
    if wrong:
        first = wrong[0]
        raise MergeError(
            f"the shards do not fit config.json: {first} is {list(shapes.get(first, ['absent']))} in the shards and "
            f"{list(described.get(first, ['absent']))} in the model it describes ({len(wrong)} such)"
        )
    return weights, model


def _about(adapter: Lora | None) -> str:
    if adapter is None:
        return ""
    rank, alpha = adapter.settings["r"], adapter.settings["lora_alpha"]
    return f", LoRA of rank {rank} and alpha {alpha} on {len(adapter.layers)} layers"


def _about_dtype(trained: torch.dtype, asked: torch.dtype | None, before: torch.dtype | None) -> str:
    if asked is None:
        half = "; --dtype bfloat16 halves the folder" if trained == torch.float32 else ""
        began = f" (the model that training began from: {_name(before)}{half})" if before not in (None, trained) else ""
        return f"dtype {_name(trained)}, as trained{began}"
    if asked == trained:
        return f"dtype {_name(asked)}, as asked and as trained"
    return f"dtype {_name(asked)}, as asked (trained in {_name(trained)})"


def _about_agreement(found: same_logits.Agreement) -> str:
    text = f"compared with the trained weights: logits differ by at most {found.difference:.2g} of {found.largest:.3g}"
    return text + (f"; rounding moved them by {found.rounding:.2g}" if found.rounding > found.difference else "")


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
