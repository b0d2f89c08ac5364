"""What a reward of ours read out of a response and out of the truth, for the rows that a check shows.

Leaves out rewards of the user's, which tell nothing but their score.
"""

from __future__ import annotations

from reward_funcs.code_truth import read_truth
from reward_funcs.errors import RewardError
from reward_funcs.math_answer import announced_answer, final_answer
from reward_funcs.reward_func import rules_of
from reward_funcs.score import Reward, Sample
from reward_funcs.text_match import alternatives, readings

LONGEST = 60  # characters shown
_PLACES = {
    "math": "math_match.py: math_score",
    "text": "text_match.py: text_score",
    "label": "text_match.py: label_score",
    "code": "code_score.py: code_score",
}
CORRECTNESS = ("accuracy", "code", "knights_knaves")  # rewards of ours that the right answer has to satisfy


def rules_for(reward: Reward, sample: Sample) -> str | None:
    """Which rules of the shipped reward score this record; None for another reward."""
    if reward.recipe is None or reward.recipe.maker not in ("shipped", "named"):
        return None
    values = reward.recipe.values
    if reward.recipe.maker == "shipped":
        return rules_of(sample.data_source)
    if values["name"] == "accuracy":
        own = sample.ground_truth not in (None, "")
        source = values["values"].get("data_source") or sample.data_source
        return rules_of(source) or (None if own else "math")
    return "code" if values["name"] == "code" else None


def is_ours(reward: Reward) -> bool:
    """Whether it is a reward of this room, for which we answer."""
    return reward.recipe is not None and reward.recipe.maker in ("shipped", "named")


def is_correctness(reward: Reward) -> bool:
    """Whether it is one of ours that says if an answer is right: then the right answer has to score."""
    if reward.recipe is None:
        return False
    return reward.recipe.maker == "shipped" or (is_ours(reward) and reward.recipe.values["name"] in CORRECTNESS)


def scorer(reward: Reward, sample: Sample) -> str:
    """The function that scores a record, for the user: `math_match.py: math_score`, or the file and name."""
    rules = rules_for(reward, sample)
    return f"reward_funcs/{_PLACES[rules]}" if rules else reward.place


def read(rules: str | None, sample: Sample) -> str | None:
    """What was taken from the response and from the truth, None where that is not known."""
    if rules == "math":
        ours, theirs = final_answer(sample.solution), announced_answer(str(sample.ground_truth))
    elif rules in ("text", "label"):
        found = readings(sample.solution, labels=rules == "label")
        ours, theirs = (found[0] if found else ""), " | ".join(alternatives(str(sample.ground_truth)))
    else:
        return None
    return f"response read as {shown(ours)}, truth as {shown(theirs)}"


def unreadable(rules: str | None, sample: Sample) -> str:
    """Why a code record's tests cannot be read, "" when they can. Runs nothing."""
    if rules != "code":
        return ""
    try:
        read_truth(sample.ground_truth, sample.extra_info)
    except RewardError as error:
        return " ".join(str(error).split()).removeprefix("this code record's ")
    return ""


def shown(text: str) -> str:
    """A text on one line, in quotes, short."""
    text = " ".join(str(text).split())
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "...")
