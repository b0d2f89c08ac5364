"""`server:URL`: rewards from another process, by PaddleNLP's protocol (requirement S0-08). Nothing it says is trusted.

POST {"src": [prompts], "tgt": [labels], "response": [responses]}; the answer is {"error_code": 0, "error_msg": "",
"score": [...]}. Ours, `./train.sh serve-reward`, adds "detail" when only some failed: scores, null where one did.
`data_source` goes along.
The bearer token is read from the environment, REWARD_SERVER_TOKEN, and appears in no message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reward_funcs.async_calls import run_all
from reward_funcs.errors import RewardError
from reward_funcs.http_json import check_url, post, short
from reward_funcs.prompts import as_text
from reward_funcs.returns import Attempt, Score
from reward_funcs.score import Sample

TOKEN = "REWARD_SERVER_TOKEN"
BYTES_A_SCORE = 4_096  # of a reply
LEAST_BYTES = 2**20


class Server:
    """A reward server's score, whatever it means; range low to high.

    url: http or https. timeout: seconds for one request, whole. retries: new tries after no connection, a timeout
    or an error of the server. batch: responses in one request. low, high: a score outside is a failed call.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        retries: int = 2,
        batch: int = 64,
        low: float = -100.0,
        high: float = 100.0,
    ) -> None:
        for name, value in (("timeout", timeout), ("batch", batch)):
            if value <= 0:
                raise RewardError(f"--reward server: {name}={value:g} has to be more than 0")
        if low >= high or retries < 0:
            raise RewardError("--reward server: low has to be less than high, and retries not negative")
        check_url(url, TOKEN)
        self.url, self._timeout, self._retries, self._batch = url, timeout, retries, batch
        self._low, self._high = low, high

    def __call__(self, samples: Sequence[Sample]) -> list[Attempt]:
        """The server's score of each sample; the batches are asked for at the same time."""
        parts = [samples[start : start + self._batch] for start in range(0, len(samples), self._batch)]
        replies: list[Any] = [None] * len(parts)
        run_all([lambda part=part: self._ask(part) for part in parts], replies.__setitem__)
        return [attempt for part, reply in zip(parts, replies, strict=True) for attempt in self._read(part, reply)]

    async def _ask(self, samples: Sequence[Sample]) -> Any:
        question = {
            "src": [as_text(sample.prompt) for sample in samples],
            "tgt": [str(sample.ground_truth) for sample in samples],
            "response": [sample.solution for sample in samples],
            "data_source": [sample.data_source for sample in samples],
        }
        largest = LEAST_BYTES + BYTES_A_SCORE * len(samples)
        limits = {"timeout": self._timeout, "retries": self._retries, "largest": largest}
        return await post(self.url, question, token_name=TOKEN, **limits)

    def _read(self, samples: Sequence[Sample], reply: Any) -> list[Attempt]:
        if isinstance(reply, RewardError):
            return [reply] * len(samples)
        if isinstance(reply, BaseException):
            raise reply
        try:
            return self._scores(reply, len(samples))
        except RewardError as error:
            return [error] * len(samples)

    def _scores(self, reply: Any, count: int) -> list[Attempt]:
        if not isinstance(reply, dict) or "score" not in reply:
            raise RewardError(f"{self.url} answered without `score`; it has to speak error_code, error_msg, score")
        detail = reply.get("detail")
        if reply.get("error_code") not in (0, None) and not isinstance(detail, list):
            raise RewardError(f"{self.url} says error {short(reply['error_code'])}: {short(reply.get('error_msg'))}")
        scores = detail if isinstance(detail, list) else reply["score"]
        if not isinstance(scores, list) or len(scores) != count:
            given = len(scores) if isinstance(scores, list) else type(scores).__name__
            raise RewardError(f"{self.url} gave {given} scores for {count} responses")
        message = short(reply.get("error_msg"))
        return [self._one(score, message) for score in scores]

    def _one(self, score: Any, message: str) -> Attempt:
        if score is None:
            return RewardError(f"{self.url} could not score this response: {message}")
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
            return RewardError(f"{self.url} gave {short(score)}, which is no score")
        if not self._low <= score <= self._high:
            return RewardError(
                f"{self.url} gave {score:g}, outside of {self._low:g} to {self._high:g}; see low= and high= of server"
            )
        return Score(float(score))
