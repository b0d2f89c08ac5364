r"""What counts as the right answer to a mathematical problem: a table of (response, ground truth, verdict).

The verdicts were decided by hand; where mathematicians could differ, the policy is the one that numerals.py states.
S2-23, S2-24; the classes are those in which public graders were seen to fail.
"""

from __future__ import annotations

import pytest

from reward_funcs import compute_score
from tests.reward_funcs.math_pairs import CASES, RIGHT, WRONG
from tests.reward_funcs.more_math_pairs import MORE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("response", "truth", "verdict"),
    [
        pytest.param(*case, id=f"{kind}-{i}", marks=[pytest.mark.slow] * (kind in MORE))
        for kind, cases in CASES.items()
        for i, case in enumerate(cases)
    ],
)
def test_the_verdict_is_the_one_decided_by_hand(response, truth, verdict):
    # S2-23, S2-24
    assert compute_score("math", response, truth) == verdict


@pytest.mark.slow
@pytest.mark.parametrize("truth", sorted({truth for cases in CASES.values() for _, truth, _ in cases if truth.strip()}))
def test_a_ground_truth_answers_itself(truth):
    assert compute_score("math", truth, truth) == RIGHT
    assert compute_score("math", rf"So it is \boxed{{{truth}}}.", truth) == RIGHT


def test_what_is_longer_than_two_thousand_characters_is_no_answer():
    assert compute_score("math", rf"\boxed{{{'x' * 1990}}}", "x" * 1990) == RIGHT
    assert compute_score("math", rf"\boxed{{{'x' * 2010}}}", "x" * 2010) == WRONG


@pytest.mark.parametrize(
    "truth",
    [
        "9 * 2 = <<9*2=18>>18\n#### 18",
        "9 * 2 = 18\nA: 18",
        r"so \boxed{18}",
        "答：一共18元",
        "The answer is 18 dollars.",
    ],
)
def test_a_whole_solution_may_be_the_ground_truth(truth):
    # S2-24: the answer that it announces counts, not the numbers on the way
    assert compute_score("gsm8k", "The answer is 18", truth) == RIGHT
    assert compute_score("gsm8k", "The answer is 9", truth) == WRONG
