"""The program in a model's text. Compiles, never runs. It is called inside the jail: a source can crash a compiler.

A text that is a program is taken whole, fences in its docstrings and all. Otherwise the last fenced block marked as
Python, else the last block of any mark that compiles. A block that was never closed reaches to the end of the text.
Anything up to the last `</think>` is left aside; a program in `<answer>` needs no fence.
"""

from __future__ import annotations

import re
import warnings

_OPEN = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*$")
_PYTHON = {"python", "py", "python3", "py3", "python2", "cpython", "pycon"}
_ANSWER = re.compile(r"<answer>\s*\n(?!.*<answer>)(.*?)(?:</answer>|\Z)", re.DOTALL)
_MOST_ENDS = 40  # closing fences tried for one block, from the first on


def find_program(text: str, before: str = "") -> str | None:
    """The program's source, or None. before: what a text that only goes on (HumanEval's prompt) has to follow."""
    text = text.replace("\r\n", "\n")
    _, mark, said = text.rpartition("</think>")
    if not mark or not said.strip():
        said = text
    if compiles(said):
        return said
    if said is not text and compiles(text):
        return text
    blocks = _blocks(said)
    marked = [source for tag, source in blocks if tag in _PYTHON]
    if marked:
        return marked[-1]
    if not blocks and (tag := _ANSWER.search(said)) and compiles(tag[1]):
        return tag[1]
    if before and not blocks and compiles(before + said):
        return before + said
    return next((source for _, source in reversed(blocks) if compiles(source)), None)


def compiles(source: str) -> bool:
    """Whether Python takes it as a program that does something; a comment is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source.encode("utf-8", "surrogatepass"), "answer", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return bool(code.co_names or code.co_consts[:-1]) or len(code.co_code) > len(_NOTHING.co_code)


_NOTHING = compile("", "nothing", "exec")


def _blocks(text: str) -> list[tuple[str, str]]:
    """(tag, source) of every fenced block. A fence inside a docstring does not end the docstring's block."""
    lines = text.split("\n")
    blocks = []
    i = 0
    while i < len(lines):
        opening = _OPEN.match(lines[i])
        if not opening:
            i += 1
            continue
        indent = len(lines[i]) - len(lines[i].lstrip())
        end = _end(lines, i + 1, opening[1], indent)
        blocks.append((opening[2].lower(), _source(lines[i + 1 : end], indent)))
        i = end + 1
    return blocks


def _end(lines: list[str], start: int, fence: str, indent: int) -> int:
    """The line of the closing fence: the first that leaves a program, else the first; the end when there is none."""
    closings = (
        i for i in range(start, len(lines)) if lines[i].strip().startswith(fence) and not lines[i].strip(" \t`~")
    )
    first = None
    for tried, i in enumerate(closings):
        first = i if first is None else first
        if compiles(_source(lines[start:i], indent)):
            return i
        if tried >= _MOST_ENDS:
            break
    return len(lines) if first is None else first


def _source(lines: list[str], indent: int) -> str:
    """The block's lines without the indentation of its fence, as in a list."""
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines) + "\n"


def main() -> None:
    """As a process of its own, for callers without a jail: {"text", "before"} on stdin, the source or null out."""
    import json
    import sys

    order = json.load(sys.stdin)
    print(json.dumps(find_program(order["text"], order["before"])))


if __name__ == "__main__":
    main()
