"""A reward behind HTTP, by PaddleNLP's protocol (requirement S0-08): what `./train.sh serve-reward` runs. An ASGI app.

POST / {"src", "tgt", "response": lists of text, "data_source": optional list}; the answer is {"error_code",
"error_msg", "score"}. When a call fails the code is 500 and the scores are zeros, as upstream's; beside them "detail"
then has the scores of the others, and null for those that failed, which our own client reads. Leaves out the socket
(commands/serve_reward.py).
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from reward_funcs.errors import RewardError
from reward_funcs.returns import Score
from reward_funcs.score import Sample, last_line
from reward_funcs.scoring import Scoring

LARGEST = 64 * 2**20  # bytes of a question
MOST = 10_000  # responses in a question
LISTS = ("src", "tgt", "response")


def make_app(scoring: Scoring, *, data_source: str, token: str = "") -> Any:
    """The app. data_source: of questions that name none. token: the bearer token that is asked for; "" = none is."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def score(request: Request) -> JSONResponse:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            return _answer(401, "the bearer token is missing or wrong", [], status=401)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST:
                return _answer(413, f"a question has at most {LARGEST:,} bytes", [], status=413)
        try:
            samples = read_question(bytes(body), data_source)
        except RewardError as error:
            return _answer(400, str(error), [], status=400)
        return await run_in_threadpool(_scored, samples)

    def _scored(samples: list[Sample]) -> JSONResponse:
        try:
            attempts = scoring.attempts(samples)
        except RewardError as error:
            return _answer(500, str(error), [0.0] * len(samples))
        detail = [attempt.score if isinstance(attempt, Score) else None for attempt in attempts]
        failed = [attempt for attempt in attempts if isinstance(attempt, BaseException)]
        if not failed:
            return _answer(0, "", detail)
        said = f"{len(failed)} of {len(samples)} calls failed; the first: {last_line(failed[0], scoring)}"
        return _answer(500, said, [0.0] * len(samples), detail=detail)

    def _answer(code: int, text: str, scores: list[Any], *, status: int = 200, **more: Any) -> JSONResponse:
        return JSONResponse({"error_code": code, "error_msg": text, "score": scores, **more}, status_code=status)

    return Starlette(routes=[Route("/", score, methods=["POST"])])


def read_question(body: bytes, data_source: str) -> list[Sample]:
    """The samples of a question; raises RewardError for anything but three lists of text of one length."""
    try:
        question = json.loads(body)
    except (ValueError, RecursionError):
        raise RewardError('no JSON; a question is {"src": [...], "tgt": [...], "response": [...]}') from None
    if not isinstance(question, dict):
        raise RewardError('a question is {"src": [...], "tgt": [...], "response": [...]}')
    lists = [question.get(name) for name in LISTS]
    for name, values in zip(LISTS, lists, strict=True):
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise RewardError(f"`{name}` has to be a list of texts")
    prompts, truths, responses = lists
    assert prompts is not None
    assert truths is not None
    assert responses is not None
    if not len(prompts) == len(truths) == len(responses) <= MOST:
        raise RewardError(f"src, tgt and response have {len(prompts)}, {len(truths)} and {len(responses)} entries; "
                          f"they have to be as many, at most {MOST:,}")  # fmt: skip
    sources = question.get("data_source") or [data_source] * len(prompts)
    if not isinstance(sources, list) or len(sources) != len(prompts):
        raise RewardError("`data_source` has to be a list as long as the others")
    return [
        Sample(str(source), response, truth, {"index": i}, prompt=prompt)
        for i, (source, prompt, truth, response) in enumerate(zip(sources, prompts, truths, responses, strict=True))
    ]
