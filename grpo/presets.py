"""`--algorithm NAME`: the recipes that are an algorithm and nothing else, as a flag over all files.

A recipe that also names data, a model or rewards is for --recipe.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from grpo.config import ConfigError, Settings, read_recipe, recipe_files
from grpo.flags import nearest
from grpo.values import defaults

_ACTOR = "actor_rollout_ref.actor"
# The keys that make an algorithm, and beginnings of such keys.
KEYS = (
    *("algorithm.", "reward.reward_kwargs.overlong_buffer_cfg.", f"{_ACTOR}.policy_loss.", f"{_ACTOR}.clip_ratio"),
    *(f"{_ACTOR}.tau_", f"{_ACTOR}.loss_", f"{_ACTOR}.use_kl_loss", f"{_ACTOR}.kl_loss_", f"{_ACTOR}.entropy_coeff"),
    *("launcher.adv_std", "launcher.clip_range_score", "launcher.normalize_", "launcher.mask_truncated"),
    *("launcher.pg_loss_coef", "launcher.update_", "launcher.ref_mixup"),
)
_ESTIMATOR, _MODE, _BY_STD, _AGGREGATION = _DECISIVE = (
    *("algorithm.adv_estimator", f"{_ACTOR}.policy_loss.loss_mode", "algorithm.norm_adv_by_std_in_grpo"),
    f"{_ACTOR}.loss_agg_mode",
)


@cache
def algorithms() -> tuple[str, ...]:
    """Names for --algorithm."""
    return tuple(path.stem for path in recipe_files() if all(key.startswith(KEYS) for key in read_recipe(path.stem)))


def algorithm_name(settings: Settings) -> str:
    """What the run's algorithm is called: by --algorithm or a recipe, as long as what makes it that is unchanged; else
    by its estimator and, where that is another one than GRPO's, its loss."""
    origins = dict.fromkeys(settings.origins.values())
    for sort in ("flag --algorithm ", "recipe "):
        named = [origin.removeprefix(sort) for origin in origins if origin.startswith(sort)]
        for name in [name for name in named if name in algorithms()]:
            wanted = {key: defaults()[key] for key in _DECISIVE} | read_recipe(name)
            if all(settings[key] == wanted[key] for key in _DECISIVE):
                return name
    estimator, mode = settings[_ESTIMATOR], settings[_MODE]
    if estimator == "grpo" and not settings[_BY_STD] and settings[_AGGREGATION] == "seq-mean-token-sum-norm":
        estimator = "drgrpo"
    if mode in ("vanilla", estimator):
        return estimator
    return mode if estimator == "grpo" else f"{estimator} + {mode}"


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
