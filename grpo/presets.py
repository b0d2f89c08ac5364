"""`--algorithm NAME`: the recipes that are an algorithm and nothing else, as a flag over all files.

A recipe that also names data, a model or rewards is for --recipe.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from grpo.config import ConfigError, read_recipe, recipe_files
from grpo.flags import nearest

_ACTOR = "actor_rollout_ref.actor"
# The keys that make an algorithm, and beginnings of such keys.
KEYS = (
    *("algorithm.", "reward.reward_kwargs.overlong_buffer_cfg.", f"{_ACTOR}.policy_loss.", f"{_ACTOR}.clip_ratio"),
    *(f"{_ACTOR}.tau_", f"{_ACTOR}.loss_", f"{_ACTOR}.use_kl_loss", f"{_ACTOR}.kl_loss_", f"{_ACTOR}.entropy_coeff"),
    *("launcher.adv_std", "launcher.clip_range_score", "launcher.normalize_", "launcher.mask_truncated"),
    *("launcher.pg_loss_coef", "launcher.update_", "launcher.ref_mixup"),
)


@cache
def algorithms() -> tuple[str, ...]:
    """Names for --algorithm."""
    return tuple(path.stem for path in recipe_files() if all(key.startswith(KEYS) for key in read_recipe(path.stem)))


def read_algorithm(name: str) -> dict[str, Any]:
    """Its keys and values; raises ConfigError that names the nearest algorithm, or says that it is a recipe."""
    if name in algorithms():
        return read_recipe(name)
    if any(path.stem == name for path in recipe_files()):
        raise ConfigError(
            f"--algorithm {name}: a recipe with more than an algorithm in it; take it with --recipe {name}"
        )
    near = nearest(name.lower().replace("-", "_").replace("++", "_plus_plus"), algorithms())
    hint = f"did you mean {near}?" if near else f"there are {', '.join(algorithms())}"
    raise ConfigError(f"--algorithm {name}: no such algorithm; {hint}")
