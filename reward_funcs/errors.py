"""The exceptions of this room. Their text is a line for the user: what is wrong, where, what to do."""

from __future__ import annotations


class RewardError(Exception):
    """A reward cannot be loaded, called, or trusted."""


class NotScored(RewardError):
    """A reward of lists gave None for a response: it does not apply to it, and another reward may."""


class TooLate(RewardError):
    """A call that had not ended at its deadline."""


class Failed(RewardError):
    """A call that failed somewhere else (in a worker process, in one of several rewards).

    The text is the line for the user. traceback: as it was shown there.
    """

    def __init__(self, line: str, traceback: str) -> None:
        super().__init__(line)
        self.traceback = traceback
