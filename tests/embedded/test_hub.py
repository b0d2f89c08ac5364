"""A model of the Hub by name, against a server on 127.0.0.1 that speaks the few endpoints; never the network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from grpo.embedded.scratch import make_model, make_tokenizer

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RUN = ["--max_steps=1", "--rollout_n=2", "--train_batch_size=2", "--max_response_length=4", "--device=cpu"]


class _Hub(BaseHTTPRequestHandler):
    """The model `org/tiny`; `org/gated` wants its terms accepted; everything else is not there."""

    folder: Path
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        files = [file for file in sorted(self.folder.rglob("*")) if file.is_file()]
        if path.startswith("/api/models/org/tiny/tree/"):
            told = [
                {
                    "type": "file",
                    "oid": "0" * 40,
                    "size": file.stat().st_size,
                    "path": str(file.relative_to(self.folder)),
                }
                for file in files
            ]
            return self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"}, with_body)
        if path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": str(file.relative_to(self.folder))} for file in files]
            told = {"_id": "1", "id": "org/tiny", "sha": COMMIT, "siblings": siblings}
            return self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"}, with_body)
        match = re.fullmatch(f"/org/tiny/resolve/(?:main|{COMMIT})/(.+)", path)
        if match and (self.folder / match[1]).is_file():
            headers = {"ETag": f'"{match[1].replace("/", "-")}"', "X-Repo-Commit": COMMIT}
            return self._send(200, (self.folder / match[1]).read_bytes(), headers, with_body)
        gated = "/org/gated" in path
        code = {"X-Error-Code": "GatedRepo" if gated else "EntryNotFound" if match else "RepoNotFound"}
        return self._send(403 if gated else 404, b"{}", code, with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    folder = tmp_path / "model"
    tokenizer = make_tokenizer("bytes")
    make_model(tokenizer, hidden_size=16, num_layers=1, num_heads=2, max_length=1024, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "original").mkdir()
    (folder / "original/weights.safetensors").write_bytes(b"the same once more")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"folder": folder, "asked": []}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def train(repo: Path, place: Path, model: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One step."""
    return start(repo, place, [f"--model={model}", *RUN], **environment)


def start(repo: Path, place: Path, words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: huggingface_hub reads its environment when it is imported."""
    kept = {key: text for key, text in os.environ.items() if not re.match(r"HF_|.*_proxy$", key, re.IGNORECASE)}
    kept |= {"HF_HOME": str(place / "home"), "PYTHONPATH": str(repo), **environment}
    command = [sys.executable, "-m", "grpo", *words, f"--data={repo}/data_prep/arithmetic_train.json#8"]
    return subprocess.run(command, env=kept, cwd=place, capture_output=True, text=True, timeout=300)


def test_a_model_of_the_hub_is_fetched_once_and_then_needs_no_network(hub, tmp_path: Path, repo: Path) -> None:
    endpoint, asked = f"http://127.0.0.1:{hub.server_port}", hub.RequestHandlerClass.asked
    first = train(repo, tmp_path, "org/tiny", HF_ENDPOINT=endpoint)
    assert first.returncode == 0, first.stderr
    assert "org/tiny is no folder here: fetching it from the Hub" in first.stdout
    assert f"/org/tiny/resolve/{COMMIT}/model.safetensors" in asked
    assert not any("original" in path for path in asked)
    again = train(repo, tmp_path, "org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert again.returncode == 0, again.stderr
    assert "org/tiny: the Hub does not answer (" in again.stdout


def test_an_evaluation_fetches_its_model_too(hub, tmp_path: Path, repo: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    words = ["eval", "--model=org/tiny", "--max_response_length=4", "--device=cpu"]
    done = start(repo, tmp_path, words, HF_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    assert "org/tiny is no folder here: fetching it from the Hub" in done.stderr
    none = start(repo, tmp_path, [*words, "--model=org/none"], HF_ENDPOINT=endpoint)
    assert none.returncode == 2
    assert "error: org/none: no such folder here, and no such model on the Hub" in none.stderr


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("org/gated", "org/gated: this model asks for permission; accept its terms, then set HF_TOKEN"),
        ("org/none", "org/none: no such folder here, and no such model on the Hub (or a private one: HF_TOKEN)"),
        ("away/tiny", "away/tiny: no such folder here, and it could not be fetched from the Hub ("),
    ],
)
def test_what_the_hub_refuses_is_one_line_and_leaves_the_finished_run_where_it_is(
    hub, tmp_path: Path, repo: Path, model: str, words: str
) -> None:
    finished = tmp_path / "outputs"
    finished.mkdir()
    (finished / "run.json").write_text("{}")
    endpoint = "http://127.0.0.1:9" if model.startswith("away") else f"http://127.0.0.1:{hub.server_port}"
    done = train(repo, tmp_path, model, HF_ENDPOINT=endpoint)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {words}"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.glob("outputs*")] == ["outputs"]
    assert [path.name for path in finished.iterdir()] == ["run.json"]
