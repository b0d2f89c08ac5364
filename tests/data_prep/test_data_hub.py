"""Data sets of the Hub by name, against a server on 127.0.0.1 that speaks its few endpoints; never the network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.errors import DataError
from data_prep.hub import train_files
from data_prep.source import is_hub_name
from tests.hub_server import COMMIT, Answer, Hub, environment, serving

REPO = Path(__file__).resolve().parents[2]
BRANCH = "refs/convert/parquet"

READ = """
import json, sys
from data_prep.errors import DataError
from data_prep.records import read_records
answers = []
for spec in sys.argv[1:]:
    try:
        records = read_records(spec, prompt_key="problem", answer_key="answer", data_source="math")
        answers.append([[record.prompt[-1]["content"], record.ground_truth] for record in records])
    except DataError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


class _DataSets(Hub):
    """A data set `org/tiny` with two train files of three rows; everything else is not there."""

    def answer(self, path: str) -> Answer:
        if path == f"/api/datasets/org/tiny/tree/{BRANCH}":
            return self.listing()
        match = re.fullmatch(f"/datasets/org/tiny/resolve/({BRANCH}|{COMMIT})/(.+)", path)
        if match and (self.folder / match[2]).is_file():
            return self.file(match[2])
        status, code = {"gated": (403, "GatedRepo"), "fresh": (404, "RevisionNotFound")}.get(
            path.split("/")[4] if path.startswith("/api/datasets/org/") else "", (404, "RepoNotFound")
        )
        return status, b"{}", {"X-Error-Code": code}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    folder = tmp_path / "hub"
    for number in range(2):
        problems = [f"{10 * number + row} + 1 = ?" for row in range(3)]
        answers = [f"{10 * number + row + 1:03d}" for row in range(3)]
        path = folder / "default" / "train" / f"{number:04d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"problem": problems, "answer": answers}), path)
    pq.write_table(pa.table({"problem": ["held out"], "answer": ["1"]}), folder / "test.parquet")
    with serving(_DataSets, folder) as server:
        yield server


def read(tmp_path: Path, specs: list[str], **more: str) -> list:
    """What a fresh process makes of `specs`: huggingface_hub reads its environment when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *specs],
        env=environment(tmp_path / "home", **more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_first_rows_of_a_hub_data_set_come_from_its_endpoint_and_later_from_the_cache(hub, tmp_path: Path) -> None:
    # S3-21
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    asked = hub.RequestHandlerClass.asked
    two, five = read(tmp_path, ["org/tiny#2", "org/tiny#5"], HF_ENDPOINT=endpoint)
    assert two == [["0 + 1 = ?", "001"], ["1 + 1 = ?", "002"]]
    assert five == [*two, ["2 + 1 = ?", "003"], ["10 + 1 = ?", "011"], ["11 + 1 = ?", "012"]]
    downloads = [line.rpartition("/")[2] for line in asked if line.startswith("GET") and "/resolve/" in line]
    assert downloads == ["0000.parquet", "0001.parquet"]  # two rows need only the first file, five need both

    del asked[:]
    offline, unknown = read(tmp_path, ["org/tiny#4", "org/other"], HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="1")
    assert offline == five[:4]
    assert "HF_HUB_OFFLINE is set" in unknown
    assert asked == []


@pytest.mark.slow
def test_what_the_hub_refuses_is_said_with_what_to_do(hub, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    missing, gated, fresh = read(tmp_path, ["org/other#5", "org/gated", "org/fresh"], HF_ENDPOINT=endpoint)
    assert missing.startswith("org/other: ")
    assert "no such data set on the Hub" in missing
    assert gated.startswith("org/gated: ")
    assert "HF_TOKEN" in gated
    assert fresh.startswith("org/fresh: ")
    assert "no parquet copy" in fresh


@pytest.mark.slow
def test_without_a_network_one_line_names_the_mirror_and_the_local_way(tmp_path: Path) -> None:
    # S3-21. Port 9 of this machine answers nobody.
    (error,) = read(tmp_path, ["org/tiny#2"], HF_ENDPOINT="http://127.0.0.1:9")
    assert error.startswith("org/tiny: no such file here, and the Hub at http://127.0.0.1:9 cannot be reached")
    assert "HF_ENDPOINT=https://hf-mirror.com" in error
    assert "--data FILE.parquet" in error
    assert "\n" not in error


def test_a_data_set_with_several_parts_asks_which_one() -> None:
    listed = ["main/train/0000.parquet", "socratic/train/0000.parquet", "main/test/0000.parquet", "README.md"]
    assert train_files(listed, "socratic", "openai/gsm8k:socratic") == ["socratic/train/0000.parquet"]
    with pytest.raises(DataError, match=r"choose one of main, socratic, for example openai/gsm8k:main"):
        train_files(listed, "", "openai/gsm8k")
    with pytest.raises(DataError, match="no part called mian"):
        train_files(listed, "mian", "openai/gsm8k:mian")
    with pytest.raises(DataError, match="no train split"):
        train_files(["default/test/0000.parquet"], "", "org/x")
    assert train_files(["b/train/0.parquet", "default/partial-train/0.parquet"], "", "o/x") == [
        "default/partial-train/0.parquet"
    ]


def test_a_name_is_the_hubs_only_when_it_cannot_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("AI-MO/NuminaMath-TIR")
    assert is_hub_name("openai/gsm8k:main")
    for name in ("data/typo.json", "./a/b", "/tmp/x", "a/b/c", "plain", "a/b.parquet"):
        assert not is_hub_name(name), name
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_text("[]")
    assert not is_hub_name("org/name")
