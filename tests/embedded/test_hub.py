"""A model of the Hub by name, against a server on 127.0.0.1 that speaks the few endpoints; never the network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo.embedded.scratch import make_model, make_tokenizer
from tests.hub_server import COMMIT, Answer, Hub, environment, serving

pytestmark = pytest.mark.slow

RUN = ["--max_steps=1", "--rollout_n=2", "--train_batch_size=2", "--max_response_length=4", "--device=cpu"]


class _Models(Hub):
    """The model `org/tiny`; `org/gated` wants its terms accepted; everything else is not there."""

    def answer(self, path: str) -> Answer:
        if path.startswith("/api/models/org/tiny/tree/"):
            return self.listing()
        if path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": file["path"]} for file in json.loads(self.listing()[1])]
            told = {"_id": "1", "id": "org/tiny", "sha": COMMIT, "siblings": siblings}
            return 200, json.dumps(told).encode(), {"Content-Type": "application/json"}
        match = re.fullmatch(f"/org/tiny/resolve/(?:main|{COMMIT})/(.+)", path)
        if match and (self.folder / match[1]).is_file():
            return self.file(match[1])
        gated = "/org/gated" in path
        code = {"X-Error-Code": "GatedRepo" if gated else "EntryNotFound" if match else "RepoNotFound"}
        return 403 if gated else 404, b"{}", code


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    folder = tmp_path / "model"
    tokenizer = make_tokenizer("bytes")
    make_model(tokenizer, hidden_size=16, num_layers=1, num_heads=2, max_length=1024, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "original").mkdir()
    (folder / "original/weights.safetensors").write_bytes(b"the same once more")
    with serving(_Models, folder) as server:
        yield server


def train(repo: Path, place: Path, model: str, **more: str) -> subprocess.CompletedProcess[str]:
    """One step."""
    return start(repo, place, [f"--model={model}", *RUN], **more)


def start(repo: Path, place: Path, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "grpo", *words, f"--data={repo}/data_prep/arithmetic_train.json#8"]
    return subprocess.run(
        command, env=environment(place / "home", **more), cwd=place, capture_output=True, text=True, timeout=300
    )


def test_a_model_of_the_hub_is_fetched_once_and_then_needs_no_network(hub, tmp_path: Path, repo: Path) -> None:
    endpoint, asked = f"http://127.0.0.1:{hub.server_port}", hub.RequestHandlerClass.asked
    first = train(repo, tmp_path, "org/tiny", HF_ENDPOINT=endpoint)
    assert first.returncode == 0, first.stderr
    assert "org/tiny is no folder here: fetching it from the Hub" in first.stdout
    assert f"GET /org/tiny/resolve/{COMMIT}/model.safetensors" in asked
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
