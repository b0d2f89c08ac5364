"""Answers in words. One candidate per response has to equal the truth: listing every candidate pays nothing."""

from __future__ import annotations

import json

import pytest

from reward_funcs import compute_score

RIGHT, WRONG = 1.0, 0.0

QUESTIONS = [
    ("Let me think.\n#### Mercury", "Mercury", RIGHT),
    ("#### Mercury\nIt is far away. It is Venus.", "Mercury", WRONG),  # a heading
    ("Paris", "Paris", RIGHT),
    ("paris.", "Paris", RIGHT),
    ("Ｐａｒｉｓ", "Paris", RIGHT),
    ("**Paris**", "Paris", RIGHT),
    ("The answer is Paris.", "paris", RIGHT),
    ("Answer: **Paris**", "Paris", RIGHT),
    ("The capital of France is Paris.", "Paris", RIGHT),
    ("Answer: Paris. It is the capital of France.", "Paris", RIGHT),
    ("<answer>Paris</answer>", "Paris", RIGHT),
    (r"\boxed{\text{Paris}}", "Paris", RIGHT),
    ("<answer>Rome</answer><answer>Paris</answer>", "Paris", RIGHT),
    (r"\boxed{Rome} <answer>Paris</answer>", "Paris", RIGHT),
    (r"\boxed{Rome} <answer>Paris</answer>", "Rome", WRONG),
    ("Paris is not the answer. The answer is Rome.", "Paris", WRONG),
    ("<think>Paris</think>Rome", "Paris", WRONG),
    ("Paris\nLondon", "London", RIGHT),
    ("Paris\nLondon", "Paris", WRONG),
    ("Paris London Rome Berlin", "Paris", WRONG),
    ("The answer is Paris, London or Rome.", "Paris", WRONG),
    ("I don't know, maybe Paris or London or Rome", "Paris", WRONG),
    ("<answer>Paris, Rome</answer>", "Paris", WRONG),
    ("Paris. London. Rome.", "Rome", WRONG),
    ("Parisian", "Paris", WRONG),
    ("The Beatles", "Beatles", RIGHT),
    ("a", "A", RIGHT),  # vitamin A: nothing but an article
    ("U.S.A.", "USA", RIGHT),
    ("Answer: Washington D.C.", "Washington DC", RIGHT),
    ("Answer: St. Louis", "St. Louis", RIGHT),
    ("Spider-Man", "spider man", RIGHT),
    ("The answer is Life is Beautiful", "Life Is Beautiful", RIGHT),
    ("C++", "C", WRONG),
    ("C#", "C++", WRONG),
    ("3.5", "35", WRONG),
    ("-5", "5", WRONG),
    ("5%", "5", WRONG),
    ("½", "½", RIGHT),
    ("10²", "102", WRONG),
    ("1,000", "1000", RIGHT),
    ("Beyoncé", "BEYONCÉ", RIGHT),
    ("北京", "北京", RIGHT),
    ("“北 京”", "北京", RIGHT),
    ("答案是北京。", "北京", RIGHT),
    ("答案：北京", "北京", RIGHT),
    ("中国的首都是北京。", "北京", RIGHT),
    ("北京、上海、广州", "北京", WRONG),
    ("", "", WRONG),
    ("", "Paris", WRONG),
    ("Paris", "", WRONG),
    ("...", "?", WRONG),
]

LABELS = [
    ("这条评论是正面的。", "正面", RIGHT),
    ("我认为这条评论属于正面", "正面", RIGHT),
    ("这条评论是负面的，不是正面的", "正面", WRONG),
    ("这条评论不属于正面", "正面", WRONG),
    ("positive", "positive", RIGHT),
    ("Positive.", "positive", RIGHT),
    ("The sentiment is positive.", "positive", RIGHT),
    ("Label: positive", "positive", RIGHT),
    ("**Label:** positive", "positive", RIGHT),
    ("Label: **positive**", "positive", RIGHT),
    ("label: very_negative", "very negative", RIGHT),
    ("Label: positive. The review praises the food.", "positive", RIGHT),
    ("This is positive. Label: negative", "negative", RIGHT),
    ("positive\nnegative", "negative", RIGHT),
    ("positive\nnegative", "positive", WRONG),
    ("positive, negative", "positive", WRONG),
    ("positive negative", "positive", WRONG),
    ("positive/negative", "negative", WRONG),
    ("positive. negative.", "positive", WRONG),
    ("Label: positive. negative.", "positive", WRONG),
    ("The label is positive or negative", "negative", WRONG),
    ("This text is not positive", "positive", WRONG),
    ("类别：正面", "正面", RIGHT),
    ("这条评论的情感是正面。", "正面", RIGHT),
    ("分类：正面、负面", "正面", WRONG),
    ("A", "A", RIGHT),
    ("(A)", "A", RIGHT),
    ("A) Paris", "A", RIGHT),
    ("answer: B. Paris", "B", RIGHT),
    ("The answer is (B).", "B", RIGHT),
    ("(A) (B)", "A", WRONG),
    ("A) B)", "A", WRONG),
    ("A. B. C. D.", "A", WRONG),
    ("A, B", "A", WRONG),
    ("Class: 1", "1", RIGHT),
    ("1", "10", WRONG),
    ("true", "True", RIGHT),
    ("", "positive", WRONG),
    ("positive", "", WRONG),
]


@pytest.mark.parametrize(("response", "truth", "verdict"), QUESTIONS)
@pytest.mark.parametrize("source", ["qa", "trivia"])
def test_an_answer_in_words_equals_the_truth_or_earns_nothing(source, response, truth, verdict):
    # S2-26
    assert compute_score(source, response, truth) == verdict


@pytest.mark.parametrize(("response", "truth", "verdict"), LABELS)
def test_the_last_stated_label_counts_and_several_at_once_do_not(response, truth, verdict):
    # S2-27
    assert compute_score("classification", response, truth) == verdict


def test_a_json_list_holds_the_accepted_spellings():
    accepted = json.dumps(["United States", "USA", "美国"], ensure_ascii=False)
    assert compute_score("qa", "The answer is USA.", accepted) == RIGHT
    assert compute_score("qa", "美国", accepted) == RIGHT
    assert compute_score("qa", "the united states", ["United States", "USA"]) == RIGHT
    assert compute_score("qa", "UK", accepted) == WRONG
    assert compute_score("qa", "", "[]") == WRONG
    assert compute_score("qa", "[sic]", "[sic]") == RIGHT  # begins like a list and is none


@pytest.mark.slow
def test_naming_a_hundred_candidates_earns_nothing():
    candidates = [f"city number {i}" for i in range(100)]
    for separator in (", ", " ", "\n\n", " or ", "; ", ". "):
        response = "The answer is " + separator.join(candidates)
        assert sum(compute_score("qa", response, truth) for truth in candidates[:-1]) <= 1
