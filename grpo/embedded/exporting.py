"""`./train.sh export` of what the embedded engine trained: a checkpoint, a run's result or an adapter as a folder for
others, merged or as an adapter, in the precision asked for; opened again and compared before it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from grpo.embedded import adapter
from grpo.embedded.checkpoint import publish, write_final
from grpo.embedded.models import make_policy, read_model
from grpo.embedded.policy import Policy
from grpo.embedded.talk import model_under, open_reader
from grpo.engine import EngineError
from grpo.publish import MANIFEST, SaveError

TOLERANCE = 1e-3  # of the largest logit: float32 rounding stays far below, a wrong or missing weight far above
_TOKENS = 24


def export(
    source: Path, target: Path, *, lora: str, dtype: str | None, model: str | None, say: Callable[[str], None]
) -> Path:
    """Write the folder `target`, whole or not at all. Raises EngineError.

    lora: `merge` or `adapter`; dtype: None = as it was trained; model: what an adapter belongs to, where it is not
    what the adapter names.
    """
    transformers.utils.logging.disable_progress_bar()
    _check_target(target, source)
    base = model or model_under(str(source))
    is_adapter = (source / adapter.CONFIG).is_file() and not (source / "config.json").is_file()
    if lora == "adapter" and not is_adapter:
        raise EngineError(
            f"{source} holds a whole model, trained without LoRA or merged; --lora adapter needs the adapter: a "
            "global_step_N of a LoRA run"
        )
    policy = _opened(source, base if is_adapter else str(source))

    def write(folder: Path) -> None:
        write_final(folder, policy, lora=lora, dtype=dtype)
        say(_compared(folder, policy, base, dtype))

    try:
        return publish(target.parent, target.name, write)
    except SaveError as error:
        raise EngineError(f"{error}; {source} is untouched: free some space, or name another folder") from error


def _check_target(target: Path, source: Path) -> None:
    if target == source or target in source.parents:
        raise EngineError(f"{target} holds the checkpoint itself; name another folder with --to")
    if target.exists() and not (target / MANIFEST).is_file() and (target.is_file() or any(target.iterdir())):
        raise EngineError(f"{target} exists and is no export of ours; name a new folder with --to")


def _opened(source: Path, base: str) -> Policy:
    """The trained model in float32 on the CPU: the GPU may be training, and float32 on it is not exact."""
    tokenizer, _, _ = open_reader(str(source))
    model, adapted = read_model(base, device="cpu"), None
    if base != str(source):
        adapted = adapter.attach(model, adapter.Lora(0, 0, "", base, source), seed=0)
    return make_policy(model, tokenizer, torch.device("cpu"), torch.float32, adapted)


def _compared(folder: Path, policy: Policy, base: str, dtype: str | None) -> str:
    """A line about how near the folder's logits are. Raises EngineError where only a wrong weight explains it.

    The trained side is never rounded, so a narrower dtype is expected to differ; its weights are compared one by one.
    """
    if (folder / adapter.CONFIG).is_file():
        again: PreTrainedModel = read_model(base, device="cpu")
        adapter.attach(again, adapter.Lora(0, 0, "", base, folder), seed=0)
    else:
        again = read_model(str(folder), device="cpu")
    again.eval()
    want, got = _logits(policy.model), _logits(again)
    largest, gap = float(want.abs().max()), float((want - got).abs().max())
    if not torch.isfinite(want).all():
        raise EngineError(f"{folder}: the trained model's logits are not numbers: training diverged")
    rounded = dtype not in (None, "float32")
    if rounded:
        wrong = _other_weights(policy, again, getattr(torch, str(dtype)))
    else:
        wrong = None if gap <= TOLERANCE * largest else "its logits"
    if wrong:
        raise EngineError(f"{folder}: opened again, {wrong} are not those that were trained; please report this")
    why = f", by rounding to {dtype}" if rounded else ""
    return f"opened again: logits differ by at most {gap:.2g} of {largest:.3g}{why}"


def _other_weights(policy: Policy, again: PreTrainedModel, dtype: torch.dtype) -> str | None:
    """The name of a weight that is not the trained one, rounded; None where all are."""
    if any(".lora_" in name for name in again.state_dict()):
        state = policy.model.state_dict()
        state = {name: weight for name, weight in state.items() if ".lora_" in name}
    else:
        state = policy.model.state_dict() if policy.adapter is None else adapter.merged_state(policy.model)
    there = again.state_dict()
    return next(
        (name for name, weight in state.items() if not torch.equal(weight.to(dtype).float(), there[name].float())), None
    )


@torch.no_grad()
def _logits(model: PreTrainedModel) -> torch.Tensor:
    """What the model says of some tokens; with an encoder they are its text and the beginning of the response."""
    rows = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[arg-type]
    ids = torch.arange(1, _TOKENS + 1)[None] * 7919 % rows
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    return model(ids, **more).logits
