"""Programs scored by a server elsewhere, here one of our own that speaks SandboxFusion's protocol on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from reward_funcs import RewardError
from reward_funcs.code_options import read_options
from reward_funcs.code_score import code_score
from reward_funcs.code_truth import Asserts, Calls
from reward_funcs.sandbox import SandboxError
from reward_funcs.sandbox.fusion import as_calls

pytestmark = pytest.mark.slow  # processes of its own

CALLS = json.dumps({"kind": "call", "entry": "f", "cases": [{"args": [n], "expected": [n, 2 * n]} for n in (1, 2)]})
STDIO = json.dumps({"kind": "stdio", "cases": [{"stdin": "3\n", "stdout": "6"}, {"stdin": "4\n", "stdout": "8"}]})


class _Fusion(BaseHTTPRequestHandler):
    answer: bytes | None = None  # instead of running anything
    asked: list[dict[str, object]]

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(question)
        body = type(self).answer or json.dumps(self._run(question)).encode()
        self.send_response(200 if self.path == "/run_code" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _run(self, question: dict[str, str]) -> dict[str, object]:
        try:
            done = subprocess.run([sys.executable, "-c", question["code"]], input=question["stdin"], text=True,
                                  capture_output=True, timeout=float(question["run_timeout"]))  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"status": "Failed", "message": "", "run_result": {"status": "TimeLimitExceeded"}}
        result = {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        return {"status": "Success" if done.returncode == 0 else "Failed", "message": "", "run_result": result}

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fusion() -> Iterator[str]:
    _Fusion.answer, _Fusion.asked = None, []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Fusion) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def score(program: str, truth: str, url: str, timeout: float = 10.0) -> dict[str, float]:
    return code_score(program, truth, options=read_options({"url": url, "timeout": timeout}))


def test_calls_scripts_and_plain_asserts_are_judged_here_by_what_the_server_ran(fusion: str):
    assert score("def f(x):\n    return [x, 2 * x]\n", CALLS, fusion)["score"] == 1.0
    assert score("def f(x):\n    return [x, 2]\n", CALLS, fusion) == {"score": 0.0, "pass_rate": 0.5}
    assert score("class Solution:\n    def f(self, x):\n        return x, 2 * x\n", CALLS, fusion)["score"] == 1.0
    assert score("print(2 * int(input()))\n", STDIO, fusion)["score"] == 1.0
    assert score("print(6)\n", STDIO, fusion)["pass_rate"] == 0.5
    assert score("def f(x):\n    return (x, {2: 3})\n", "assert f(1) == (1, {2: 3})", fusion)["score"] == 1.0
    assert score("no program", CALLS, fusion)["score"] == 0.0
    assert score("print(6)\nraise SystemExit(1)", STDIO, fusion)["score"] == 0.0


def test_what_is_expected_is_never_sent(fusion: str):
    truth = json.dumps({"kind": "call", "entry": "f", "cases": [{"args": [1], "expected": "rare-774"}]})
    score("def f(x):\n    return x\n", truth, fusion)
    score("print(1)\n", json.dumps({"kind": "stdio", "cases": [{"stdin": "", "stdout": "rare-774"}]}), fusion)
    assert len(_Fusion.asked) == 2
    assert "rare-774" not in json.dumps(_Fusion.asked)


def test_printing_the_shape_of_an_answer_forges_nothing(fusion: str):
    program = (
        "import sys\nfor mark in ('', '0' * 32):\n    print(mark + '{\"v\":{\"l\":[1,2]}}')\ndef f(x):\n    return 0\n"
    )
    assert score(program, CALLS, fusion)["pass_rate"] == 0.0


def test_a_hang_fails_and_a_server_in_trouble_is_an_error(fusion: str):
    assert score("while True:\n    pass\n", STDIO, fusion, timeout=0.5)["score"] == 0.0
    for answer in (b'{"status": "SandboxError", "message": "no worker"}', b"[]", b"not JSON", b'{"status": "Success"}'):
        _Fusion.answer = answer
        with pytest.raises(SandboxError):
            score("print(6)\n", STDIO, fusion)


def test_no_server_is_an_error_and_tests_that_need_a_second_process_are_refused(fusion: str):
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:9"):
        score("print(6)\n", STDIO, "http://127.0.0.1:9")
    with pytest.raises(RewardError, match="a sandbox on this machine") as error:
        score("def f(x):\n    return x\n", "import math\nassert math.isclose(f(1), 1)", fusion)
    assert not isinstance(error.value, SandboxError)


def test_plain_asserts_become_calls():
    assert as_calls(Asserts(["assert f(1, [2]) == (3,)", "assert f(-1, []) == None"])) == Calls(
        "f", (([1, [2]], ((3,),)), ([-1, []], (None,)))
    )
    for other in (
        *("assert f(1) > 2", "assert f(x) == 1", "assert f(1) == g(1)", "assert f(a=1) == 1", "f(1)"),
        "assert 1 < f(1) == 2",
    ):
        with pytest.raises(RewardError):
            as_calls(Asserts([other]))
