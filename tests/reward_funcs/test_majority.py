"""Which answer most responses give."""

from __future__ import annotations

import pytest

from reward_funcs.majority import answers, majority


def winners(source: str, responses: list[str]) -> list[int]:
    given = answers(source, responses)
    assert given is not None
    return majority(source, given)


@pytest.mark.parametrize(
    ("source", "responses", "expected"),
    [
        ("math", ["The answer is 18.", "so 20", r"\boxed{18}"], [0, 2]),
        ("gsm8k", ["#### 0.5", "#### 3", r"\boxed{\frac{1}{2}}", "#### 3", "#### 1/2"], [0, 2, 4]),
        ("math", ["#### 7", "#### 8"], [0]),  # the earliest of equals
        ("math", ["", "", "#### 8"], [2]),  # no answer is no vote
        ("math", ["", " "], []),
        ("qa", ["Paris.", "It is the city of Lyon", "<answer>paris</answer>"], [0, 2]),
        ("classification", ["label: positive", "negative", "Positive"], [0, 2]),
    ],
)
def test_the_same_answer_in_other_words_is_one_vote_more(source: str, responses: list[str], expected: list[int]):
    assert winners(source, responses) == expected


def test_a_source_of_ones_own_votes_where_answers_are_marked():
    assert winners("my_puzzles", ["<answer>left</answer>", "<answer>right</answer>", "<answer>right</answer>"]) == [
        1,
        2,
    ]
    assert answers("my_puzzles", ["left", "right"]) is None


def test_programs_have_no_majority():
    assert answers("code", ["print(1)", "print(1)"]) is None
