"""Any text at all: never an exception, never slow, the same verdict twice."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_funcs import compute_score

FRAGMENTS = [
    "\\boxed{", "\\boxed", "}", "{", "\\frac{", "\\frac12", "\\dfrac", "\\text{", "\\sqrt", "\\overline{", "\\cup",
    "\\pm", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "&", "\\left(", "\\right]", "\\{", "\\}", "$", "\\$",
    "\\(", "\\[", "####", "<answer>", "</answer>", "<think>", "</think>", "<<1+1=2>>", "The answer is ", "answer:",
    "A:", "答案是", "答：", "最终答案：", "分之", "百分之", "又", "万", "亿", "或", "个", "元", "十", "三", "１",
    "％", "²", "½", "٣", "𝟏", "\u200b", "\ud800", "İ", "ß", "0", "1", "12,345", ".5", "1e9", "1e999999999",
    "9^9^9", "^{9}", "!", "-", "+", "−", "×", "*", "/", "=", "<", ">", ":", ",", ".", ";", "(", ")", "[", "]", "%",
    "€", " or ", " and ", " cm", " million", "x", "π", "∞", "\n", "\t", " ", "**", "|", "positive", "negative",
    "Label: ", "Paris", "is ", '"', "'", '["a", "b"]', "\x00",
]  # fmt: skip
text = st.one_of(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join), st.text(max_size=200))
sources = st.sampled_from(["math", "gsm8k", "qa", "classification"])


@pytest.mark.slow
@settings(max_examples=250, derandomize=True, deadline=None)
@given(source=sources, response=text, truth=text)
def test_any_response_to_any_truth_scores_zero_or_one_twice(source, response, truth):
    score = compute_score(source, response, truth)
    assert score in (0.0, 1.0)
    assert compute_score(source, response, truth) == score


@pytest.mark.slow
@settings(max_examples=100, derandomize=True, deadline=None)
@given(text)
def test_an_empty_truth_is_never_matched(response):
    for source in ("math", "qa", "classification"):
        assert compute_score(source, response, "") == 0.0
        assert compute_score(source, "", response) == 0.0


@pytest.mark.slow
@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_two_integers_match_exactly_when_they_are_equal(one, other):
    for written in (str(one), f"{one:,}", rf"\boxed{{{one}}}", f"The answer is {one}.", f"答案是{one}。", f"{one}.0"):
        assert compute_score("math", written, str(one)) == 1.0
        assert compute_score("math", written, str(other)) == float(one == other)


@pytest.mark.slow
@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=1000))
def test_two_fractions_match_exactly_when_they_are_equal(one, other):
    written = rf"\boxed{{\frac{{{one.numerator}}}{{{one.denominator}}}}}"
    assert compute_score("math", written, str(one)) == 1.0
    assert compute_score("math", written, str(other)) == float(one == other)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["math", "classification"])
def test_thirty_thousand_characters_of_garbage_take_a_moment(source):
    # Quadratic work on 30,000 characters would be seconds; all that was measured stays under 60 ms.
    slowest = (0.0, "")
    for fragment in FRAGMENTS:
        for frame in ("{}", "The answer is {}"):
            response = frame.format(fragment * (30_000 // len(fragment)))
            before = time.process_time()
            compute_score(source, response, fragment * 5)
            slowest = max(slowest, (time.process_time() - before, f"{frame} of {fragment!r}"))
    assert slowest[0] < 0.5, slowest


@pytest.mark.parametrize(
    "fragment", ["1,", "(", "\\frac{1}{", "\\cup", "{", "\\pm1,", "x=1,", "1 or ", "\\text{a}", "(1,"]
)
def test_two_long_answers_are_compared_in_a_moment(fragment):
    answer = fragment * (1_900 // len(fragment))
    before = time.process_time()
    compute_score("math", f"\\boxed{{{answer}}}", answer[: -len(fragment)])
    compute_score("math", answer, answer)
    assert time.process_time() - before < 0.5
