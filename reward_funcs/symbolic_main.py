"""What runs in a process for symbolic comparison: sympy is loaded once, and a fork of it compares, which can be killed.

The first process never computes: it watches its fork, kills it at the deadline and forks again, which takes 10 ms where
starting sympy anew takes a second. The other end is symbolic.py. Equality is decided by values at several points, to 30
digits and at the first one to 650, or exactly where they are rational; without such values math-verify decides. No text
is executed: math-verify's LaTeX grammar reads it, not sympy's parse_expr, and the fork may start no program, open no
connection, and write no file.
"""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import socket
import sys
from typing import Any

from reward_funcs.child import Parent

MEMORY = 4 * 2**30  # bytes of address space
MANY_DIGITS = 700
POINTS = (  # values for the first, second, ... variable; no simple relation between them
    ("1.37", "0.61", "2.11", "0.83", "1.73", "0.29"),
    ("2.93", "3.77", "1.19", "4.31", "2.57", "5.09"),
    ("-0.71", "-2.41", "-1.63", "-0.37", "-3.19", "-1.97"),
    ("0.43", "-1.21", "3.03", "-2.27", "0.91", "-0.53"),
)
FORBIDDEN = (
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "ctypes.",
    "pty.",
    "fcntl.",
    "urllib.",
    "webbrowser.",
    "winreg.",
)
# What the grammar takes for a number is digits; sympy.Number reads those with these two pieces of Python.
_NUMBER = re.compile(r"from sympy import \*|\s*(?:Integer|Float)\s*\(\s*'?[0-9.]+'?\s*\)\s*")
_DECIMAL = re.compile(r"([+-]?)([0-9]*)\.([0-9]+)")


def main(fd: int, lifeline: int) -> None:
    """Answer until the parent is gone. In: (answer, truth, seconds). Out: {"ready"}, then {"same": true or false}."""
    parent = Parent(fd, lifeline)
    try:
        _same("x+1", "1+x")  # loads what comparing needs, before the fork
    except ImportError as error:
        parent.send({"refused": str(error)})
        return
    gc.freeze()
    worker = _Worker(fd)
    parent.send({"ready": True})
    while (pair := parent.receive()) is not None:
        answer, truth, seconds = pair
        same = worker.ask(answer, truth, seconds)
        if same is None:
            worker = _Worker(fd)
        parent.send({"same": bool(same)})
    worker.kill()


class _Worker:
    """A fork that compares."""

    def __init__(self, parents: int) -> None:
        self._socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._socket.close()
                os.close(parents)
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def ask(self, answer: str, truth: str, seconds: float) -> bool | None:
        """Whether both are equal; None when there was no answer in time, and the fork is no more."""
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(f"{answer}\0{truth}\0{seconds}".encode() + b"\n")
            reply = self._socket.recv(1)
        except OSError:
            reply = b""
        if reply in (b"1", b"0"):
            return reply == b"1"
        self.kill()
        return None

    def kill(self) -> None:
        """End the fork."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._socket.close()


def _serve(asked: socket.socket) -> None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if limit < 0 else min(MEMORY, limit), limit))
    lines = asked.makefile("rb")
    sys.addaudithook(_refuse)
    for line in lines:
        answer, truth, seconds = line.decode().rstrip("\n").split("\0")
        _bound_cpu(float(seconds))
        try:
            same = _same(answer, truth)
        except BaseException:  # noqa: BLE001 - what cannot be compared is not equal; MemoryError, RecursionError too
            same = False
        asked.sendall(b"1" if same else b"0")


def _bound_cpu(seconds: float) -> None:
    """The kernel ends this process, should nobody be there to do it at the deadline."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(used.ru_utime + used.ru_stime + 2 * seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. Behind the grammar as a second wall: should text reach `eval` after all, it does nothing."""
    if event.startswith(FORBIDDEN) and event not in ("os.listdir", "os.scandir", "os.getxattr"):
        raise PermissionError(event)
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        raise PermissionError(event)
    if event == "compile" and str(arguments[1]).startswith("<") and not _NUMBER.fullmatch(_source(arguments[0])):
        raise PermissionError(event)


def _source(text: Any) -> str:
    return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)


def _same(answer: str, truth: str) -> bool:
    from sympy import Basic, MatrixBase
    from sympy.core.relational import Relational

    ours, theirs = _parsed(answer), _parsed(truth)
    if isinstance(ours, Relational) and isinstance(theirs, Relational):
        return _same_relation(ours, theirs)
    if isinstance(ours, (Relational, MatrixBase)) or isinstance(theirs, (Relational, MatrixBase)):
        return False
    if not isinstance(ours, Basic) or not isinstance(theirs, Basic):
        return False
    by_value = _same_values(ours, theirs)
    if by_value is not None:
        return by_value or _is_decimal_of(answer, theirs) or _is_decimal_of(truth, ours)
    from math_verify import verify

    return bool(verify(theirs, ours, strict=True, timeout_seconds=None))


def _is_decimal_of(text: str, constant: Any) -> bool:
    """Whether the text is a decimal of six significant digits or more, rounded or cut from an irrational number.

    The policy of numerals.py for fractions without a finite decimal.
    """
    from sympy import Rational

    match = _DECIMAL.fullmatch(text.replace(" ", ""))
    if not match or constant.free_symbols or len((match[2] + match[3]).lstrip("0")) < 6:
        return False
    value = _value(constant, {})
    if value is None or value[1] or value[0].is_Rational or value[0] == 0:
        return False
    written = Rational(int(match[1] + match[2] + match[3]), 10 ** len(match[3]))
    was_cut = abs(written) < abs(value[0])
    return bool(abs(written - value[0]) <= Rational(1, 10 ** len(match[3])) / (1 if was_cut else 2))


def _parsed(text: str) -> Any:
    """What math-verify's LaTeX reader makes of an answer, with A and a kept apart; None when it cannot read it."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import Basic, Float, I, Rational

    text = normalize_latex(text, NormalizationConfig(basic_latex=True, units=False, malformed_operators=True))
    config = ConversionConfig(lowercase_symbols=False)
    read = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=config)
    if not isinstance(read, Basic):
        return read
    exact: dict[Any, Any] = {written: Rational(str(written)) for written in read.atoms(Float)}  # 0.1 is exact
    return read.xreplace(exact | {symbol: I for symbol in read.free_symbols if str(symbol) == "i"})


def _same_values(ours: Any, theirs: Any) -> bool | None:
    """Whether both have the same value wherever both are real; None where too few such points were found."""
    from sympy import I, Rational

    symbols = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    if len(symbols) > len(POINTS[0]):
        return None
    found, real = 0, not (ours.has(I) or theirs.has(I))
    for point in POINTS if symbols else POINTS[:1]:
        at = dict(zip(symbols, map(Rational, point), strict=False))
        one, other = _value(ours, at), _value(theirs, at)
        if one is None or other is None:
            continue
        if symbols and real and (one[1] or other[1]):  # outside of where the answer is meant
            continue
        found += 1
        if not _close(one[0], other[0]) or not _close(one[1], other[1]):
            return False
        if found == 1 and not _same_to_the_end(ours.subs(at).doit(), theirs.subs(at).doit()):
            return False
    return True if found >= (2 if symbols else 1) else None


def _value(expression: Any, at: dict[Any, Any]) -> tuple[Any, Any] | None:
    """(real part, imaginary part) to 40 digits, or None when there is no such number."""
    value = expression.subs(at).doit().evalf(40)
    real, imaginary = value.as_real_imag()
    if not (real.is_Float or real.is_Rational) or not (imaginary.is_Float or imaginary.is_Rational):
        return None
    return (real, 0 if abs(imaginary) < 1e-30 * (1 + abs(real)) else imaginary)


def _same_to_the_end(one: Any, other: Any) -> bool:
    """Whether two numbers that agree in 30 digits are the same: 2^100 is not 2^100 + 1."""
    from sympy import Rational

    if one.is_Rational and other.is_Rational:
        return bool(one == other)
    parts = [value.evalf(MANY_DIGITS, maxn=2 * MANY_DIGITS).as_real_imag() for value in (one, other)]
    off = abs(parts[0][0] - parts[1][0]) + abs(parts[0][1] - parts[1][1])
    return bool(off <= (abs(parts[0][0]) + abs(parts[0][1]) + 1) * Rational(1, 10**650))


def _close(one: Any, other: Any) -> bool:
    return bool(abs(one - other) <= (abs(one) + abs(other)) * 1e-30)


def _same_relation(ours: Any, theirs: Any) -> bool:
    """Equations, and inequalities of the same strictness, are the same when one is the other times a number."""
    from sympy import Eq, Ge, Gt, Le, Lt

    sides = {Eq: (0, 0), Lt: (-1, 0), Gt: (1, 0), Le: (-1, 1), Ge: (1, 1)}
    if ours.func not in sides or theirs.func not in sides:
        return False
    (ours_is, ours_weak), (theirs_is, theirs_weak) = sides[ours.func], sides[theirs.func]
    if ours_weak != theirs_weak or abs(ours_is) != abs(theirs_is):
        return False
    ratio = _proportional(ours.lhs - ours.rhs, theirs.lhs - theirs.rhs)
    return ratio is not None and (not ours_is or bool(ratio > 0) == (ours_is == theirs_is))


def _proportional(ours: Any, theirs: Any) -> Any:
    """The number that `theirs` times it is `ours`, or None when there is none."""
    from sympy import Rational

    symbols = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    if not symbols or len(symbols) > len(POINTS[0]) or ours.free_symbols != theirs.free_symbols:
        return None
    ratios = []
    for point in POINTS:
        at = dict(zip(symbols, map(Rational, point), strict=False))
        one, other = _value(ours, at), _value(theirs, at)
        if one is None or other is None or one[1] or other[1] or not one[0] or not other[0]:
            continue
        ratios.append(one[0] / other[0])
    return ratios[0] if len(ratios) > 2 and all(_close(ratio, ratios[0]) for ratio in ratios) else None
