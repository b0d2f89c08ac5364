"""`./train.sh data`: what it prints, what it writes, how long it takes and how much memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.convert import load_rows
from data_prep.records import Record
from data_prep.summary import Summary
from grpo.commands.data import main

ROWS = [
    {"prompt": "1 + 1 = ?", "ground_truth": "2", "data_source": "math_reasoning", "level": 1},
    {"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"},
    {"prompt": "1 + 1 = ?", "ground_truth": "two", "data_source": "qa"},
    {"prompt": "1 + 1 = ?", "ground_truth": "2", "data_source": "qa"},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(ROWS), encoding="utf-8")
    return path


def test_without_a_second_file_it_says_what_the_data_holds(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(prompts)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{prompts}: 4 records, all well-formed",
        "  sources     math_reasoning 2, qa 2",
        "  prompts     9 to 15 characters, median 9",
        "  answers     1 to 3 characters, median 1",  # of 1, 1, 2 and 3 characters: 1.5, cut
        "  duplicates  2 records with a prompt that came before, 1 of them with another answer",
        "  extra_info  level",
    ]
    assert sorted(prompts.parent.iterdir()) == [prompts]


def test_with_a_second_file_it_writes_parquet(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prompts.parent / "out.parquet"
    assert main([f"{prompts}#2", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.match(rf"{re.escape(str(prompts))}#2: 2 records -> {re.escape(str(out))} in \d+\.\d s\n", printed)
    assert f"train on it: ./train.sh --data {out}" in printed
    assert [row["ground_truth"] for row in load_rows(out)] == ["2", "42"]


@pytest.mark.slow
def test_it_takes_the_data_flags_and_their_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # S2-10: a flag wins over its environment variable
    path, out = tmp_path / "a.csv", tmp_path / "a.parquet"
    path.write_text("question,answer\nHow many clips?,#### 72\n")
    monkeypatch.setenv("PROMPT_KEY", "question")
    monkeypatch.setenv("DATA_SOURCE", "math")
    assert main([str(path), "--answer_key", "answer", str(out), "--data_source=gsm8k", "--system", "Be brief."]) == 0
    (row,) = load_rows(out)
    assert row["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many clips?"},
    ]
    assert (row["ground_truth"], row["data_source"]) == ("#### 72", "gsm8k")


def test_its_help_lists_the_flags_with_default_and_environment_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--answer_key NAME which column is the answer" in text
    assert "[ground_truth, env ANSWER_KEY]" in text


def test_a_prompt_is_a_duplicate_by_its_messages_and_not_by_their_joined_text() -> None:
    user = {"role": "user", "content": "a"}
    chats = [[user, {"role": "user", "content": "b"}], [{"role": "user", "content": "a\nb"}], [user], [user]]
    summary = Summary()
    list(summary.watch(Record(chat, "qa", "1", {}) for chat in chats))
    assert (summary.rows, summary.duplicates, summary.conflicts) == (4, 1, 0)


@pytest.mark.slow
def test_checking_json_imports_neither_torch_nor_pyarrow(prompts: Path, repo: Path) -> None:
    code = (
        "import sys; from grpo.commands.data import main; main(sys.argv[1:]); "
        "heavy = {'torch', 'pyarrow', 'numpy', 'transformers', 'huggingface_hub', 'omegaconf'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(prompts)], cwd=repo, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_hundred_thousand_records_take_under_five_seconds_and_300_megabytes(repo: Path) -> None:
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "bench/data.py", "--json"], cwd=repo, capture_output=True, text=True, check=True, timeout=300
    )
    measured = json.loads(done.stdout)
    for shape in ("arithmetic", "long"):
        assert measured[shape]["ours"]["cpu_seconds"] < 5  # wall time would measure who else is working here
        assert measured[shape]["ours"]["peak_mb"] < 300
