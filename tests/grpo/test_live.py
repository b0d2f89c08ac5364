"""What a user sees while training runs."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable

import pytest

from grpo.metrics.live import Progress


def test_off_a_terminal_each_step_is_one_line_and_columns_stand_under_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = {"reward_mean": 0.5, "reward_std": 0.25, "kl_loss": 0.002, "policy_loss": -0.001, "response_length": 7.5}
    with Progress(100) as progress:
        progress.phase("train", 100)
        progress.step(9, {**values, "tokens_per_second": 987.0})
        progress.step(10, {**values, "kl_loss": math.nan, "tokens_per_second": 12345.0})
        progress.note("checkpoint \x1b[31m")
    first, second, note, _ = capsys.readouterr().out.splitlines()
    for word in ("reward  0.500", "± 0.250", "kl_loss    0.002", "policy_loss   -0.001", "length   7.5", "tok/s"):
        assert first.index(word) == (second if word != "kl_loss    0.002" else first).index(word)
    assert first.startswith("step   9/100  ")
    assert "kl_loss        –" in second
    assert note == "checkpoint ␛[31m"


def test_the_time_left_is_that_of_recent_steps_and_outlives_an_evaluation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Progress(10) as progress:
        progress.phase("train", 10, done=4)
        clock[0] += 3
        progress.step(5, {"reward_mean": 0.5})
        progress.phase("evaluate", 8)
        clock[0] += 60
        progress.advance(8)
        progress.phase("train", 10, done=5)
        clock[0] += 5
        progress.step(6, {"reward_mean": 0.5})
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("left 0:15")  # 5 steps of 3 s
    assert out[1] == "evaluate: 8/8 in 1:00"
    assert out[2].endswith("left 0:16")  # 4 steps of (3 + 5) / 2 s
    assert out[3].startswith("train: 6/10 in 1:08")


def test_a_long_step_off_a_terminal_says_that_it_lives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Progress(10) as progress:
        progress.phase("train", 10)
        for done in range(0, 160, 10):
            clock[0] += 2
            progress.working("sampling", done, 160)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["train: sampling 70/160", "train: sampling 150/160"]  # every 16 s, not every 2


def on_terminal(act: Callable[[Progress], None]) -> str:
    """What a display of 80 columns shows at the end of `act`."""
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    with Progress(40, console) as progress:
        act(progress)
        with console.capture() as drawn:
            console.print(progress._render())
    return drawn.get()


def test_on_a_terminal_of_80_columns_the_display_shows_phase_numbers_and_work_in_progress() -> None:
    def act(progress: Progress) -> None:
        progress.phase("train", 40)
        for step in range(1, 13):
            progress.step(
                step, {"reward_mean": step / 10, "reward_std": 0.2, "kl_loss": 0.01, "tokens_per_second": 5200}
            )
        progress.working("sampling", 37, 160)

    shown = on_terminal(act)
    for expected in (
        "train",
        "12/40",
        "reward  1.200",
        "± 0.200",
        "kl_loss     0.01",
        "5,200 tok/s",
        "sampling 37/160",
    ):
        assert expected in shown
    assert "reward ▁▂▂▃▄▄▅▅▆▇▇█" in shown  # 12 steps from 0.1 to 1.2, (v - 0.1) / 1.1 * 7 rounded
    assert max(map(len, shown.splitlines())) <= 80


def test_without_the_console_logger_only_notes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(2, shown=False) as progress:
        progress.phase("train", 2)
        progress.step(1, {"reward_mean": 0.5})
        progress.note("checkpoint saved")
    assert capsys.readouterr().out == "checkpoint saved\n"
