"""Text in, score out: the shipped rewards, and the checked way to call a user's own. Knows nothing of training.

Standard library only, so that any worker can import it at once; what a reward needs beyond that it imports when used.
"""

from __future__ import annotations

from reward_funcs.build import build_reward
from reward_funcs.combined import Combined
from reward_funcs.errors import RewardError
from reward_funcs.loader import load_reward
from reward_funcs.plugins import orms
from reward_funcs.returns import Score
from reward_funcs.reward_func import KNOWN_SOURCES, compute_score
from reward_funcs.score import Reward, Sample, Scores, score_batch

__all__ = [
    "KNOWN_SOURCES",
    "Combined",
    "Reward",
    "RewardError",
    "Sample",
    "Score",
    "Scores",
    "build_reward",
    "compute_score",
    "load_reward",
    "orms",
    "score_batch",
]
