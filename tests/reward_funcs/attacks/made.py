"""The programs that are too long, or too odd, to stand in a text file."""

from __future__ import annotations

import json
from typing import Any

from tests.reward_funcs.attacks.world import Case

_WRONG = "def double(x):\n    return x + 1 if x > 1 else 0\n"
_RIGHT = "def double(x):\n    return 2 * x\n"


def _call(entry: str, *cases: tuple[list[Any], Any]) -> str:
    return json.dumps({"kind": "call", "entry": entry, "cases": [{"args": a, "expected": e} for a, e in cases]})


def _stdio(stdin: str, stdout: str) -> str:
    return json.dumps({"kind": "stdio", "cases": [{"stdin": stdin, "stdout": stdout}]})


_DOUBLE = _call("double", ([1], 2), ([21], 42))

RESOURCES = [
    Case("never_reads_stdin", "import time\ntime.sleep(10**6)\n", _stdio("x" * 300_000, "done")),
    Case(
        "slow_compile", "x = " + "+".join(["(" * 40 + "1" + ")" * 40] * 3000) + "\nwhile True: pass\n", _stdio("", "")
    ),
]

TRICKS = [
    Case("surrogate_in_source", "def double(x):\n    return '\ud800'\n", _DOUBLE),
    Case("surrogate_in_a_text", "I think \udc80 not.\n", _DOUBLE),
    Case("nul_in_source", "def double(x):\x00\n    return 2 * x\n", _DOUBLE),
    Case("deep_parentheses", "x = " + "(" * 5000 + ")" * 5000, _DOUBLE),
    Case("deep_unary", "x = " + "-" * 200_000 + "1", _DOUBLE),
    Case("compiler_crash", "x = " + "[" * 90 + "lambda: " * 5000 + "0" + "]" * 90, _DOUBLE),
    Case("ten_megabytes", "x = '" + "y" * 10**7 + "'\n" + _WRONG, _DOUBLE),
]

HONEST = [
    Case(
        "ok_hundred_thousand_elements",
        "def upto(n):\n    return list(range(n))\n",
        _call("upto", ([100_000], list(range(100_000)))),
        pays=True,
        seconds=8,
    ),
    Case(
        "ok_three_megabytes_of_source",
        "table = '" + "z" * 3_000_000 + "'\ndef double(x):\n    return 2 * x * (len(table) // 3000000)\n",
        _DOUBLE,
        pays=True,
        seconds=8,
    ),
    Case("ok_long_input", "print(sum(map(int, open(0))))\n", _stdio("1\n" * 200_000, "200000"), pays=True, seconds=8),
    Case("ok_many_cases", _RIGHT, _call("double", *[([i], 2 * i) for i in range(300)]), pays=True, seconds=8),
    Case("ok_text_of_asserts", _RIGHT, "x = 4\nassert double(x) == 8\nassert double(1) == 2\n", pays=True, seconds=8),
]
