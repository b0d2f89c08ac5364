"""The verl engine behind the seam: what it cannot honour, and the exact command. Leaves out how keys become overrides.

Starting verl is not in this version: `plan` gives the command to run by hand.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from grpo.engine import EngineError, Result, Run
from grpo.verl_backend.keys import VERL_VERSION
from grpo.verl_backend.overrides import overrides

LOGGERS = ("console", "file", "tensorboard", "wandb", "swanlab", "mlflow")
# Changed keys that mean nothing here: --debug's display, and the parts of a small model that this engine does not make.
_NOTHING = ("launcher.debug", "launcher.scratch.", "launcher.sft.")
_EMBEDDED = "use --engine embedded"
# key -> (whether its value can be honoured, why not and what to do)
_ONLY: dict[str, tuple[Callable[[Any], bool], str]] = {
    "launcher.repetition_penalty": (
        lambda value: value == 1,
        f"verl's sampling loop fixes it at 1; leave it out, or {_EMBEDDED}",
    ),
    "launcher.min_response_length": (
        lambda value: value == 0,
        f"verl's sampling loop has no such setting; leave it out, or {_EMBEDDED}",
    ),
    "launcher.sft.steps": (
        lambda value: value == 0,
        f"verl starts from the model as it is; name a fine-tuned one with --model, or {_EMBEDDED}",
    ),
    "launcher.drop_last": (
        bool,
        "verl always leaves the last, incomplete batch out; choose a train_batch_size that divides the prompts",
    ),
    "actor_rollout_ref.model.path": (
        lambda value: value != "scratch",
        f"verl needs a model folder or a Hub id: --model PATH, or {_EMBEDDED}",
    ),
    "actor_rollout_ref.actor.strategy": (
        lambda value: value != "megatron",
        "megatron has its own set of keys and comes with a later version; use fsdp2",
    ),
    "trainer.device": (
        lambda value: value in ("auto", "cuda"),
        f"verl trains on CUDA; {_EMBEDDED}",
    ),
    "trainer.logger": (
        lambda value: set(value) <= set(LOGGERS),
        f"verl {VERL_VERSION} writes to {', '.join(LOGGERS)} only",
    ),
}
# Groups of keys that verl still accepts from its older versions and no longer reads.
_UNREAD = ("custom_reward_function.", "reward_model.", "sandbox_fusion.")


class VerlEngine:
    """GRPO on any number of GPUs by verl (Ray, FSDP, vLLM). See grpo.engine.Engine for what each method promises."""

    name = "verl"

    def refusals(self, run: Run) -> list[str]:
        """Settings this engine cannot honour, one line each with what to do instead."""
        lines = []
        for key, (honoured, instead) in _ONLY.items():
            value = _value(run, key)
            if not honoured(value):
                lines.append(f"{key}={_shown(value)} ({run.origins.get(key, 'default')}): {instead}")
        if not run.origins.get("launcher.max_reward_errors", "default").startswith("default"):
            lines.append(
                "launcher.max_reward_errors: verl's workers do not count failed reward calls yet; leave it out, "
                f"or {_EMBEDDED}"
            )
        data = run.config.data
        if not data.filter_overlong_prompts and data.truncation != "left":
            lines.append(
                f"data.truncation={data.truncation}: verl cuts prompts that are too long on the left; set it to left, "
                "or keep data.filter_overlong_prompts=true"
            )
        if run.records is not None or run.reward is not None:
            lines.append(
                f"records and rewards made in Python do not reach verl's processes; name files, or {_EMBEDDED}"
            )
        return lines + [
            f"{key} ({run.origins.get(key, 'override')}): verl {VERL_VERSION} accepts this key and does not read it; "
            "write the key of that purpose under `reward`"
            for key in run.passthrough
            if key.startswith(_UNREAD)
        ]

    def no_effect(self, run: Run) -> list[str]:
        """Changed keys that mean nothing here: said, not refused."""
        changed = [key for key, origin in run.origins.items() if not origin.startswith("default")]
        return [key for key in changed if any(key == name or key.startswith(name) for name in _NOTHING)]

    def plan(self, run: Run) -> list[str]:
        """The command that a shell can run, one override per line."""
        lines = ["python3 -m verl.trainer.main_ppo", *(f"    {shlex.quote(word)}" for word in overrides(run))]
        return [f"{line} \\" for line in lines[:-1]] + lines[-1:]

    def train(self, run: Run) -> Result:
        """Raises EngineError: this version prints the command and does not start verl."""
        raise EngineError(
            "the verl engine arrives in a later version; `--dry_run --engine verl` prints the command to run by hand"
        )


def _value(run: Run, key: str) -> Any:
    value = OmegaConf.select(run.config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
