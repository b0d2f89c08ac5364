"""The value that verl will have for each of its keys: ours and the user's over its defaults, references followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo.engine import Run
from grpo.hydra_text import cut, read_override
from grpo.verl_backend.settings.keys import follow, verl_keys
from grpo.verl_backend.settings.overrides import settings

BATCH, MINI = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
N = "actor_rollout_ref.rollout.n"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
ADDRESS = "ray_kwargs.ray_init.address"
ULYSSES = (
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
)


@dataclass(frozen=True)
class Effective:
    """values: verl's key -> what it will be, references as written; origins: where the ones that were set came from.

    cluster: address of the Ray to join; "local" = a new one on this machine, None or "auto" = that unless one is up.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    cluster: str | None = None

    def __getitem__(self, key: str) -> Any:
        return follow(self.values, key)

    def said(self, key: str) -> str:
        """`data.train_batch_size=100 (flag --train_batch_size)`."""
        value = self[key]
        shown = str(value).lower() if isinstance(value, bool) or value is None else str(value)
        return f"{key}={'null' if value is None else shown} ({self.origins.get(key, 'verl')})"

    @property
    def gpus(self) -> int:
        """How many there are to be on all machines; on a CPU so many processes."""
        return self[GPUS] * self[NODES]

    @property
    def ulysses(self) -> int:
        """How many GPUs share each sequence."""
        return max(self[key] for key in ULYSSES)

    @property
    def on_cpu(self) -> bool:
        """Whether verl runs on its CPU platform."""
        return self["trainer.device"] == "cpu"


def effective(run: Run) -> Effective:
    """All values of a run whose overrides verl takes (guard.py has passed them)."""
    values = dict(verl_keys()) | settings(run)
    for word in run.passthrough.values():
        sign, key, _ = cut(word)
        override, _ = read_override(word)
        if sign == "~":
            values.pop(key, None)
        elif override is not None:
            values[key] = override.value()
    return Effective(values, run.origins, values.get(ADDRESS))
