"""What is said of each metric, on series whose trend can be worked out by hand."""

from __future__ import annotations

import pytest

from grpo.metrics.history import Series
from grpo.metrics.verdicts import trend, verdicts


def judged(**values: list[float]) -> dict[str, tuple[str, str]]:
    history = {name: Series(list(range(1, len(v) + 1)), v) for name, v in values.items()}
    return {verdict.metric: (verdict.level, verdict.en) for verdict in verdicts(history)}


RISING = [0.1 * step for step in range(1, 11)]


def test_a_trend_compares_the_first_fifth_with_the_last_and_wants_two_standard_errors() -> None:
    assert trend([0.0] * 9) is None
    now = trend([0.0, 1.0, 2.0, *[9.0] * 4, 4.0, 5.0, 6.0])  # a fifth of ten is less than 3: three and three
    assert now is not None
    assert (now.early, now.late, now.direction) == (1.0, 5.0, "rises")  # error sqrt((1 + 1) / 3) = 0.816; 4 > 1.633
    flat = trend([0.0, 1.0, 2.0, *[9.0] * 4, 1.0, 2.0, 3.0])  # 1 < 1.633
    assert flat is not None
    assert flat.direction == "flat"


def test_a_rising_reward_and_a_falling_spread_are_good() -> None:
    """S2-37, S2-38"""
    found = judged(reward_mean=RISING, reward_std=RISING[::-1])
    assert found["reward_mean"] == ("good", "rises: 0.2 → 0.9")
    assert found["reward_std"] == ("good", "falls: 0.9 → 0.2")


def test_a_reward_that_is_always_zero_points_at_data_source_answer_and_format() -> None:
    """S2-35"""
    level, text = judged(reward_mean=[0.0] * 10)["reward_mean"]
    assert level == "attention"
    assert all(word in text for word in ("data_source", "answer", "ground_truth"))


def test_an_unstable_run_is_told_the_three_flags() -> None:
    """S2-34"""
    level, text = judged(reward_mean=RISING[::-1])["reward_mean"]
    assert level == "attention"
    assert all(flag in text for flag in ("--lr 5e-7", "--kl_coef 0.01", "--rollout_n 8"))


@pytest.mark.parametrize(("late", "level"), [(0.0005, "normal"), (0.001, "good"), (0.1, "good"), (0.11, "attention")])
def test_kl_is_judged_by_its_band(late: float, level: str) -> None:
    assert judged(kl_loss=[0.0] * 7 + [late] * 3)["kl_loss"][0] == level  # S2-39


def test_a_loss_near_zero_and_a_clip_fraction_of_zero_are_normal() -> None:
    found = judged(policy_loss=[1e-9, -1e-9] * 5, clip_fraction=[0.0] * 10)
    assert found["policy_loss"][0] == "normal"  # S2-40, S3-02
    assert found["clip_fraction"][0] == "normal"  # S4-10


def test_answers_that_grow_without_reward_get_drgrpo_and_those_that_earn_it_do_not() -> None:
    """S2-36, S2-41"""
    longer = [100.0 * step for step in range(1, 11)]
    level, text = judged(response_length=longer, reward_mean=[0.5, 0.6] * 5)["response_length"]
    assert (level, "--recipe drgrpo" in text) == ("attention", True)
    assert judged(response_length=longer, reward_mean=RISING)["response_length"][0] == "normal"
    assert judged(response_length=[7.0] * 10)["response_length"][0] == "good"


def test_what_needs_attention_is_said_first() -> None:
    found = judged(policy_loss=[0.0] * 10, reward_mean=RISING, clip_fraction=[0.3] * 10)
    assert [level for level, _ in found.values()] == ["attention", "good", "normal"]


def test_few_steps_are_not_judged_and_a_nan_comes_first() -> None:
    assert judged(kl_loss=[9.0] * 9)["kl_loss"] == ("unknown", "9 values: too few to judge")
    history = {"reward_mean": Series(list(range(10)), RISING), "grad_norm": Series([1], [1.0], [7, 8])}
    first = verdicts(history)[0]
    assert (first.metric, first.level) == ("grad_norm", "attention")
    assert "step 7" in first.en
