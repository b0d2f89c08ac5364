"""A batch's rewards, called while it is written: the calls and the scores are those of one call at the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.__main__ import main
from grpo.embedded.interrupts import StopRequested
from grpo.embedded.parallel import ALONE
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Prompt
from grpo.embedded.scoring import BatchScoring
from reward_funcs import RewardError, Sample, build_reward, load_reward, score_batch
from reward_funcs.scoring import Scoring

N = 4
TEXTS = ["1", "22", "3+3", "4", "55", "6=6", "777", "8"]  # of two prompts
FILES = {
    "single": "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    "    open(LOG, 'a').write(f'{solution_str} ')\n"
    "    return {'score': len(solution_str), 'truth': float(ground_truth), 'index': extra_info['index']}\n",
    "async": "async def compute_score(solution_str):\n"
    "    open(LOG, 'a').write(f'{solution_str} ')\n    return len(solution_str)\n",
    "lists": "def compute_score(completions, **kwargs):\n"
    "    open(LOG, 'a').write(f'{len(completions)} ')\n    return [len(one) for one in completions]\n",
    "fails": "def compute_score(solution_str):\n    return 1 / (len(solution_str) - 3)\n",
    "hangs": "import time\n\ndef compute_score(solution_str):\n"
    "    open(LOG, 'a').write('hangs ')\n    time.sleep(1000)\n",
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the reward's calls wrote."""
    (tmp_path / "log").touch()
    return tmp_path / "log"


@pytest.fixture
def reward_of(log: Path, tmp_path: Path) -> Callable[[str], str]:
    """A file of FILES, as --reward_func takes it."""

    def write(name: str) -> str:
        (tmp_path / f"{name}.py").write_text(f"LOG = {str(log)!r}\n{FILES[name]}")
        return str(tmp_path / f"{name}.py")

    return write


def prompts() -> list[Prompt]:
    return [
        Prompt(ids=[1], text=f"p{i}", data_source="m", ground_truth=str(i), extra_info={"index": i}) for i in range(2)
    ]


def tokens_of(policy: Policy, *places: int) -> dict[int, list[int]]:
    """As sampling tells: with the token that ends a response."""
    return {place: [*policy.tokenizer(TEXTS[place])["input_ids"], policy.stop_ids[0]] for place in places}


def opened(policy: Policy, scoring: Scoring, max_errors: float = 0.0) -> BatchScoring:
    return BatchScoring(ALONE, scoring, policy, prompts(), N, max_errors)


def whole(policy: Policy) -> tuple[list[str], list[int]]:
    return TEXTS, [len(tokens) for tokens in tokens_of(policy, *range(len(TEXTS))).values()]


def samples() -> list[Sample]:
    owners = [prompt for prompt in prompts() for _ in range(N)]
    return [
        Sample("m", t, p.ground_truth, p.extra_info, p.text, len(t) + 1) for p, t in zip(owners, TEXTS, strict=True)
    ]


def eventually(what: Callable[[], bool]) -> bool:
    """Whether it becomes true within the time that a worker takes to start on a busy machine."""
    until = time.monotonic() + 60
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["single", "async"])
def test_calls_begin_while_others_are_written_and_the_scores_are_in_order(policy, log, reward_of, name):
    with Scoring(load_reward(reward_of(name)), workers=2, timeout=60) as scoring, opened(policy, scoring) as batch:
        batch.ended(tokens_of(policy, 6))
        batch.ended(tokens_of(policy, 1))  # a quarter of them
        assert eventually(lambda: sorted(log.read_text().split()) == ["22", "777"])
        batch.ended(tokens_of(policy, 5))
        batch.ended(tokens_of(policy, 0, 2, 7))
        assert eventually(lambda: len(log.read_text().split()) == 6)
        batch.ended(tokens_of(policy, 3))  # too few to be called for before the end
        batch.begin(*whole(policy))
        got = batch.scores()
        assert sorted(log.read_text().split()) == sorted(TEXTS)  # each once
        assert got == score_batch(scoring, samples(), max_errors=0)
    assert got.scores == [len(text) for text in TEXTS]
    if name == "single":
        assert [parts["truth"] for parts in got.parts] == [0.0] * N + [1.0] * N


@pytest.mark.slow
def test_a_reward_of_lists_sees_the_whole_batch_as_soon_as_it_is_whole(policy, log, reward_of):
    with Scoring(load_reward(reward_of("lists")), workers=2, timeout=60) as scoring, opened(policy, scoring) as batch:
        batch.ended(tokens_of(policy, *range(6)))
        assert not batch._calls
        batch.begin(*whole(policy))
        assert eventually(lambda: log.read_text() == "8 ")  # before anybody waits for it
        assert batch.scores().scores == [len(text) for text in TEXTS]
        assert log.read_text() == "8 "


def test_a_reward_that_is_called_in_this_process_is_called_in_this_thread_once_all_is_there(policy):
    called: list[tuple[str, threading.Thread]] = []

    def reward(solution_str: str) -> float:
        called.append((solution_str, threading.current_thread()))
        return 1.0

    with Scoring(build_reward(function=reward), workers=2, timeout=60) as scoring, opened(policy, scoring) as batch:
        assert scoring.notes
        batch.ended(tokens_of(policy, *range(8)))
        batch.begin(*whole(policy))
        assert not called
        assert batch.scores().scores == [1.0] * 8
    assert called == [(text, threading.current_thread()) for text in TEXTS]


def test_rewards_of_this_room_wait_for_cores_that_are_free():
    """A program that a reward runs is given seconds by the clock: on a CPU, sampling would take some of them."""
    with Scoring(build_reward(), workers=2, timeout=60, ours_here=True) as scoring:
        assert scoring.may_begin(cores_free=True)
        assert not scoring.may_begin(cores_free=False)
        assert scoring.one_by_one
    with Scoring(build_reward(names="format"), workers=0, timeout=60) as scoring:
        assert not scoring.may_begin(cores_free=True)


@pytest.mark.slow
def test_failed_calls_count_against_the_whole_batch(policy, reward_of):
    with Scoring(load_reward(reward_of("fails")), workers=2, timeout=60) as scoring:
        for allowed in (0.4, 0.3):  # three of eight fail
            with opened(policy, scoring, max_errors=allowed) as batch:
                batch.ended(tokens_of(policy, 2, 5))
                batch.begin(*whole(policy))
                if allowed < 3 / 8:
                    with pytest.raises(RewardError, match=r"3 of 8 reward calls failed.*first, record 0: ZeroDivision"):
                        batch.scores()
                else:
                    got = batch.scores()
                    assert [i for i, score in enumerate(got.scores) if score is None] == [2, 5, 6]
                    assert got.errors == 3


@pytest.mark.slow
def test_leaving_a_batch_ends_its_calls_and_a_stop_reaches_who_waits(policy, log, reward_of):
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise StopRequested

    with Scoring(load_reward(reward_of("hangs")), workers=2, timeout=1000, on_wait=check) as scoring:
        with opened(policy, scoring) as batch:
            batch.ended(tokens_of(policy, 0, 1))
            assert eventually(lambda: bool(log.read_text()))
        assert isinstance(batch._calls[0][1].exception(), Exception)  # over, or this would not return
        with opened(policy, scoring) as batch:
            batch.begin(*whole(policy))
            stop.set()
            with pytest.raises(StopRequested):
                batch.scores()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["single", "lists"])
def test_a_run_is_scored_so_in_training_and_in_evaluation(in_folder, reward_of, monkeypatch, name):
    calls: list[tuple[str, int]] = []
    attempts = Scoring.attempts

    def watched(self: Scoring, samples: list[Sample], **more: Any) -> Any:
        if samples:
            calls.append((threading.current_thread().name.split("_")[0], len(samples)))
        return attempts(self, samples, **more)

    monkeypatch.setattr(Scoring, "attempts", watched)
    rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": "1", "data_source": "m"} for n in range(8)]
    Path("data.json").write_text(json.dumps(rows))
    words = ["--data=data.json", "--val_data=data.json", "--model=scratch", f"--reward_func={reward_of(name)}"]
    words += ["--train_batch_size=8", "--rollout_n=4", "--max_steps=1", "--max_response_length=200", "--device=cpu"]
    assert main([*words, "--kl_coef=0.01", "--force"]) == 0
    sizes = [size for thread, size in calls if thread == "scoring"]  # others are of the rehearsal before the run
    if name == "lists":
        assert sizes == [8, 32, 8]  # evaluation, training, evaluation
    else:
        assert sum(sizes) == 48
        assert len(sizes) > 3
    lines = [json.loads(line) for line in Path("outputs/completions.jsonl").read_text().splitlines()]
    assert len(lines) == 48
    assert all(line["reward"] == len(line["response"]) for line in lines)
