"""Text in, score out: the shipped rewards, and the checked way to call a user's own. Knows nothing of training.

Standard library only, so that any worker can import it at once.
"""

from __future__ import annotations

from reward_funcs.errors import RewardError
from reward_funcs.loader import load_reward
from reward_funcs.rehearsal import rehearse
from reward_funcs.reward_func import KNOWN_SOURCES, compute_score
from reward_funcs.score import Reward, Sample, Score, Scores, score_batch

__all__ = [
    "KNOWN_SOURCES",
    "Reward",
    "RewardError",
    "Sample",
    "Score",
    "Scores",
    "compute_score",
    "load_reward",
    "rehearse",
    "score_batch",
]
