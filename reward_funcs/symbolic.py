r"""Whether two mathematical expressions are equal by algebra: 1+x and x+1, \sec^2 y and \tan^2 y + 1.

The comparison runs in child processes that are killed at a deadline (symbolic_main.py), since sympy hangs on
`9^{9^{9}}`; no signal is used, so that the verdict is the same in any thread or worker. Needs the package math-verify;
without it nothing is equal by algebra. Leaves out what is decided exactly before, and what is no expression.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import time
from collections import OrderedDict
from functools import cache

from reward_funcs.child import BadReply, Child

DEADLINE = 3.0  # seconds for a pair
PACKAGE = "math-verify==0.9.0"
LONGEST = 500  # characters of an expression
_DEEPEST = 30  # brackets in brackets
_START_SECONDS = 60.0
_GRACE = 1.0  # seconds for the process that watches the deadline to say so
_MOST_PROCESSES = max(2, min(4, os.cpu_count() or 1))
_REMEMBERED = 20_000  # verdicts
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_READ = re.compile(  # the commands of an expression that is compared; another one may be anything
    r"sqrt|frac|a?(?:rc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|lg|exp|pi|binom|infty|cdot|mid|[lr]?vert|le|ge"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|rho|sigma|tau|(?:var)?phi|psi|omega|Delta|Omega"
)
_NAMES = {"sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan", "pi"}
_LETTERS = re.compile(r"[A-Za-z]+")
_CONSTANT = re.compile(r"\\(?:sqrt|pi|log|ln|lg|sin|cos|tan|exp|binom)(?![a-z])|\^|!")
_LARGE_FACTORIAL = re.compile(r"[0-9)}\]]{5,} ?!|[)}\]] ?!|! ?!")
_POWER = re.compile(r"\^ ?(?:\{([^{}]*)\}|([0-9]+))")
_LARGEST_POWER = 2_000
_SMALL_TOWER = re.compile(r"\^ ?\{ ?([0-9]{1,3}) ?\^ ?\{? ?([0-9]{1,2}) ?\}? ?\}")  # 2^{2^{3}}
_LARGE_BINOMIAL = re.compile(r"\\binom ?(?:\{[^{}]*\}|.) ?\{?[^{}]*[0-9]{4}|\\binom ?\{[^{}]*(?:[0-9]{4}|\^)")
_AMBIGUOUS = re.compile(r"/ ?[0-9.]+ ?[A-Za-z\\(]|[0-9] ?_|^[+-] ?[+-]|[:;#&\"'~@?]|[一-鿿]|[%$°]|,")
_NESTED_FRACTION = re.compile(r"-?\\frac(?=.*\\frac)(?:[{} .0-9]|\\frac|\{-)+")
_RELATION = re.compile(r"[<>=]|\\(?:le|ge|ne|in|approx|pm|to)(?![a-z])")


@cache
def available() -> bool:
    """Whether math-verify is installed."""
    return importlib.util.find_spec("math_verify") is not None


def notes() -> list[str]:
    """What the user should know: one line when math-verify is not there."""
    if available():
        return []
    return [
        f"math-verify is not installed: an answer equal only by algebra (1+x for x+1) is wrong; pip install {PACKAGE}"
    ]


class Budget:
    """What symbolic comparison may cost for one pair of answers, which may be lists of expressions."""

    def __init__(self, seconds: float = DEADLINE) -> None:
        self._end: float | None = None
        self._seconds = seconds

    def same(self, answer: str, truth: str) -> bool:
        """Whether two tidied expressions are equal by algebra; False for what is too large to try."""
        if not _worth_asking(answer, truth) or not available():
            return False
        if (known := _remembered(answer, truth)) is not None:
            return known
        now = time.monotonic()
        self._end = self._end or now + self._seconds
        if now >= self._end:
            return False
        same = _ask(answer, truth, self._end - now)
        _remember(answer, truth, same)
        return same


def _worth_asking(answer: str, truth: str) -> bool:
    kinds = [_relations(text) for text in (answer, truth)]
    if kinds[0] != kinds[1] or len(kinds[0]) > 1:
        return False
    for text in (answer, truth):
        if (
            len(text) > LONGEST
            or not (text.isascii() and text.isprintable())
            or _AMBIGUOUS.search(text)
            or not _balanced(text)
        ):
            return False
        if not all(_READ.fullmatch(match[1]) for match in _COMMAND.finditer(text)) or _explodes(text):
            return False
        letters = _LETTERS.findall(_COMMAND.sub(" ", text))
        if any(len(run) > 3 and run not in _NAMES for run in letters):
            return False
        if not re.search(r"[0-9+\-*/^=(\\|]", text) and text != "i":  # letters only: a name, whose order counts
            return False
    plain = [
        not (_CONSTANT.search(text) or _LETTERS.search(_COMMAND.sub("", text)) or _NESTED_FRACTION.fullmatch(text))
        for text in (answer, truth)
    ]
    if all(plain):
        return False  # numbers and sums of numbers: decided exactly, and a sum is not carried out
    # A number against a sum of variables can be equal only by accident.
    free = [bool(set("".join(_LETTERS.findall(_COMMAND.sub(" ", text)))) - set("ei")) for text in (answer, truth)]
    return free[0] == free[1]


def _relations(text: str) -> list[str]:
    """The kinds of relation in a text: "=" for equations, "<" for inequalities of either direction."""
    return ["=" if sign == "=" else "<" for sign in _RELATION.findall(text)]


def _explodes(text: str) -> bool:
    """Towers of powers and large factorials: numbers that do not fit into the world."""
    text = _SMALL_TOWER.sub(_one_power, text)
    if _LARGE_FACTORIAL.search(text) or _LARGE_BINOMIAL.search(text):
        return True
    powers = list(_POWER.finditer(text))
    if len(re.findall(r"\^", text)) != len(powers) and re.search(r"\^[^^]*[0-9][^^]*\^", text):
        deep = re.search(r"\^ ?\{[^{}]*\^|\^ ?\(?[0-9]+\)? ?\^", text)
        if deep:
            return True
    return any(int(n) > _LARGEST_POWER for p in powers for n in re.findall(r"[0-9]{1,300}", p[1] or p[2] or ""))


def _one_power(tower: re.Match[str]) -> str:
    """The upper two storeys as one number, where it is small."""
    power = int(tower[1]) ** int(tower[2])
    return f"^{{{power}}}" if power <= _LARGEST_POWER else tower.group()


def _balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += (c in "({[") - (c in ")}]")
        if not 0 <= depth <= _DEEPEST:
            return False
    return depth == 0


_lock = threading.Lock()
_verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()


def _remembered(answer: str, truth: str) -> bool | None:
    with _lock:
        return _verdicts.get((answer, truth))


def _remember(answer: str, truth: str, same: bool) -> None:
    with _lock:
        _verdicts[answer, truth] = same
        if len(_verdicts) > _REMEMBERED:
            _verdicts.popitem(last=False)


class _Processes:
    """The child processes of this process, started when there is something to compare."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[Child] = []
        self._count = 0

    def take(self) -> Child:
        """A child that nobody else uses, with sympy loaded."""
        with self._changed:
            while not self._idle and self._count >= _MOST_PROCESSES:
                self._changed.wait()
            if self._idle:
                return self._idle.pop()
            self._count += 1
        try:
            return _started()
        except BaseException:
            self.lost()
            raise

    def give_back(self, child: Child) -> None:
        """Let others use it."""
        with self._changed:
            self._idle.append(child)
            self._changed.notify()

    def lost(self) -> None:
        """A child is no more."""
        with self._changed:
            self._count -= 1
            self._changed.notify()


_processes: dict[int, _Processes] = {}  # by process: a fork must not talk to its parent's children


def _started() -> Child:
    child = Child("reward_funcs.symbolic_main")
    child.socket.settimeout(_START_SECONDS)
    try:
        (message,) = child.read()
        if "ready" not in message:
            raise RuntimeError(f"math-verify does not load: {message.get('refused')}; pip install {PACKAGE}")
    except BaseException:
        child.kill()
        raise
    return child


def _ask(answer: str, truth: str, seconds: float) -> bool:
    with _lock:
        processes = _processes.setdefault(os.getpid(), _Processes())
    child = processes.take()
    try:
        child.send((answer, truth, seconds), timeout=seconds + _GRACE)
        child.socket.settimeout(seconds + _GRACE)
        (message,) = child.read()
    except (OSError, EOFError, BadReply):  # the process that watches is itself stopped: out of memory, or killed
        child.kill()
        processes.lost()
        return False
    except BaseException:  # Ctrl-C: what it would still say must not be taken for the next answer
        child.kill()
        processes.lost()
        raise
    processes.give_back(child)
    return bool(message["same"])
