"""docs/requirements.md says what the tests cite, and nothing is without a test or a reason."""

from __future__ import annotations

from tests import requirement_table


def test_every_requirement_is_cited_by_a_test_or_says_why_not():
    assert requirement_table.problems() == []


def test_the_page_of_requirements_is_that_of_the_citations():
    written = requirement_table.PAGE.read_text(encoding="utf-8")
    assert requirement_table.page() == written, "write it again: python -m tests.requirement_table"


def test_a_range_of_identities_is_all_of_them():
    assert list(requirement_table.identities("S2-09 to S2-11, S0-17 and S1-03..S1-04")) == [
        *("S2-09", "S2-10", "S2-11", "S0-17", "S1-03", "S1-04")
    ]
    assert list(requirement_table.identities("XS2-09, S5-01, S2-9")) == []


def test_a_citation_belongs_to_the_test_around_it():
    test = "test_the_kl_coefficients_of_paddlenlp_are_one_in_the_reward_and_one_in_the_loss"
    assert f"tests/grpo/test_convert_examples.py::{test}" in requirement_table.citations()["S0-27"]
