"""`serve-reward` and `--reward server:URL`: PaddleNLP's protocol, and servers that mean no good. S0-08, goal 6.20"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reward_funcs import RewardError, Sample, Score, build_reward, http_json
from reward_funcs.reward_server import read_question

pytestmark = pytest.mark.slow  # processes of its own

SAMPLES = [
    Sample("math_reasoning", "so 42", "42", prompt="6 * 7 = ?"),
    Sample("math_reasoning", "so 41", "42", prompt=[{"role": "user", "content": "6 * 7 = ?"}]),
]


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request and then does with the connection what it likes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
            while len(body) < length:
                body += connection.recv(65536)
            requests.append((head.decode(), json.loads(body)))
            answer(connection)

    def loop() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    requests.clear()
    threading.Thread(target=loop, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()


requests: list[tuple[str, Any]] = []


def reply(body: bytes | str, *, status: str = "200 OK", headers: str = "") -> Callable[[socket.socket], None]:
    data = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return lambda connection: connection.sendall(head.encode() + data)


def ask(url: str, parameters: str = "", *, seconds: float = 30) -> list[Any]:
    reward = build_reward(names=f"server:{url}:timeout={seconds}:retries=0{parameters}")
    return [got.score if isinstance(got, Score) else str(got) for got in reward.attempts(SAMPLES)]


def test_the_question_and_the_answer_are_those_of_the_protocol():
    # S0-08
    with serving(reply('{"error_code": 0, "error_msg": "", "score": [1.5, -2]}')) as url:
        assert ask(url) == [1.5, -2.0]
    ((head, question),) = requests
    assert head.startswith("POST / HTTP/1.1")
    assert {name: question[name] for name in ("src", "tgt", "response")} == {
        "src": ["6 * 7 = ?", "6 * 7 = ?"],
        "tgt": ["42", "42"],
        "response": ["so 42", "so 41"],
    }
    assert "authorization" not in head.lower()


def test_an_error_of_the_server_is_a_failed_call_and_never_a_zero():
    # S0-08: on error code 500 and zeros
    with serving(reply('{"error_code": 500, "error_msg": "no judge", "score": [0, 0]}')) as url:
        assert all("says error 500: 'no judge'" in got for got in ask(url))


def test_a_large_batch_is_asked_in_parts_and_comes_back_in_order():
    def echo(connection: socket.socket) -> None:
        scores = [float(text) for text in requests[-1][1]["response"]]
        time.sleep(0.01)
        reply(json.dumps({"error_code": 0, "error_msg": "", "score": scores}))(connection)

    with serving(echo) as url:
        reward = build_reward(names=f"server:{url}:batch=7")
        # one at a time, so that `requests[-1]` is this connection's
        got = [reward.attempts([Sample("m", str(i), "")] * 8)[7] for i in range(5)]
    assert [one.score for one in got if isinstance(one, Score)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sorted(len(question["src"]) for _, question in requests) == [1] * 5 + [7] * 5


def drip(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        for _ in range(200):
            connection.sendall(piece)
            time.sleep(0.05)

    return answer


def flood(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _ in range(1024):
        connection.sendall(b" " * 2**20)


BOMB = gzip.compress(b" " * 50_000_000)
HOSTILE = {
    "redirect": (reply("", status="302 Found", headers="Location: http://127.0.0.1:1/\r\n"), "status 302"),
    "body drips": (drip(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b" "), "no answer within 0.5 s"),
    "headers drip": (drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), "no answer within 0.5 s"),
    "says nothing": (lambda connection: time.sleep(3), "no answer within 0.5 s|ReadTimeout"),
    "a gigabyte": (flood, "more than 1,056,768 bytes"),
    "compressed": (reply(BOMB, headers="Content-Encoding: gzip\r\n"), "no JSON"),
    "too few": (reply('{"error_code": 0, "score": [1]}'), "gave 1 scores for 2 responses"),
    "too many": (reply('{"error_code": 0, "score": [1, 2, 3]}'), "gave 3 scores for 2"),
    "no list": (reply('{"error_code": 0, "score": 1}'), "gave int scores for 2"),
    "no score": (reply('{"reward": [1, 2]}'), "answered without `score`"),
    "a list": (reply("[1, 2]"), "answered without `score`"),
    "NaN": (reply('{"error_code": 0, "score": [NaN, NaN]}'), "gave nan, which is no score"),
    "infinite": (reply('{"error_code": 0, "score": [1e999, -1e999]}'), "inf, which is no score"),
    "text": (reply('{"error_code": 0, "score": ["1", true]}'), "which is no score"),
    "out of range": (reply('{"error_code": 0, "score": [1e6, -1e6]}'), "outside of -100 to 100"),
    "HTML": (reply("<html>\r\n<body>log in</body></html>"), "no JSON, but '<html>"),
    "deep": (reply("[" * 200_000), "no JSON"),
    "error 500": (reply("<h1>oops</h1>", status="500 Internal Server Error"), "status 500"),
    "error 404": (reply("", status="404 Not Found"), "status 404"),
    "error 401": (reply("", status="401 Unauthorized"), "status 401; set REWARD_SERVER_TOKEN"),
    "closes": (lambda connection: connection.close(), "RemoteProtocolError|ReadError"),
    "half": (lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"), "Error"),
    "no HTTP": (lambda connection: connection.sendall(b"\x00\xff" * 100 + b"\r\n\r\n"), "Error"),
}


WITHOUT_END = ("body drips", "headers drip", "says nothing")  # what these cost is their deadline


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_costs_its_deadline_and_fails_its_calls(name):
    # RELIABILITY 6.20
    answer, said = HOSTILE[name]
    with serving(answer) as url:
        got = ask(url, seconds=0.5 if name in WITHOUT_END else 30)
    for line in got:
        assert re.search(said, line), line
        assert "\n" not in line
        assert len(line) < 400


def test_what_may_pass_is_tried_again_and_what_may_not_is_not(monkeypatch):
    monkeypatch.setattr(http_json, "PAUSE", 0.01)

    def second_time(connection: socket.socket) -> None:
        fails = len(requests) < 2
        text = "" if fails else '{"error_code": 0, "score": [1, 2]}'
        reply(text, status="503 Busy" if fails else "200 OK")(connection)

    with serving(second_time) as url:
        reward = build_reward(names=f"server:{url}:retries=1")
        assert [got.score for got in reward.attempts(SAMPLES) if isinstance(got, Score)] == [1.0, 2.0]
    with serving(reply("", status="400 Bad Request")) as url:
        build_reward(names=f"server:{url}:retries=5").attempts(SAMPLES)
        assert len(requests) == 1


def test_the_token_comes_from_the_environment_and_is_in_no_message(monkeypatch):
    # RELIABILITY 6.20, 6.21
    monkeypatch.setenv("REWARD_SERVER_TOKEN", "s3cret-token")
    with serving(reply("you sent s3cret-token", status="200 OK")) as url:
        got = ask(url)
    assert "Bearer s3cret-token" in requests[0][0]
    assert all("s3cret" not in line for line in got), got


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://127.0.0.1/", "is no address"),
        ("file:///etc/passwd", "is no address"),
        ("http://", "is no address"),
        ("http://127.0.0.1:99999", "is no address"),
        ("http://user:pass@127.0.0.1:1", "would be logged"),
        ("http://169.254.169.254/latest", "an address where no such server is"),
        ("http://[fe80::1]/", "an address where no such server is"),
        ("http://0.0.0.0:80", "an address where no such server is"),
    ],
)
def test_an_address_that_should_not_be_asked_is_refused_at_once(url, said):
    with pytest.raises(RewardError, match=said):
        build_reward(names=f"server:{url}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "a question is"),
        (b'{"src": ["a"], "tgt": ["b"]}', "`response` has to be a list of texts"),
        (b'{"src": ["a"], "tgt": [1], "response": ["c"]}', "`tgt` has to be a list of texts"),
        (b'{"src": ["a"], "tgt": ["b"], "response": []}', "have 1, 1 and 0 entries"),
        (b'{"src": ["a"], "tgt": ["b"], "response": ["c"], "data_source": []}', None),
        (b'{"src": ["a"], "tgt": ["b"], "response": ["c"], "data_source": ["x", "y"]}', "as long as the others"),
    ],
)
def test_a_question_is_three_lists_of_text(body, said):
    if said is None:
        assert read_question(body, "math") == [Sample("math", "c", "b", {"index": 0}, prompt="a")]
    else:
        with pytest.raises(RewardError, match=said):
            read_question(body, "math")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Iterator[str]:
    """`serve-reward` in a process of its own, with a token and a reward that fails on "bad"."""
    file = tmp_path_factory.mktemp("served") / "r.py"
    file.write_text("def compute_score(solution_str):\n    return len(solution_str) / (solution_str != 'bad')\n")
    words = ["--port", "0", "--workers", "1", "--reward_func", str(file)]
    program = "import sys; from grpo.commands import serve_reward; serve_reward.main(sys.argv[1:])"
    environment = os.environ | {"REWARD_SERVER_TOKEN": "letmein", "PYTHONPATH": str(repo)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = re.search(r"http://127.0.0.1:\d+", process.stdout.readline())
    assert url
    yield url.group()
    process.terminate()
    assert process.wait(10) is not None
    process.stdout.close()


def post(url: str, body: bytes, token: str = "letmein") -> tuple[int, Any]:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {token}", "Content-Type": "text/json"})
    for _ in range(50):
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError("it does not come up")


def test_serve_reward_speaks_the_protocol(served):
    # S0-08
    question = {"src": ["q"] * 2, "tgt": ["t"] * 2, "response": ["abc", "a"]}
    assert post(served, json.dumps(question).encode()) == (200, {"error_code": 0, "error_msg": "", "score": [3.0, 1.0]})
    question["response"][0] = "bad"
    status, answer = post(served, json.dumps(question).encode())
    assert (status, answer["error_code"], answer["score"], answer["detail"]) == (200, 500, [0.0, 0.0], [None, 1.0])
    assert "1 of 2 calls failed; the first: ZeroDivisionError" in answer["error_msg"]


def test_serve_reward_asks_for_its_token_and_for_a_question(served):
    assert post(served, b"{}", token="wrong")[0] == 401
    assert post(served, b"{}")[0] == 400


def test_our_client_and_our_server_keep_each_response_s_own_outcome(served, monkeypatch):
    monkeypatch.setenv("REWARD_SERVER_TOKEN", "letmein")
    post(served, b"{}")  # it is up
    reward = build_reward(names=f"server:{served}")
    good, bad = reward.attempts([Sample("m", "abcd", "t"), Sample("m", "bad", "t")])
    assert good == Score(4.0, {"server": 4.0})
    assert "could not score this response" in str(bad)
