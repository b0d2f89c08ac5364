"""Threads side by side on one copy of the weights: the same tokens, log-probs and gradients as one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.testing import assert_close

from grpo.embedded import lanes
from grpo.embedded.choosing import Sampling
from grpo.embedded.interrupts import StopRequested
from grpo.embedded.lanes import balanced, lanes_for, side_by_side
from grpo.embedded.memory import token_budget
from grpo.embedded.passes import log_probs
from grpo.embedded.policy import Policy
from grpo.embedded.rollout import Rollouts, sample
from grpo.embedded.update import Batch, update
from tests.embedded.conftest import ids, tiny_policy
from tests.embedded.test_update import OBJECTIVE

PROMPTS = ("1+2=?", "33+44=?", "5", "6+7=?", "80+9")


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.embedded.policy.lanes_of", lambda policy: 1)


def _sampled(policy: Policy, **more: object) -> Rollouts:
    return sample(policy, ids(policy, *PROMPTS), Sampling(n=3, max_length=20), seed=5, **more)


@pytest.mark.parametrize(
    ("weights", "threads", "expected"),
    [
        (3_000_000, 1, 1),  # nobody to share with
        (3_000_000, 2, 2),
        (3_000_000, 3, 3),
        (3_000_000, 4, 4),
        (3_000_000, 5, 4),  # one thread is left over; with two or three lanes there would be one or two, too
        (3_000_000, 6, 3),  # of two threads each
        (3_000_000, 7, 3),
        (3_000_000, 16, 4),  # Python itself runs in one of them at a time
        (32_000_000, 2, 2),
        (32_000_001, 2, 1),
    ],
)
def test_how_many_lanes_there_are(weights: int, threads: int, expected: int) -> None:
    assert lanes_for(weights, threads) == expected


def test_no_lanes_where_several_threads_may_not_run_the_model(two_threads, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny_policy().lanes == 2
    wide = tiny_policy()
    wide.dtype = torch.bfloat16
    recomputing, adapted = tiny_policy(), tiny_policy()
    recomputing.recompute_activations()
    adapted.adapter = object()  # type: ignore[assignment]
    assert [wide.lanes, recomputing.lanes, lanes.lanes_of(adapted)] == [1, 1, 1]
    torch.set_num_threads(1)
    assert tiny_policy().lanes == 1


def test_the_dearest_item_goes_first_to_whom_has_least_to_do() -> None:
    # 8 to the first; 5 and 4 to the second, whose load is then 9; 2 to the first, 10; 2 to the second, 11
    assert balanced([2, 8, 5, 2, 4], 2) == [[0, 1], [2, 3, 4]]
    assert balanced([7, 7], 3) == [[0], [1], []]


def test_what_lanes_sample_is_what_one_alone_samples(two_threads, policy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert policy.lanes == 2
    shared, again = _sampled(policy), _sampled(policy)
    few = _sampled(policy, max_rows=6)
    _alone(monkeypatch)
    alone = _sampled(policy)
    for got in (shared, few):
        for name in ("prompt_ids", "response_ids", "response_mask", "uid", "truncated"):
            assert getattr(got, name).equal(getattr(alone, name)), name
        assert_close(got.log_probs, alone.log_probs, atol=1e-5, rtol=0)
    assert shared.log_probs.equal(again.log_probs), "to the last digit, whoever was first"


def test_log_probs_and_gradients_of_lanes_are_those_of_one_alone(
    two_threads, policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = _sampled(policy)
    advantages = torch.linspace(-1.5, 1.5, len(rollouts.uid))
    batch = Batch(rollouts, advantages, rollouts.response_mask.clone(), rollouts.log_probs - 0.1)

    def found(**cut: int | None) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, float]]:
        told = log_probs(policy, rollouts, temperature=1.0, max_tokens=60)
        sgd = torch.optim.SGD(policy.model.parameters(), lr=0.0)
        stats = update(policy, sgd, batch, OBJECTIVE, **{"max_tokens": 200, "clip_grad": 1e9, **cut})  # type: ignore[arg-type]
        return told, [weight.grad.clone() for weight in policy.trained() if weight.grad is not None], stats

    shared, again = found(), found()
    cuts = [found(max_tokens=1), found(max_rows=3)]
    _alone(monkeypatch)
    alone = found()
    for told, gradients, stats in (shared, *cuts):
        assert_close(told, alone[0], atol=1e-5, rtol=0)
        for one, other in zip(gradients, alone[1], strict=True):
            assert_close(one, other, atol=3e-5 * float(other.abs().max()) + 1e-7, rtol=1e-3)
        for name, value in alone[2].items():
            assert stats[name] == pytest.approx(value, rel=1e-3, abs=5e-5), name
    assert all(one.equal(other) for one, other in zip(shared[1], again[1], strict=True))


def test_works_end_in_order_each_with_its_share_of_the_threads_and_the_sum_is_told_here(two_threads) -> None:
    told: list[tuple[int, str]] = []
    second = threading.Event()

    def work(number: int, tell) -> tuple[int, int, str]:
        if number == 0:
            second.wait(10)
        tell(3 + number)
        if number == 1:
            second.set()
        return number, torch.get_num_threads(), threading.current_thread().name

    works = [lambda tell: work(0, tell), lambda tell: work(1, tell)]
    here = threading.current_thread().name
    found = side_by_side(works, lambda done: told.append((done, threading.current_thread().name)))
    assert [each[:2] for each in found] == [(0, 1), (1, 1)]
    assert len({each[2] for each in found} | {here}) == 3
    assert told == [(4, here), (7, here)]
    assert side_by_side([lambda tell: threading.current_thread().name]) == [here]
    assert torch.get_num_threads() == 2


def test_what_one_raises_ends_the_others_and_so_does_a_stop(two_threads) -> None:
    told = threading.Event()

    def on(tell) -> None:
        while True:
            tell(1)
            told.set()

    def fails(tell) -> None:
        told.wait(10)
        raise ValueError("no such token")

    with pytest.raises(ValueError, match="no such token"):
        side_by_side([on, fails])
    with pytest.raises(ValueError, match="no such token"):
        side_by_side([fails, on])

    def stop(done: int) -> None:
        if done > 1:
            raise StopRequested

    with pytest.raises(StopRequested):
        side_by_side([on, on], stop)
    assert side_by_side([lambda tell: 1, lambda tell: 2]) == [1, 2], "the threads are there for the next"


def test_a_stop_between_two_tokens_ends_the_sampling_of_all(two_threads, policy) -> None:
    calls: list[int] = []

    def stop(done: int) -> None:
        calls.append(done)
        if len(calls) == 4:
            raise StopRequested

    with pytest.raises(StopRequested):
        _sampled(policy, on_token=stop)
    assert len(calls) == 4


def test_a_small_models_micro_batch_holds_two_long_responses_with_their_prompt() -> None:
    small = tiny_policy()
    per_token = 4 * (2 * (14 * 32 + 4 * small.model.config.intermediate_size) + 4 * small.model.config.vocab_size)
    plain = int(128e6 / per_token)
    assert token_budget(small) == plain
    assert token_budget(small, lanes=2) == pytest.approx(2 * plain, abs=1)
    assert token_budget(small, pair=plain + 7) == plain + 7
    assert token_budget(small, pair=int(512e6 / per_token) + 1) == plain  # two of so long ones would not fit either


def test_lanes_tell_of_every_response_that_has_ended(two_threads: None) -> None:
    policy, told = tiny_policy(), list[dict[int, list[int]]]()
    policy.in_lanes = True
    rollouts = _sampled(policy, on_ended=told.append)
    lengths = rollouts.response_mask.sum(1).tolist()
    found = {place: tokens for part in told for place, tokens in part.items()}
    assert policy.lanes == 2
    assert found == {row: rollouts.response_ids[row, :length].tolist() for row, length in enumerate(lengths)}
    assert sum(map(len, told)) == len(lengths)
