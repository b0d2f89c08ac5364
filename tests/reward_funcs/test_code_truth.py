"""The shapes of code records, and what is said about the ones that are none."""

from __future__ import annotations

import json

import pytest

from reward_funcs import RewardError
from reward_funcs.code_truth import Asserts, Calls, Scripts, read_truth


def test_our_three_kinds():
    call = {"kind": "call", "entry": "f", "cases": [{"args": [1, [2]], "expected": 3}, {"expected": None}]}
    assert read_truth(json.dumps(call)) == Calls("f", (([1, [2]], (3,)), ([], (None,))))
    assert read_truth(call) == read_truth(json.dumps(call))  # a dict will do
    stdio = {"kind": "stdio", "cases": [{"stdin": "1\n", "stdout": "2\n"}, {"stdout": ""}]}
    assert read_truth(json.dumps(stdio)) == Scripts((("1\n", "2\n"), ("", "")))
    asserts = {"kind": "assert", "asserts": ["assert f(1) == 2"], "setup": "import math"}
    assert read_truth(json.dumps(asserts)) == Asserts(["assert f(1) == 2"], "import math")


def test_shapes_of_data_sets():
    assert read_truth("assert f(1) == 2\nassert f(2) == 3") == Asserts("assert f(1) == 2\nassert f(2) == 3")
    assert read_truth(["assert f(1) == 2"]) == Asserts(["assert f(1) == 2"])
    check = "def check(candidate):\n    assert candidate(1) == 2\n"
    humaneval = {"prompt": "def f(x):\n", "test": check, "entry_point": "f", "canonical_solution": "    return x + 1"}
    assert read_truth(json.dumps(humaneval)) == Asserts(check, "", "f", "def f(x):\n")
    assert read_truth(check, {"entry_point": "f"}) == Asserts(check, "", "f")
    mbpp = {"test_list": ["assert f(1) == 2"], "test_setup_code": "", "test_imports": ["import math"]}
    assert read_truth(json.dumps(mbpp)) == Asserts(["assert f(1) == 2"], "import math")
    assert read_truth('{"inputs": ["1\\n", ["2", "3"]], "outputs": ["1\\n", 4]}') == Scripts(
        (("1\n", "1\n"), ("2\n3\n", "4"))
    )
    assert read_truth('{"input": ["1"], "output": ["1"]}') == Scripts((("1", "1"),))
    apps = read_truth('{"fn_name": "f", "inputs": [[1, 2], [3]], "outputs": [[3], [3, 4]]}')
    assert apps == Calls("f", (([1, 2], ([3], 3)), ([3], ([3, 4],))))
    live = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional", "metadata": {"func_name": "f"}}]
    assert read_truth(json.dumps(live)) == Calls("f", (([[1, 2], 3], (6, "6")),))


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ("", "is empty"),
        ("{", "is no JSON"),
        ("def f(:", "is no Python"),
        ("f(1)", "has no assert"),
        ("def check(candidate):\n    assert candidate(1)", "names no 'entry_point'"),
        ("{}", "has nothing"),
        ('{"kind": "vibes"}', "kind 'vibes'; known: call, stdio, assert"),
        ('{"kind": "call", "cases": [{"expected": 1}]}', "needs 'entry'"),
        ('{"kind": "call", "entry": "f()", "cases": [{"expected": 1}]}', "needs 'entry'"),
        ('{"kind": "call", "entry": "f", "cases": []}', "'cases', a list that is not empty"),
        ('{"kind": "call", "entry": "f", "cases": [{"args": [1]}]}', "case 0: needs 'args' and 'expected'"),
        ('{"kind": "call", "entry": "f", "cases": [{"args": 1, "expected": 1}]}', "'args' has to be a list"),
        ('{"kind": "stdio", "cases": [{"stdin": "1"}]}', "case 0: needs 'stdin' and 'stdout'"),
        ('{"kind": "assert", "asserts": []}', "needs 'asserts'"),
        ('{"kind": "assert", "asserts": ["assert"]}', "is no Python"),
        ('{"inputs": [1], "outputs": []}', "two lists of one length"),
        ("[1, 2]", "is a list of neither"),
        ("[" * 100_000, "is nested too deeply"),
        (None, "is NoneType"),
        (7, "is int"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_in_one_line(truth: object, said: str):
    with pytest.raises(RewardError) as error:
        read_truth(truth)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
