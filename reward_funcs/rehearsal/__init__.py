"""A reward tried on known answers before a model is loaded: does it call, does it pay what is right, and only that?

Knows rewards and nothing of training or of data files. Not imported with reward_funcs: it is needed once a run.
"""

from __future__ import annotations

from reward_funcs.rehearsal.check import line, short_check, try_out
from reward_funcs.rehearsal.findings import Finding, merged
from reward_funcs.rehearsal.tried import FULL, SHORT, Plan, Row, Tried

__all__ = ["FULL", "SHORT", "Finding", "Plan", "Row", "Tried", "line", "merged", "short_check", "try_out"]
