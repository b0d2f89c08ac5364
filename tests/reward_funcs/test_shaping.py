"""Rewards of form, length and overlap: every value worked out by hand. S3-05 to S3-09, S1-12, S1-15, S1-26, S0-04"""

from __future__ import annotations

import math
from typing import Any

import pytest

from reward_funcs import RewardError, Sample, Score, build_reward


def score(spec: str, response: str, truth: Any = "42", *, length: int | None = None, **extra: Any) -> float:
    """The value of one named reward."""
    reward = build_reward(names=spec, max_response_length=100)
    got = reward.attempts([Sample("math_reasoning", response, truth, extra, length=length)])[0]
    assert isinstance(got, Score), got
    return got.score


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>6 * 7</think><answer>42</answer>", 1.0),
        ("<think>\n6 * 7\n</think>\n\n<answer>\n42\n</answer>\n", 1.0),
        ("<think></think><answer></answer>", 1.0),
        ("<think>6 * 7</think>", 0.0),
        ("<answer>42</answer>", 0.0),
        ("<answer>42</answer><think>6 * 7</think>", 0.0),
        ("Well. <think>6 * 7</think><answer>42</answer>", 0.0),
        ("<think>6 * 7</think><answer>42</answer> Bye.", 0.0),
        ("<think>6 * 7</think> so <answer>42</answer>", 0.0),
        ("<think>a</think><think>b</think><answer>42</answer>", 0.0),
        ("<think>a</think><answer>41</answer><answer>42</answer>", 0.0),
        ("<THINK>a</THINK><ANSWER>42</ANSWER>", 0.0),
        ("42", 0.0),
        ("", 0.0),
    ],
)
def test_format_pays_for_one_thought_and_one_answer_and_nothing_else(response, value):
    # S3-06
    assert score("format", response) == value


def test_format_knows_a_prompt_that_has_opened_the_thought():
    # S0-04: the prompt ends with <think>
    assert score("format:think_opened=true", "6 * 7</think><answer>42</answer>") == 1.0
    assert score("format:think_opened=true", "<think>6 * 7</think><answer>42</answer>") == 0.0


def test_the_system_prompt_that_asks_for_the_format_is_shipped(repo):
    text = (repo / "reward_funcs" / "prompts" / "think_answer.txt").read_text(encoding="utf-8")
    assert all(tag in text for tag in ("<think>", "</think>", "<answer>", "</answer>"))


@pytest.mark.parametrize(
    ("response", "length", "value"),
    [
        ("42", 0, 1.0),
        ("42", 25, 0.5 + 0.5 * (1 + math.sqrt(0.5)) / 2),  # cos 45 degrees
        ("42", 50, 0.75),
        ("42", 100, 0.5),
        ("42", 150, 0.5),  # it does not swing back beyond max_len
        ("41", 0, 0.0),
        ("41", 50, -0.25),
        ("41", 100, -0.5),
    ],
)
def test_cosine_goes_from_one_value_to_the_other(response, length, value):
    # S3-07
    assert score("cosine", response, length=length) == pytest.approx(value, abs=1e-12)


def test_cosine_the_other_way_round_pays_long_wrong_answers_more():
    # S3-08
    spec = "cosine:min_len_value_wrong=-0.5:cosine_max_len_value_wrong=0:max_len=200"
    assert score(spec, "41", length=0) == -0.5
    assert score(spec, "41", length=100) == pytest.approx(-0.25)
    assert score(spec, "41", length=200) == 0.0


def test_the_contradiction_in_cosine_is_said_once_and_only_for_the_published_numbers():
    # S3-08
    (note,) = build_reward(names="cosine:max_len=100").notes
    assert "the opposite" in note
    assert "cosine:min_len_value_wrong=-0.5:max_len_value_wrong=0" in note
    assert build_reward(names="cosine:max_len=100:min_len_value_wrong=-0.5:max_len_value_wrong=0").notes == ()


def test_a_reward_of_length_follows_the_run_or_asks_for_it():
    assert score("cosine", "42", length=100) == 0.5  # max_response_length=100 of the run
    with pytest.raises(RewardError, match="cosine:max_len=1024"):
        build_reward(names="cosine")


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("a b c a b c", -0.25),  # abc bca cab abc: 3 of 4 distinct
        ("A b c, a B c", -0.25),
        ("我爱你我爱你", -0.25),  # characters are words
        ("a a a a a a", -0.75),
        ("one two three four", 0.0),
        ("a b", 0.0),
        ("", 0.0),
    ],
)
def test_repetition_takes_the_share_of_runs_that_are_said_again(response, value):
    # S3-09
    assert score("repetition", response) == pytest.approx(value)
    assert score("repetition:max_penalty=-2", response) == pytest.approx(2 * value)


def test_repetition_of_single_words():
    assert score("repetition:n_grams=1", "a b a b") == -0.5


@pytest.mark.parametrize(("length", "value"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (130, -1)])
def test_soft_overlong_falls_straight_from_the_buffer_to_the_end(length, value):
    # S0-41, DAPO equation 13; a fifth of 100 is the buffer
    assert score("soft_overlong", "42", length=length) == value
    assert score("soft_overlong:buffer=20:penalty=0.5", "42", length=length) == value / 2


def test_without_a_count_of_tokens_words_are_counted():
    assert score("soft_overlong:max_len=4:buffer=2", "one two three") == -0.5
    assert score("soft_overlong:max_len=4:buffer=2", "一二三") == -0.5


def test_length_similarity_is_the_shorter_over_the_longer():
    # S1-15
    assert score("length_similarity", "one two", "a b c d") == 0.5
    assert score("length_similarity", "a b c d", "one two") == 0.5
    assert score("length_similarity", "<think>long long long</think> one two", "a b") == 1.0
    assert score("length_similarity", "", "a b") == 0.0
    assert score("length_similarity", "今天天气很好", "天气好") == 0.5


@pytest.mark.slow
def test_rouge_by_hand():
    # S1-12: "the cat" is shared: 2 of 3 words, 1 of 2 pairs, 2 in order
    reward = build_reward(names="rouge")
    got = reward("summary", "The cat ran.", "the cat sat")
    third = pytest.approx(2 / 3)
    assert got.parts == {
        "rouge": pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3),
        "rouge/rouge1": third,
        "rouge/rouge2": 0.5,
        "rouge/rougeL": third,
    }
    assert score("rouge:kind=rouge2", "The cat ran.", "the cat sat") == 0.5
    assert score("rouge:kind=rougeL", "sat the cat", "the cat sat") == pytest.approx(2 / 3)


@pytest.mark.parametrize("text", ["今天天气很好。", "好", "summary", "the cat sat on the mat", "Привет, мир"])
def test_the_same_text_scores_one_in_any_language(text):
    # S1-26
    for kind in ("average", "rouge1", "rougeL"):
        assert score(f"rouge:kind={kind}", text, text) == pytest.approx(1.0)
    assert score("rouge", "完全不同", text) == 0.0


def test_rouge_loads_nothing_from_the_network_and_needs_no_data(monkeypatch):
    # S1-26: punkt_tab is never asked for
    import nltk

    monkeypatch.setattr(nltk, "download", None)
    monkeypatch.setattr(nltk, "sent_tokenize", None)
    assert score("rouge", "a b", "a b") == 1.0


@pytest.mark.parametrize("spec", ["rouge", "length_similarity"])
def test_a_reward_that_compares_texts_needs_one(spec):
    (got,) = build_reward(names=spec).attempts([Sample("s", "a", "")])
    assert "needs a reference text" in str(got)


LABEL = "(1) Michael is a knight\n(2) Zoey is a knave"


@pytest.mark.parametrize(
    ("response", "right", "people"),
    [
        ("so.</think>\n<answer>\n(1) Michael is a knight\n(2) Zoey is a knave\n</answer>", 1, 1),
        ("<answer>(2) Zoey is a knave (1) Michael is a knight</answer>", 1, 1),
        ("<answer>Michael is a **knight**. Zoey is not a knight.</answer>", 1, 1),
        ("Michael is a knave?</think> (1) Michael is a knight (2) Zoey is a knave", 1, 1),
        ("<answer>(1) Michael is a knight (2) Zoey is a knight</answer>", 0, 0.5),
        ("<answer>(1) Michael is a knight</answer>", 0, 0.5),
        ("<answer>(1) Michael is a knight (2) Zoey is a knave (3) Ann is a knave</answer>", 0, 1),
        ("<answer>Michael is a knight. Zoey is a knave. Zoey is a knight.</answer>", 0, 0.5),
        ("<answer>(1) Zoey is a knight (2) Michael is a knave</answer>", 0, 0),
        ("(1) Michael is a knight (2) Zoey is a knave</think><answer></answer>", 0, 0),
        ("", 0, 0),
    ],
)
def test_knights_and_knaves(response, right, people):
    # S0-04
    got = build_reward(names="knights_knaves")("kk", response, LABEL)
    assert got.parts == {"knights_knaves": right, "knights_knaves/people": people}


def test_knights_and_knaves_need_a_label():
    with pytest.raises(RewardError, match="needs a label"):
        build_reward(names="knights_knaves")("kk", "a", "42")


def test_accuracy_compares_with_the_ground_truth_else_with_the_solution_column():
    # S3-05
    assert score("accuracy", "The answer is 42.") == 1.0
    assert score("accuracy", "The answer is 41.") == 0.0
    reward = build_reward(names="accuracy")
    sample = Sample("numina", "so 5", "", {"solution": r"We get $\boxed{5}$"})
    assert reward.attempts([sample])[0] == Score(1.0, {"accuracy": 1.0})
    (failed,) = reward.attempts([Sample("math", "5", "")])
    assert "neither a ground_truth nor a column `solution`" in str(failed)
    assert score("accuracy:data_source=classification", "forty-two", "Forty two") == 1.0
