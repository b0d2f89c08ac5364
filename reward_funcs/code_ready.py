"""Whether programs can be run at all, asked before training: a reward that meets code on a machine without a jail.

Leaves out the reward `code` by name, which asks when it is made (accuracy.py), and functions of the user's, which tell
nothing about what they run.
"""

from __future__ import annotations

from collections.abc import Iterable

from reward_funcs.code_options import code_options
from reward_funcs.combined import Combined
from reward_funcs.reward_func import rules_of
from reward_funcs.score import Reward

_BY_THE_ANSWER = ("accuracy", "cosine")  # rewards with names that ask the shipped one whether an answer is right


def refuse_code_without_jail(reward: Reward | Combined, data_sources: Iterable[str]) -> None:
    """Raises SandboxError, one line that names what each jail lacks, when a record's program could not be judged."""
    sources = set(data_sources)
    if any(rules_of(_rules_asked(single, source) or "") == "code" for single in reward.singles for source in sources):
        from reward_funcs.code_score import refuse_without_jail

        refuse_without_jail(code_options())


def _rules_asked(reward: Reward, source: str) -> str | None:
    """The data_source by whose rules `reward` scores a record of `source`; None when it is not one of ours."""
    if reward.recipe is None:
        return None
    values = reward.recipe.values
    if reward.recipe.maker == "named" and values["name"] in _BY_THE_ANSWER:
        return values["values"].get("data_source") or source
    return source if reward.recipe.maker == "shipped" else None
