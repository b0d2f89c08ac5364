"""Which program is taken from a model's text."""

from __future__ import annotations

import pytest

from reward_funcs.sandbox.answer import compiles, find_program


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("x = 1\n", "x = 1\n"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python\nx = 1\n```\nor\n```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nIt prints:\n```\n1 2 3\n```", "x = 1\n"),
        ("```python\nx = = 1\n```\nand\n```\nx = 2\n```", "x = = 1\n"),  # marked as Python: taken as it is
        ("```\nx = 1\n```\n```text\nno code here\n```", "x = 1\n"),  # the last one that compiles
        ("```cpp\nint x;\n```\n```js\nx = 1\n```", "x = 1\n"),
        ("~~~python\nx = 1\n~~~", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("1. So:\n   ```python\n   if 1:\n       x = 1\n   ```", "if 1:\n    x = 1\n"),
        ("```Python3 title='a.py'\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n", "x = 1\n\n"),  # never closed
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"),
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2\n"),
        ("<think>```python\nx = 1\n```</think>\n```python\nx = 2\n```", "x = 2\n"),
        ("I would not know.", None),
        ("# only a comment\n", None),
        ("", None),
    ],
)
def test_the_program_of_a_text(text: str, program: str | None):
    assert find_program(text) == program


def test_a_text_that_is_a_program_is_taken_whole_with_the_fences_of_its_docstrings():
    text = 'def f():\n    """Use it so:\n\n```python\nf()\n```\n    """\n    return 1\n'
    assert find_program(text) == text


def test_a_fence_inside_a_docstring_does_not_end_a_fenced_block():
    program = 'def f():\n    """\n```\nf()\n```\n    """\n    return 1\n'
    assert find_program(f"So:\n```python\n{program}```\nand that is it.\n") == program


def test_a_text_that_only_goes_on_follows_its_prompt():
    before = 'def f(x):\n    """Twice."""\n'
    assert find_program("    return 2 * x\n", before) == before + "    return 2 * x\n"
    assert find_program("def f(x):\n    return 2 * x\n", before) == "def f(x):\n    return 2 * x\n"
    assert find_program("    return 2 * x\n") is None


_NO_SOURCE = ["\x00", "'\ud800'", "(" * 5000, "x = " + "-" * 100_000 + "1", "def f(:", "# -*- coding: no -*-\n"]


@pytest.mark.parametrize("source", _NO_SOURCE, ids=range(len(_NO_SOURCE)))
def test_what_is_no_source_is_no_program_and_no_exception(source: str):
    assert compiles(source) is False
