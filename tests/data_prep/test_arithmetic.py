"""The demo's shipped task: right answers, an imperfect teacher, and nothing of the evaluation in the training data."""

from __future__ import annotations

import json
import re

import pytest

from data_prep.arithmetic import demonstration, sums, write
from reward_funcs import load_reward

FILES = ("arithmetic_train.json", "arithmetic_val.json", "arithmetic_demonstrations.json")


@pytest.fixture(scope="module")
def shipped(repo):
    train, val, shown = (json.loads((repo / "data_prep" / name).read_text(encoding="utf-8")) for name in FILES)
    return train, val, shown


def _pair(row):
    return frozenset(map(int, re.findall(r"\d+", row["prompt"])))


def test_the_shipped_files_are_what_the_module_writes(tmp_path, repo):
    write(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (repo / "data_prep" / name).read_bytes(), name


def test_no_pair_of_numbers_is_in_both_sets_in_either_order_or_language(shipped):
    train, val, shown = shipped
    kept_apart = {_pair(row) for row in val}
    assert len(kept_apart) == len(val) == 128
    assert not kept_apart & {_pair(row) for row in train}
    assert not kept_apart & {_pair(row) for row in shown}


@pytest.mark.slow
def test_every_truth_is_the_sum_and_scores_one_by_the_shipped_reward(shipped):  # S2-02, S2-23
    reward = load_reward(None)
    train, val, _ = shipped
    for row in [*train, *val]:
        assert int(row["ground_truth"]) == sum(map(int, re.findall(r"\d+", row["prompt"])))
        assert row["data_source"] == "math_reasoning"
        assert reward("math_reasoning", row["ground_truth"], row["ground_truth"]).score == 1.0
    chinese = sum(row["prompt"].startswith("请") for row in train)
    assert 0.4 < chinese / len(train) < 0.6  # both languages, S2-03


def test_the_teacher_drops_a_carry():
    assert demonstration(27, 15, "en", carries=True)["response"] == "7+5=12, 2+1+1=4. Answer: 42"
    assert demonstration(27, 15, "en", carries=False)["response"] == "7+5=12, 2+1=3. Answer: 32"
    assert demonstration(85, 67, "zh", carries=True)["response"] == "5+7=12, 8+6+1=15。答案：152"
    assert demonstration(12, 30, "zh", carries=False)["response"] == "2+0=2, 1+3=4。答案：42"


@pytest.mark.slow
def test_the_teacher_is_right_where_nothing_is_carried_and_seldom_elsewhere(shipped):
    train, _, shown = shipped
    reward = load_reward(None)
    truth = {row["prompt"]: row["ground_truth"] for row in train}
    right: dict[bool, list[float]] = {True: [], False: []}
    for row in shown:
        carried = sum(number % 10 for number in map(int, re.findall(r"\d+", row["prompt"]))) > 9
        right[carried].append(reward("math_reasoning", row["response"], truth[row["prompt"]]).score)
    assert set(right[False]) == {1.0}
    assert 0.25 < sum(right[True]) / len(right[True]) < 0.35  # it forgets seven times of ten


def test_all_two_digit_pairs_are_there_once():
    assert len(set(sums(1))) == len(sums(1)) == 90 * 91 // 2
