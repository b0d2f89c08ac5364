"""Reads a bash script without running it: its commands as words, variables and arrays put in.

Assignments, `${NAME:-default}`, arrays, `$((arithmetic))`, quotes, comments and continued lines are understood. What
only running could tell ($(command), $1) stays in a word as UNKNOWN and its text. Which command trains: reading.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from grpo.convert.arithmetic import Unreadable, whole_number

UNKNOWN = "\x00"  # in a word: what follows, up to the next one, is a piece of shell that was not run
OUTSIDE = "\x01"  # around the name of a variable that the script takes from outside
_ASSIGNMENT = re.compile(r"(?:export\s+|readonly\s+|local\s+|declare\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=", re.ASCII)
_OPENING = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done"}
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?|<)&?")
_HERE_DOCUMENT = re.compile(r"((?<!<)<<-?[ \t]*(['\"]?)(\w+)\2[^\n]*)\n(?:.*?\n)??[ \t]*\3[ \t]*(?=\n|\Z)", re.DOTALL)
_PREFIX = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL | re.ASCII)


@dataclass(frozen=True)
class Command:
    """One command. environment: the variables that it sees; conditional: it is inside an `if`, a `case` or a loop."""

    words: tuple[str, ...]
    environment: dict[str, str]
    conditional: bool = False


@dataclass
class Script:
    """Its variables while it is read, and the commands found."""

    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # assignments under a condition, which may not hold


def read(text: str) -> Script:
    """The script; raises ValueError for quotes that never end."""
    script, ends = Script(), []
    for statement in _statements(text):
        word = statement.split(maxsplit=1)[0] if statement.split() else ""
        if word in ("then", "do", "else", "elif", "{", "}"):
            statement = statement[len(word) :].strip() if word not in ("elif",) else ""
            word = statement.split(maxsplit=1)[0] if statement.split() else ""
        if word in _OPENING:
            ends.append(_OPENING[word])
            continue
        if ends and word == ends[-1]:
            ends.pop()
            continue
        if statement and not re.fullmatch(r"[\w*|'\" .-]+\)", statement):  # `npu)` of a case
            _take(script, re.sub(r"^\(?[\w*|\"-]+\)\s+", "", statement) if ends else statement, conditional=bool(ends))
    return script


def _take(script: Script, statement: str, *, conditional: bool) -> None:
    assigned = _ASSIGNMENT.match(statement)
    if assigned and (items := _array(statement[assigned.end() :])) is not None:
        if conditional:
            script.skipped.append(statement)
            return
        before = script.arrays.get(assigned[1], []) if assigned[2] else []
        script.arrays[assigned[1]] = before + _words(script, items)
        return
    words = _words(script, statement)
    exported = bool(words) and words[0] in ("export", "readonly", "local", "declare")
    environment, rest = {}, words[1:] if exported else words
    while rest and (match := _PREFIX.fullmatch(rest[0])):
        environment[match[1]] = match[2]
        rest = rest[1:]
    if environment and not rest:
        if conditional:
            script.skipped.append(statement)
        else:
            script.variables |= environment
    elif rest and rest[0].startswith("--") and script.commands and not exported:
        # A comment inside a continued command ends it for bash; what follows was meant to belong to it.
        last = script.commands.pop()
        script.commands.append(Command((*last.words, *rest), last.environment, last.conditional))
    elif rest:
        script.commands.append(Command(tuple(rest), script.variables | environment, conditional))


def _array(text: str) -> str | None:
    """What stands between the brackets of `NAME=(...)`."""
    text = text.strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else None


def _words(script: Script, text: str) -> list[str]:
    words = iter(shlex.split(_expanded(script, text)))
    kept = []
    for word in words:
        if match := _REDIRECTION.match(word):  # 2>&1, > log
            next(words, None) if match.end() == len(word) else None
        else:
            kept.append(word)
    return kept


def _expanded(script: Script, text: str) -> str:
    """The text with every `$...` outside of single quotes replaced, so that shlex reads the values as bash would."""
    out, position, quoted = [], 0, False
    while position < len(text):
        char = text[position]
        if char == "\\" and position + 1 < len(text):
            out.append(text[position : position + 2])
            position += 2
        elif char == "'" and not quoted:
            end = text.find("'", position + 1)
            end = len(text) if end < 0 else end
            out.append(text[position : end + 1])
            position = end + 1
        elif char == '"' and not quoted and (whole := re.compile(r'"\$\{(\w+)\[@\]\}"').match(text, position)):
            out.append(" ".join(map(shlex.quote, script.arrays.get(whole[1], []))))
            position = whole.end()
        elif char == '"':
            quoted = not quoted
            out.append(char)
            position += 1
        elif char in "$`":
            length, value = _replaced(script, text[position:])
            # bash does not split what is assigned
            assigned = isinstance(value, str) and re.search(r"(?:^|\s)\w+=[^\s'\"]*$", "".join(out)) is not None
            out.append(_requoted(value, quoted, split=not assigned) if length else char)
            position += length or 1
        else:
            out.append(char)
            position += 1
    return "".join(out)


def _requoted(value: str | list[str], quoted: bool, *, split: bool) -> str:
    """A value as it must be written where it stands: unquoted, bash splits it at white space."""
    items = value if isinstance(value, list) else [value]
    if quoted:
        return re.sub(r'(["\\])', r"\\\1", " ".join(items))
    # A command's text is one thing, whatever spaces it has.
    words = [word for item in items for word in (item.split() if split and UNKNOWN not in item else [item])]
    return " ".join(map(shlex.quote, words))


def _replaced(script: Script, text: str) -> tuple[int, str | list[str]]:
    """(how many characters of `text`, which begins with $ or `, to replace; by what)."""
    if text.startswith("$(("):
        end = _closing(text, 1)
        inner = text[3 : end - 2]
        try:
            plain = re.sub(r"\$\{?(\w+)\}?", r"\1", inner)
            return end, str(whole_number(plain, script.variables))
        except Unreadable as unread:
            return end, f"{UNKNOWN}{unread}{UNKNOWN}"
    if text.startswith("$("):
        end = _closing(text, 1)
        return end, f"{UNKNOWN}{text[:end]}{UNKNOWN}"
    if text.startswith("`"):
        end = text.find("`", 1)
        end = len(text) if end < 0 else end + 1
        return end, f"{UNKNOWN}{text[:end]}{UNKNOWN}"
    if match := re.match(r"\$\{(\w+)\[[@*]\]\}", text):
        return match.end(), script.arrays.get(match[1], [])
    if text.startswith("${"):
        end = _closing(text, 1, "{}")
        return end, _parameter(script, text[2 : end - 1])
    if match := re.match(r"\$(\w+|[@*#?!$-])", text, re.ASCII):
        return match.end(), _variable(script, match[1])
    return 0, ""


def _parameter(script: Script, inner: str) -> str | list[str]:
    """`NAME`, `NAME:-default` (also - := =) and `NAME:+other`; anything else stays unknown."""
    match = re.fullmatch(r"(\w+|[@*])(?:(:?[-=+?])(.*))?", inner, re.DOTALL)
    if match is None:
        return f"{UNKNOWN}${{{inner}}}{UNKNOWN}"
    name, sign, other = match[1], match[2] or "", match[3] or ""
    known = name in script.variables and (script.variables[name] or ":" not in sign)
    if sign.endswith("+"):
        return " ".join(_words(script, other)) if known else ""
    if sign.endswith(("-", "=")) and not known:
        value = " ".join(_words(script, other))
        if sign.endswith("="):
            script.variables[name] = value
        return value
    return _variable(script, name)


def _variable(script: Script, name: str) -> str | list[str]:
    if name in ("@", "*"):  # the caller's own words
        return []
    if name in script.variables:
        return script.variables[name]
    if name in script.arrays:
        return script.arrays[name][0] if script.arrays[name] else ""
    return f"{UNKNOWN}${name}{UNKNOWN}" if not name.isidentifier() else f"{OUTSIDE}{name}{OUTSIDE}"


def _closing(text: str, start: int, pair: str = "()") -> int:
    """The position behind the bracket that closes the one at `start`."""
    depth, quote = 0, ""
    for position in range(start, len(text)):
        char = text[position]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and pair == "()":
            quote = char
        elif char == pair[0]:
            depth += 1
        elif char == pair[1]:
            depth -= 1
            if depth == 0:
                return position + 1
    return len(text)


def _statements(text: str) -> Iterator[str]:
    """The script's statements: continued lines joined, comments left out, parted at line ends, `;`, `&&`, `||`, `|`."""
    text = _HERE_DOCUMENT.sub(r"\1", text.replace("\r\n", "\n"))
    pieces: list[str] = []
    position, quote, depth = 0, "", 0
    while position < len(text):
        char, before = text[position], text[position - 1 : position]
        step = 1
        if char == "\\" and quote != "'":
            step = 2
            pieces.append(" " if text[position + 1 : position + 2] == "\n" else text[position : position + 2])
        elif not quote and char == "#" and before in ("", " ", "\t", "\n", ";", "("):
            step = (text + "\n").index("\n", position) - position
        elif (
            not quote
            and not depth
            and (char in "\n;|" or (char == "&" and ">" not in text[position - 1 : position + 2]))
        ):
            if statement := "".join(pieces).strip():
                yield statement
            pieces = []
        else:
            quote = ("" if char == quote else quote) if quote else (char if char in "'\"" else "")
            if not quote and char in "({":
                depth += before in ("=", "$") or (char == "(" and depth > 0)
            elif not quote and char in ")}" and depth:
                depth -= 1
            pieces.append(char)
        position += step
    if statement := "".join(pieces).strip():
        yield statement
