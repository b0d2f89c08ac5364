"""What a reward may return, what it is given, and what happens to a batch when calls fail."""

from __future__ import annotations

import functools
import math
import sys
from fractions import Fraction

import numpy as np
import pytest

from reward_funcs import Reward, RewardError, Sample, Score, load_reward, score_batch


def sample(solution: str = "5", index: int | None = None) -> Sample:
    return Sample("math", solution, "5", None if index is None else {"index": index})


def reward_returning(value: object) -> Reward:
    return Reward(lambda solution_str: value)


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        (1.0, 1.0),
        (1, 1.0),
        (True, 1.0),
        (False, 0.0),
        (-0.5, -0.5),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        ({"score": 1}, 1.0),
        ({"score": np.float32(0.5), "pred": "text"}, 0.5),
    ],
)
def test_any_finite_number_is_a_score(returned, score):
    got = reward_returning(returned)("math", "5", "5")
    assert got == Score(score, {})
    assert type(got.score) is float


def test_named_parts_are_kept_as_floats_and_text_is_left_out():
    # S2-22, S4-13
    got = reward_returning({"score": 0.75, "format": True, "length": np.int32(12), "pred": "5", "note": None})(
        "m", "", ""
    )
    assert got == Score(0.75, {"format": 1.0, "length": 12.0})


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned None .is a `return` missing"),
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        (10**400, "a reward is a finite number"),
        ("1.0", "returned '1.0' .str"),
        ("x" * 10**7, "returned 'xxx"),
        (b"1", "bytes"),
        ([1.0], "list"),
        ((1.0, {}), "tuple"),
        ({1.0}, "set"),
        ({}, "without 'score': it has nothing"),
        ({"reward": 1.0}, "without 'score': it has 'reward'"),
        ({"score": None}, "returned None"),
        ({"score": math.nan}, "returned nan"),
        ({"score": "1"}, "returned '1'"),
        ({"score": {"score": 1}}, "dict"),
        ({"score": 1.0, "format": math.nan}, "nan for the part 'format'"),
        ({"score": 1.0, "errors": 2}, "a part 'errors': reward/errors is the count of failed reward calls"),
        (Score(1.0, {"errors": 2.0}), "a part 'errors': reward/errors is the count of failed reward calls"),
        (1 + 0j, "complex"),
        (np.array([1.0]), "ndarray"),
        (np.float32("nan"), "nan"),
        (np.array("1"), "a reward is a finite number"),
        (object(), "object"),
        (float, "type"),
        ((x for x in [1.0]), "generator"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:12],
)
def test_anything_else_is_a_failed_call_told_in_one_line(returned, said):
    with pytest.raises(RewardError, match=said) as error:
        reward_returning(returned)("math", "5", "5")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_an_object_that_cannot_even_be_shown_is_a_failed_call():
    class Hostile:
        def __repr__(self) -> str:
            raise ValueError("no")

    with pytest.raises(RewardError, match="Hostile"):
        reward_returning(Hostile())("math", "5", "5")


def test_the_function_is_given_what_it_asks_for_and_nothing_else():
    # S1-17
    extra = {"index": 3}
    call = ("math", "response", "truth", extra)
    seen = []
    rewards = [
        lambda solution_str: seen.append(solution_str) or 1,
        lambda ground_truth, solution_str: seen.append((ground_truth, solution_str)) or 1,
        lambda solution_str, *, extra_info, weight=2: seen.append((solution_str, extra_info, weight)) or 1,
        lambda solution_str, **rest: seen.append((solution_str, sorted(rest))) or 1,
        lambda *everything: seen.append(everything) or 1,
        functools.partial(lambda scale, solution_str: seen.append((scale, solution_str)) or 1, 3),
        lambda: seen.append("nothing") or 1,
    ]
    for function in rewards:
        assert Reward(function)(*call).score == 1
    assert seen == [
        "response",
        ("truth", "response"),
        ("response", extra, 2),
        ("response", ["data_source", "extra_info", "ground_truth"]),
        call,
        (3, "response"),
        "nothing",
    ]


def test_an_object_with_a_call_method_is_a_reward():
    class Judge:
        def __call__(self, solution_str: str) -> float:
            return float(len(solution_str))

    assert Reward(Judge())("math", "1234", "").score == 4.0


def test_an_argument_that_nobody_passes_is_refused_before_training():
    with pytest.raises(RewardError, match=r"needs the argument 'answer'.*data_source, solution_str, ground_truth"):
        Reward(lambda answer, solution_str: 1.0)


def test_generators_and_non_functions_are_refused():
    def several(solution_str):
        yield 1.0

    async def some(solution_str):
        yield 1.0

    for function in (several, some):
        with pytest.raises(RewardError, match="yield"):
            Reward(function)
    with pytest.raises(RewardError, match="not a function"):
        Reward(3)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")  # "coroutine was never awaited"
def test_a_coroutine_that_comes_back_is_awaited_and_one_inside_a_dict_is_a_failed_call():
    async def later():
        return 0.5

    assert Reward(lambda solution_str: later())("math", "5", "5").score == 0.5
    with pytest.raises(RewardError, match="coroutine"):
        Reward(lambda solution_str: {"score": later()})("math", "5", "5")


def test_a_batch_is_scored_in_order():
    samples = [sample("5"), sample("6"), sample(r"\boxed{5}")]
    got = score_batch(load_reward(None), samples, max_errors=0)
    assert (got.scores, got.parts, got.errors, got.first_error) == ([1.0, 0.0, 1.0], [{}, {}, {}], 0, None)
    assert score_batch(load_reward(None), [], max_errors=0).scores == []


def fails_on(*bad: str) -> Reward:
    def judge(solution_str):
        if solution_str in bad:
            raise ZeroDivisionError(f"no judge for {solution_str}")
        return {"score": 1.0, "length": len(solution_str)}

    return Reward(judge)


def test_failed_calls_give_no_score_and_the_first_traceback_is_kept():
    # one of ten may fail at the default of 0.1
    got = score_batch(fails_on("3"), [sample(str(i)) for i in range(10)], max_errors=0.1)
    assert got.scores == [1.0, 1.0, 1.0, None] + [1.0] * 6
    assert got.parts[3] == {}
    assert got.parts[4] == {"length": 1.0}
    assert got.errors == 1
    assert got.first_error is not None
    assert got.first_error.splitlines()[-1] == "ZeroDivisionError: no judge for 3"
    assert "in judge" in got.first_error
    assert got.first_error.count("  File ") == 1  # the user's code, not ours around it


def test_more_failures_than_allowed_stop_the_run_with_the_first_record():
    samples = [sample(str(i), index=100 + i) for i in range(10)]
    with pytest.raises(
        RewardError, match=r"2 of 10 .*0.1 allows; the first, record 103: ZeroDivisionError: no"
    ) as error:
        score_batch(fails_on("3", "7"), samples, max_errors=0.1)
    assert "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(RewardError, match="response 3"):
        score_batch(fails_on("3"), [sample(str(i)) for i in range(10)], max_errors=0)


def test_a_reward_that_exits_or_recurses_is_a_failed_call_and_ctrl_c_is_not():
    def exits(solution_str):
        sys.exit(0)

    def recurses(solution_str):
        return recurses(solution_str)

    def interrupted(solution_str):
        raise KeyboardInterrupt

    assert score_batch(Reward(exits), [sample()], max_errors=1).scores == [None]
    got = score_batch(Reward(recurses), [sample()], max_errors=1)
    assert got.errors == 1
    assert got.first_error is not None
    assert len(got.first_error) < 5000
    with pytest.raises(KeyboardInterrupt):
        score_batch(Reward(interrupted), [sample()], max_errors=1)


def test_an_error_message_of_many_lines_becomes_one():
    def judge(solution_str):
        raise ValueError("first\nsecond\n" + "x" * 10_000)

    with pytest.raises(RewardError, match="ValueError: first second x") as error:
        score_batch(Reward(judge), [sample()], max_errors=0)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
