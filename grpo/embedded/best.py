"""checkpoints/best: the weights whose evaluation was best so far, as `final` keeps the last ones (launcher.save_best).

The evaluation before the first step does not count: those weights are where the run began from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.embedded import checkpoint

if TYPE_CHECKING:
    from grpo.embedded.session import Session

BEST = "best"


def keep_if_best(session: Session, step: int, values: Mapping[str, float]) -> None:
    """Keep the weights of `step` when its evaluation is better than all before; of equals the earlier stays.

    A folder that the disk refuses is said, and the next better evaluation tries again.
    """
    metric = session.run.config.launcher.save_best
    if metric is None or not session.world.first:
        return
    value, best = values[metric], session.outcome.best
    if not math.isfinite(value) or (best and value <= best["value"]):
        return
    found, wanted = {"metric": metric, "step": step, "value": value}, session.run.config.launcher.export

    def write(path: Path) -> None:
        checkpoint.write_final(path, session.policy, lora=wanted.lora, dtype=wanted.dtype)
        (path / checkpoint.STATE).write_text(json.dumps(found), encoding="utf-8")

    try:
        checkpoint.publish(session.checkpoints, BEST, write)
    except checkpoint.SaveError as error:
        session.progress.note(f"WARNING: {error}; training goes on without the best weights so far")
        return
    session.outcome.best = found
    session.progress.note(f"step {step}: the best {metric} so far, {value:.4g}; kept in {BEST}")
