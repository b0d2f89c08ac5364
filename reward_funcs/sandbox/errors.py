"""What can go wrong with the sandbox itself. A program that fails its tests is no error."""

from __future__ import annotations

from reward_funcs.errors import RewardError


class SandboxError(RewardError):
    """A program could not be judged: no jail, a jail that broke, a machine out of resources. Mask it, never score 0."""
