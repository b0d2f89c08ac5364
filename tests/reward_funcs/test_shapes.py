"""Functions in the shapes of verl, TRL and ms-swift, `async` or not, found by their signatures. S3-03, S1-17"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import numpy as np
import pytest

from reward_funcs import Reward, RewardError, Sample, Score
from reward_funcs.errors import NotScored, TooLate

SAMPLES = [
    Sample("math", "one", "1", {"index": 0, "level": 3}, prompt="1?"),
    Sample("qa", "three", "3", {"index": 1, "solution": "III"}, prompt="3?"),
]


def scores(function: Any, samples: list[Sample] = SAMPLES) -> list[Any]:
    return [got.score if isinstance(got, Score) else got for got in Reward(function).attempts(samples)]


def test_the_example_of_ms_swift_runs_as_it_stands():
    # S3-03
    def dummy(completions, **kwargs):
        return [1.0 if len(completion) > 1024 else 0.0 for completion in completions]

    assert scores(dummy, [Sample("m", "x" * 1024, ""), Sample("m", "x" * 1025, "")]) == [0.0, 1.0]


def test_columns_arrive_by_name_as_lists():
    # S3-03, S3-05
    seen: dict[str, Any] = {}

    def look(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [0, 1]

    assert scores(look) == [0.0, 1.0]
    assert seen == {
        "prompts": ["1?", "3?"],
        "completions": ["one", "three"],
        "ground_truth": ["1", "3"],
        "solution": ["1", "III"],  # the column, and the answer of records without one
        "data_source": ["math", "qa"],
        "index": [0, 1],
        "level": [3, None],
    }


def test_only_what_is_accepted_is_passed():
    # S1-17: completion_ids never crashed anyone here
    def narrow(completions, level, weight=2):
        return [weight if one == 3 else 0 for one in level]

    assert scores(narrow) == [2.0, 0.0]


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    def needs(completions, completion_ids):
        return [0, 0]

    (said, _) = map(str, scores(needs))
    assert "needs the column 'completion_ids'" in said
    assert "they have: completions, data_source, ground_truth, index, level, prompts, solution" in said


def test_objects_classes_methods_and_partials_have_their_shape():
    class Judge:
        def __call__(self, completions, **kwargs) -> list[int]:
            return [len(text) for text in completions]

        def one(self, solution_str):
            return len(solution_str)

    def scaled(scale, completions):
        return [scale * len(text) for text in completions]

    assert scores(Judge()) == [3.0, 5.0]
    assert scores(Judge().one) == [3.0, 5.0]
    assert scores(functools.partial(scaled, 2)) == [6.0, 10.0]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (1.0, "returned 1.0 .float.; a reward of `completions` returns a list"),
        ([1.0], "returned 1 scores for 2 completions"),
        ([1.0, 2.0, 3.0], "returned 3 scores for 2"),
        ("ab", "a list of scores"),
        ({"score": 1}, "a list of scores"),
        (None, "None .is a `return` missing"),
        (np.zeros((2, 1)), "a list of scores"),
    ],
    ids=str,
)
def test_what_is_no_list_of_scores_fails_every_response(returned, said):
    # a wrong count must not shift the scores of a batch
    got = scores(lambda completions: returned)
    assert [type(one) for one in got] == [RewardError, RewardError]
    with pytest.raises(RewardError, match=said):
        raise got[0]


@pytest.mark.parametrize("listed", [[1, 2.5], (1, 2.5), np.array([1, 2.5]), [{"score": 1}, np.float32(2.5)]], ids=str)
def test_lists_tuples_and_arrays_of_scores(listed):
    assert scores(lambda completions: listed) == [1.0, 2.5]


def test_one_bad_entry_fails_its_own_response_only():
    got = scores(lambda completions: [float("nan"), 1.0])
    assert isinstance(got[0], RewardError)
    assert got[1] == 1.0
    assert isinstance(scores(lambda completions: [None, 1.0])[0], NotScored)


def test_a_list_call_that_raises_is_tried_one_by_one_to_find_the_culprit():
    calls = []

    def picky(completions):
        calls.append(list(completions))
        return [1 / (len(text) - 3) for text in completions]

    got = scores(picky)
    assert isinstance(got[0], ZeroDivisionError)
    assert got[1] == 0.5
    assert calls == [["one", "three"], ["one"], ["three"]]


def test_async_functions_of_both_shapes():
    async def one(solution_str, ground_truth):
        await asyncio.sleep(0)
        return len(solution_str)

    async def many(completions, level):
        await asyncio.sleep(0)
        return [len(text) for text in completions]

    class Judge:
        async def __call__(self, solution_str) -> int:
            return len(solution_str)

    for function in (one, many, Judge(), functools.partial(one), lambda solution_str: one(solution_str, "")):
        assert scores(function) == [3.0, 5.0]


@pytest.mark.slow
def test_async_calls_wait_at_the_same_time_and_keep_their_order():
    async def slow(solution_str):
        await asyncio.sleep(0.3 - 0.01 * int(solution_str))
        return float(solution_str)

    began = time.monotonic()
    assert scores(slow, [Sample("m", str(i), "") for i in range(20)]) == [float(i) for i in range(20)]
    assert time.monotonic() - began < 2  # one after the other they would take 4 s


@pytest.mark.slow
def test_an_async_call_is_cancelled_at_its_deadline_and_the_others_are_not():
    async def hangs(solution_str):
        await asyncio.sleep(60 if solution_str == "three" else 0)
        return 1.0

    got = Reward(hangs).attempts(SAMPLES, timeout=0.2)
    assert got[0] == Score(1.0)
    assert isinstance(got[1], TooLate)


def test_async_rewards_keep_one_event_loop_so_that_a_client_stays_usable():
    loops = set()

    async def look(solution_str):
        loops.add(id(asyncio.get_running_loop()))
        return 1.0

    for _ in range(3):
        scores(look)
    assert len(loops) == 1


def test_async_rewards_work_where_a_loop_is_running_already():
    async def one(solution_str):
        return 1.0

    async def notebook():
        return scores(one)

    assert asyncio.run(notebook()) == [1.0, 1.0]


def test_an_async_reward_that_exits_is_a_failed_call_and_the_loop_lives_on():
    async def exits(solution_str):
        raise SystemExit(3)

    async def interrupts(solution_str):
        raise KeyboardInterrupt

    async def fine(solution_str):
        return 1.0

    assert [type(got) for got in scores(exits)] == [SystemExit, SystemExit]
    with pytest.raises(KeyboardInterrupt):
        scores(interrupts)
    assert scores(fine) == [1.0, 1.0]


def test_a_column_by_position_only_is_refused():
    def positional(completions, ground_truth, /):
        return []

    with pytest.raises(RewardError, match="by position only"):
        Reward(positional)
