"""The algorithm for verl: what it has under other names, what it would pass over in silence, and what it does not have.

Leaves out the keys that it shares with us: overrides.py says those as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from omegaconf import OmegaConf

from grpo.engine import Run
from grpo.verl_backend.settings.reward_settings import MANAGER, uses_v1

OVERLONG, FILTER = "reward.reward_kwargs.overlong_buffer_cfg", "algorithm.filter_groups"
WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo")
_EMBEDDED = "leave it out, or use --engine embedded"
# launcher key -> (whether its value is what verl does, what verl does)
_ONLY: dict[str, tuple[Callable[[Any], bool], str]] = {
    "adv_std": (lambda value: value == "unbiased", "verl divides by the unbiased deviation, 1/(n-1)"),
    "clip_range_score": (lambda value: value is None, "verl has no limit for rewards; limit them in --reward_func"),
    "normalize_reward": (lambda value: not value, "verl does not normalise rewards over the batch"),
    "mask_truncated": (lambda value: not value, "verl trains on responses that were cut, too"),
    "pg_loss_coef": (lambda value: value == 1, "verl has no weight for the policy loss; change those beside it"),
    "update_old_after": (lambda value: value == 1, "verl samples from the newest weights"),
    "update_ref_after": (lambda value: value == 0, "verl keeps its reference to the end"),
}


def unsaid(run: Run) -> tuple[str, ...]:
    """Beginnings of keys that verl is not told, since they are off."""
    config = run.config
    off = [] if config.reward.reward_kwargs.overlong_buffer_cfg.enable else [f"{OVERLONG}."]
    return (*off, *([] if config.algorithm.filter_groups.enable else [f"{FILTER}."]))


def settings(run: Run) -> Iterator[tuple[str, Any]]:
    """(verl's key, value) of the length penalty, which verl has in a reward manager of its own."""
    overlong, longest = run.config.reward.reward_kwargs.overlong_buffer_cfg, run.config.data.max_response_length
    if overlong.enable:
        yield f"{MANAGER}.name", "dapo"
        yield f"{OVERLONG}.len", overlong.len or max(1, longest // 5)
        yield f"{OVERLONG}.log", True  # read without a default
        yield "reward.reward_kwargs.max_resp_len", longest


def refusals(run: Run) -> list[str]:
    """What verl does not have, one line each with what to do instead."""
    config, lines = run.config, []

    def said(key: str) -> str:
        value = OmegaConf.select(config, key)
        shown = str(value).lower() if isinstance(value, bool) else value
        return f"{key}={shown} ({run.origins.get(key, 'default')})"

    for name, (honoured, instead) in _ONLY.items():
        if not honoured(config.launcher[name]):
            lines.append(f"{said(f'launcher.{name}')}: {instead}; {_EMBEDDED}")
    estimator, whitens = config.algorithm.adv_estimator, config.launcher.normalize_advantage
    if whitens is not None and whitens != (estimator in WHITENED):
        does = "always" if estimator in WHITENED else "never"
        lines.append(
            f"{said('launcher.normalize_advantage')}: verl {does} whitens the advantages of {estimator}; {_EMBEDDED}"
        )
    estimator_said = said("algorithm.adv_estimator")
    if estimator in ("gdpo", "remax") and uses_v1(run):
        lacks = "the parts of the reward" if estimator == "gdpo" else "the greedy response"
        lines.append(f"{estimator_said}: verl's V1 trainer does not hand {lacks} on to it; add trainer.use_v1=False")
    if estimator == "gdpo" and not config.algorithm.gdpo_reward_keys:
        lines.append(f"{estimator_said}: verl wants the parts by name: algorithm.gdpo_reward_keys=[a,b]; name them")
    if config.algorithm.filter_groups.enable and not uses_v1(run):
        lines.append(
            f"{said(f'{FILTER}.enable')}: only verl's V1 trainer samples again; leave out trainer.use_v1=False"
        )
    manager = run.passthrough.get(f"{MANAGER}.name", "=dapo").rpartition("=")[2].strip("'\"")
    if config.reward.reward_kwargs.overlong_buffer_cfg.enable and manager != "dapo":
        lines.append(f"{said(f'{OVERLONG}.enable')}: verl's manager {manager} has no such penalty; set it to dapo")
    return lines
