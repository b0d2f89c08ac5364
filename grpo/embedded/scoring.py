"""The rewards of a batch, called while the batch is still being written.

A response that has ended waits for the others to end; its reward need not. Where every response is scored for itself
and apart from this process, calls begin with each quarter of the batch that has ended, and the last ones go on while
the reference is asked. What is called with what, and the order of the scores, is as in one call for all at the end.
Left out: calling rewards (reward_funcs/scoring.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from grpo.embedded.interrupts import Interrupts
from grpo.embedded.parallel import World
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Prompt
from grpo.embedded.rollout import Rollouts
from grpo.engine import Run, reward_arguments
from reward_funcs import Sample, Scores, build_reward
from reward_funcs.returns import Attempt
from reward_funcs.score import scores_of
from reward_funcs.scoring import Scoring

PARTS = 4  # of a batch, that are handed over one by one: an `async def` waits for all calls of its part


def open_scoring(run: Run, interrupts: Interrupts) -> Scoring:
    """The reward, its calls in worker processes with a deadline; ours, which end by themselves, in this one."""
    reward = build_reward(function=run.reward, **reward_arguments(run.config))
    workers = min(int(run.config.reward.num_workers), os.cpu_count() or 1)
    timeout = float(run.config.launcher.reward.timeout)
    return Scoring(reward, workers=workers, timeout=timeout, ours_here=True, on_wait=interrupts.check)


class BatchScoring:
    """The scores of n responses to each prompt: with `ended` told as they are sampled, then `begin`, then `scores`.

    The first process alone has the reward and calls it: one may look at the whole batch, hold a model, or count its
    calls. Leaving it ends the calls that are under way.
    """

    def __init__(
        self, world: World, reward: Scoring | None, policy: Policy, prompts: Sequence[Prompt], n: int, max_errors: float
    ) -> None:
        self._world, self._reward, self._max_errors = world, reward, max_errors
        self._tokenizer, self._owners = policy.tokenizer, [prompt for prompt in prompts for _ in range(n)]
        self._early = reward is not None and reward.may_begin(cores_free=policy.device.type != "cpu")
        self._calls: list[tuple[list[int], Future[list[Attempt]]]] = []
        self._waiting: dict[int, list[int]] = {}  # have ended and are of no call yet: response -> its tokens
        self._samples: list[Sample] = []
        self._lock, self._left = threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(PARTS + 1, thread_name_prefix="scoring")  # begins a thread when it needs one

    def __enter__(self) -> BatchScoring:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._pool.shutdown(cancel_futures=True)

    def ended(self, tokens: Mapping[int, list[int]]) -> None:
        """These responses have ended; told by any thread. tokens: by their place in the batch."""
        if self._reward is None or not self._early or not self._reward.one_by_one:
            return
        with self._lock:
            self._waiting |= tokens
            if PARTS * len(self._waiting) >= len(self._owners):
                part, self._waiting = self._waiting, {}
                self._calls.append((list(part), self._pool.submit(self._of_tokens, part)))

    def begin(self, responses: Sequence[str], lengths: Sequence[int]) -> None:
        """All have ended: call for those that were not called for, if that need not be done in this thread.

        lengths: in tokens.
        """
        self._samples = [self._sample(*each) for each in enumerate(zip(responses, lengths, strict=True))]
        if self._early:
            rest = self._uncalled()
            self._calls.append((rest, self._pool.submit(self._attempts, [self._samples[i] for i in rest])))

    def scores(self) -> Scores:
        """What the reward says of all, in order. Raises RewardError when too many calls fail."""
        return self._world.from_first(self._scores)

    def _scores(self) -> Scores:
        assert self._reward is not None, "the first process has the reward"
        found = {i: attempt for mine, call in self._calls for i, attempt in zip(mine, call.result(), strict=True)}
        rest = self._uncalled()
        found |= zip(rest, self._reward.attempts([self._samples[i] for i in rest]), strict=True)
        attempts = [found[i] for i in range(len(self._samples))]
        return scores_of(self._reward, self._samples, attempts, max_errors=self._max_errors)

    def _uncalled(self) -> list[int]:
        called = {i for mine, _ in self._calls for i in mine}
        return [i for i in range(len(self._samples)) if i not in called]

    def _of_tokens(self, tokens: Mapping[int, list[int]]) -> list[Attempt]:
        texts = self._tokenizer.batch_decode(list(tokens.values()), skip_special_tokens=True)
        pairs = zip(tokens, zip(texts, map(len, tokens.values()), strict=True), strict=True)
        return self._attempts([self._sample(*pair) for pair in pairs])

    def _attempts(self, samples: list[Sample]) -> list[Attempt]:
        assert self._reward is not None

        def on_wait() -> None:
            if self._left.is_set():
                raise _Left
            if self._reward is not None and self._reward.on_wait:
                self._reward.on_wait()

        return self._reward.attempts(samples, on_wait=on_wait)

    def _sample(self, place: int, said: tuple[str, int]) -> Sample:
        prompt, (response, length) = self._owners[place], said
        return Sample(prompt.data_source, response, prompt.ground_truth, prompt.extra_info, prompt.text, length)


class _Left(Exception):
    """Nobody waits for these scores any more."""


def responses_text(policy: Policy, rollouts: Rollouts) -> list[str]:
    """The responses as text, without special tokens (the stop token, padding)."""
    lengths = lengths_of(rollouts)
    ids = [row[:length] for row, length in zip(rollouts.response_ids.tolist(), lengths, strict=True)]
    return policy.tokenizer.batch_decode(ids, skip_special_tokens=True)


def lengths_of(rollouts: Rollouts) -> list[int]:
    """Tokens of each response, the stop token included."""
    return rollouts.response_mask.sum(1).tolist()
