"""The one exception of this room. Its text is a line for the user: what is wrong, where, what to do."""

from __future__ import annotations


class RewardError(Exception):
    """A reward cannot be loaded, called, or trusted."""
