"""What the user sees while training runs: a live display on a terminal, one aligned line per step elsewhere.

Leaves out files and services (log.py, loggers.py). rich is imported only for a terminal.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from grpo.metrics.safe_text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_RECENT = 20  # steps whose mean duration predicts the time left
_TREND = 24  # characters of the reward's little curve
_QUIET = 15.0  # seconds after which a phase without a display says that it lives

# What a step's line shows: name, words before and after the number, format.
_SHOWN = (
    ("loss", "loss", "", "7.4f"),
    ("reward_mean", "reward", "", "6.3f"),
    ("reward_std", "±", "", "5.3f"),
    ("kl_loss", "kl_loss", "", "8.2g"),
    ("policy_loss", "policy_loss", "", "+8.2g"),
    ("response_length", "length", "", "5.1f"),
    ("tokens_per_second", "", "tok/s", "7,.0f"),
    ("val_accuracy", "val_accuracy", "", "5.3f"),
    ("val_loss", "val_loss", "", "6.4f"),
)


class Progress:
    """Progress of one run, as a context manager.

        with Progress(total_steps) as progress:
            progress.phase("warm-up (SFT)", 500); progress.advance(loss=1.2)
            progress.phase("train", total_steps, done=resume_step)
            progress.working("sampling", 37, 160); progress.step(1, values); progress.note("checkpoint saved")

    total_steps: of training. console: where to draw (a rich Console); by default standard output, as a live display
    when it is a terminal. shown: False prints notes alone (`console` is not among the loggers).
    """

    def __init__(self, total_steps: int, console: Console | None = None, *, shown: bool = True) -> None:
        self.total_steps = total_steps
        self._console = console
        self._stream: TextIO = console.file if console else sys.stdout  # pyright: ignore[reportAttributeAccessIssue]
        self._shown = shown
        terminal = console.is_terminal if console else self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._on_terminal = shown and terminal
        self._live: Live | None = None
        self._name, self._done, self._total = "", 0, 0
        self._began = self._said = self._stepped = time.monotonic()
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._left_off: dict[str, tuple[float, deque[float]]] = {}
        self._rewards: list[float] = []
        self._values: dict[str, Any] = {}
        self._work = ""

    def __enter__(self) -> Progress:
        if self._on_terminal:
            from rich.console import Console
            from rich.live import Live

            self._console = self._console or Console()
            # It redraws itself four times a second, so the clock moves while a long step runs.
            live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)
            live.start()
            self._live = live
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_phase(for_good=True)
        if self._live:
            self._live.stop()
            self._live = None

    def phase(self, name: str, total: int, *, done: int = 0) -> None:
        """Start a phase of `total` steps, of which `done` are behind: in a resumed run, or when an evaluation came
        between, and then its clock goes on."""
        self._end_phase()
        self._name, self._total, self._done = name, total, done
        self._values, self._work = {}, ""
        now = self._said = self._stepped = time.monotonic()
        fresh = (now, deque(maxlen=_RECENT))
        self._began, self._durations = self._left_off.get(name, fresh) if done else fresh

    def advance(self, count: int = 1, **values: float) -> None:
        """`count` more of a phase's steps are done (SFT steps, evaluation prompts); `values` stand beside the bar."""
        self._tick(self._done + count)
        self._values = dict(values)
        self._breathe()

    def working(self, what: str, done: int, total: int) -> None:
        """What goes on inside a step, such as ("sampling", 37 of 160 responses)."""
        self._work = f"{what} {done:,}/{total:,}"
        self._breathe()

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Training step `step` is done, with these metrics by their plain names."""
        self._tick(step)
        self._values, self._work = dict(values), ""
        if "reward_mean" in values:
            self._rewards.append(float(values["reward_mean"]))
        if self._shown and not self._on_terminal:
            self._print(
                f"step {step:>{len(str(self._total))}}/{self._total}  {'  '.join(_pieces(values))}{self._left()}"
            )

    def note(self, text: str) -> None:
        """Say one thing above the display; shown even where steps are not."""
        self._print(visible(text))

    def _tick(self, done: int) -> None:
        now = time.monotonic()
        if done > self._done:
            self._durations.append((now - self._stepped) / (done - self._done))
        self._done, self._stepped = done, now

    def _end_phase(self, *, for_good: bool = False) -> None:
        if self._name and self._shown and (for_good or self._done >= self._total):
            clock = _clock(time.monotonic() - self._began)
            last = [" ".join(piece.split()) for piece in self._pieces()]
            self._print("  ".join([f"{self._name}: {self._count()}in {clock}", *last]))
        self._left_off[self._name] = self._began, self._durations
        self._name = ""

    def _pieces(self) -> list[str]:
        return _pieces(self._values) or [f"{name} {value:.4g}" for name, value in self._values.items()]

    def _breathe(self) -> None:
        """Without a display, a long silence looks like a hang."""
        now = time.monotonic()
        waiting = self._name and self._done < self._total
        if waiting and self._shown and not self._on_terminal and now - self._said > _QUIET:
            self._print(f"{self._name}: {self._work or self._count() or '...'}{self._left()}")

    def _count(self) -> str:
        """How far the phase is; nothing for one that is a single wait."""
        return f"{self._done:,}/{self._total:,} " if self._total > 1 else ""

    def _left(self) -> str:
        seconds = self._seconds_left()
        return "" if seconds is None else f"  left {_clock(seconds)}"

    def _seconds_left(self) -> float | None:
        remaining = self._total - self._done
        recent = tuple(self._durations)  # a copy: the display's thread asks too
        return remaining * sum(recent) / len(recent) if recent and remaining > 0 else None

    def _print(self, text: str) -> None:
        self._said = time.monotonic()
        if self._live and self._console:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        safe = text.encode(encoding, "backslashreplace").decode(encoding)  # an ASCII log must not end a run
        with contextlib.suppress(BrokenPipeError):  # nor a reader that went away (`| head`)
            print(safe, file=self._stream, flush=True)

    def _render(self) -> RenderableType:
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if not self._name:
            return Text("")
        left = self._seconds_left()
        clock = f"{_clock(time.monotonic() - self._began)}" + (f" · left {_clock(left)}" if left is not None else "")
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True)
        head.add_row(
            Text(self._name, style="bold"),
            ProgressBar(total=max(1, self._total), completed=self._done),
            Text(f"{self._count()}· {clock}" if self._total > 1 else clock),
        )
        lines: list[RenderableType] = [head]
        if below := [*map(Text, self._pieces()), *([Text(self._work, style="dim")] if self._work else [])]:
            lines.append(Columns(below, padding=(0, 2)))
        if len(self._rewards) > 1 and self._console and self._console.encoding.startswith("utf"):
            lines.append(Text(_little_curve(self._rewards), style="cyan"))
        return Group(*lines)


def _pieces(values: Mapping[str, float]) -> list[str]:
    """The numbers of a step in fixed widths, so that lines stand under each other; unmeasured ones as a dash."""
    pieces = []
    for name, before, after, form in _SHOWN:
        if name in values:
            number = values[name]
            width = form.lstrip("+").split(".")[0].rstrip(",")
            finite = number is not None and math.isfinite(number)
            text = format(number, form) if finite else "–".rjust(int(width))
            pieces.append(" ".join(part for part in (before, text, after) if part))
    return pieces


def _little_curve(values: list[float]) -> str:
    """The reward so far in one line of bars."""
    count = min(_TREND, len(values))
    cuts = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    means = [sum(v for v in cut if math.isfinite(v)) / max(1, len(cut)) for cut in cuts]
    low, high = min(means), max(means)
    bars = "▁▂▃▄▅▆▇█"
    return "reward " + "".join(bars[round((v - low) / (high - low) * 7) if high > low else 0] for v in means)


def _clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
