"""What counts as the same value and the same output."""

from __future__ import annotations

import math

import pytest

from reward_funcs.code_compare import same_output, same_value


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (2, 2), (2.0, 2), (2, 2.0), (10**30, 10**30), (True, True), (None, None), ("a", "a"), (math.nan, math.nan),
        ([1, [2]], [1, [2]]), ((1, 2), [1, 2]), ([(1, 2)], [[1, 2]]), ((1, 2), (1, 2)), ({1, 2}, {2, 1}),
        ({"a": 1}, {"a": 1.0}), ({1: "x"}, {"1": "x"}), (b"x", b"x"), (1j, 1j), (-0.0, 0),
    ],
)  # fmt: skip
def test_the_same(got: object, expected: object):
    assert same_value(got, expected) is True


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (3, 2), ("2", 2), (2, "2"), (True, 1), (1, True), (1.0, True), (0, False), (None, 0), (None, False), ([2], 2),
        ([1], [1, 2]), ([1, 2], [2, 1]), ([True], [1]), ([1, 2], (1, 2)), ({1, 2}, [1, 2]), ([1, 2], {1, 2}),
        (0.1 + 0.2, 0.3), (math.nan, 2), (2, math.nan), ({"a": 1, "b": 2}, {"a": 1}), ({"a": 1}, {"b": 1}),
        ({True: "x"}, {"True": "x"}), ({True: "x"}, {1: "x"}),
        ({True}, {1}), (10**30 + 1, float(10**30)), ("a", b"a"), ("", None),
        ({1: "x", "1": "y"}, {"1": "x", "2": "y"}),
    ],
)  # fmt: skip
def test_not_the_same(got: object, expected: object):
    assert same_value(got, expected) is False


def test_outputs_are_compared_whole_and_only_white_space_at_ends_is_forgiven():
    assert same_output("1\n2\n", "1\n2")
    assert same_output("1 \t\n2\r\n\n\n", "1\n2\n")
    assert same_output("", "\n")
    for wrong in ("1", "1\n2\n3", "2", "1 2", " 1\n2", "\n1\n2", "1\n\n2", "2\n1", "1\n2.0", ""):
        assert not same_output(wrong, "1\n2\n")
