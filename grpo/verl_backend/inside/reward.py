"""What verl loads as `reward.custom_reward_function.path`: the shipped reward, or the user's file, through our checks.

verl executes this file by its path, under a name that cannot be imported, once in every reward worker, and calls
`compute_score` from several threads. So it keeps nothing; scoring.py does the work. Leaves out rewards that are models
(`reward.reward_model.*`): no reward gets their address.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_REPO = str(Path(__file__).resolve().parents[3])
if _REPO not in sys.path:  # so that this file works wherever it is loaded, without PYTHONPATH too
    sys.path.append(_REPO)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward: str = "{}",
    calls_folder: str | None = None,
    failed: str = "drop",
    **_given_by_verl: Any,
) -> dict[str, float]:
    """The score of one response and its parts. The keyword arguments come from `reward_kwargs`.

    reward: JSON of reward_funcs.build_reward's arguments and `timeout` (seconds for a call); {} = the shipped reward
    calls_folder: where each call is written down, for grpo/verl_backend/recording/records.py; None: nowhere
    failed: what becomes of a response whose reward fails, once that is written down. `drop` raises, and verl's V1
        trainer leaves the response out of its group, as the embedded engine does. `zero` scores 0 without parts, for
        verl's older trainer (`trainer.use_v1=False`), which an exception would end.
    """
    from grpo.verl_backend.inside.scoring import scored

    return scored(
        (data_source, solution_str, ground_truth, extra_info),
        reward=reward,
        folder=calls_folder,
        failed=failed,
    )
