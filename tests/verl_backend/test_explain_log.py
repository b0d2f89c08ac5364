"""`./train.sh explain-log`: what it prints, its exit codes, and what it says of a file that is no log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpo.__main__ import main

KNOWN = "\x1b[36m(TaskRunner pid=612)\x1b[0m ValueError: Total available GPUs 4.0 is less than total desired GPUs 8\n"


def run_folder(log: str) -> Path:
    folder = Path("我的 outputs")
    folder.mkdir()
    (folder / "verl.log").write_text(log, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")


@pytest.mark.parametrize("name", ["", "verl.log"])
def test_a_known_failure_is_explained_below_the_last_lines(
    name: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = run_folder("".join(f"line {number}\n" for number in range(30)) + KNOWN)
    assert main(["explain-log", str(log / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "我的 outputs/verl.log, last lines:"
    assert lines[1:3] == ["  line 11", "  line 12"]  # 20 lines: 11 to 29, and the error
    assert lines[20] == "  (TaskRunner pid=612) ValueError: Total available GPUs 4.0 is less than total desired GPUs 8"
    assert lines[21] == ""
    assert lines[22] == "Why: the run asks for more GPUs than Ray has free"
    assert lines[24:] == [
        "  Change: --n_gpus",
        "  Log: ValueError: Total available GPUs 4.0 is less than total desired GPUs 8",
    ]


def test_an_unknown_failure_is_shown_and_said_to_be_unknown(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain-log", str(run_folder("KeyError: 'odd'\n"))]) == 1
    out = capsys.readouterr().out
    assert "None of the failures that we know is in 我的 outputs/verl.log.\n" in out
    assert out.endswith("  Log: KeyError: 'odd'\n")


def test_a_log_without_a_failure_is_said_to_have_none(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-log", str(run_folder("step:1 - a:1\n"))]) == 1
    assert capsys.readouterr().out.endswith("\n\nNo failure was found in 我的 outputs/verl.log.\n")


@pytest.mark.parametrize("how", ["flag", "LANG", "not by LANG"])
def test_chinese_is_spoken_where_it_is_asked_for(
    how: str, in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "en_US.UTF-8" if how == "flag" else "zh_CN.UTF-8")
    lang = {"flag": ["--lang", "zh"], "not by LANG": ["--lang", "en"]}.get(how, [])
    assert main(["explain-log", str(run_folder(KNOWN)), *lang]) == 0
    out = capsys.readouterr().out
    if how == "not by LANG":
        assert "\nWhy: the run asks" in out
    else:
        assert out.startswith("我的 outputs/verl.log 的最后几行：\n")
        assert "\n原因：要求的 GPU 数多于 Ray 可用的数量\n  办法：" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "the following arguments are required: FILE"),
        (["nowhere"], "nowhere: no such file"),
        (["empty_folder"], "empty_folder: no verl.log in this folder"),
        (["empty.log"], "empty.log: is empty"),
        (["weights.pt"], "weights.pt: is no text"),
        (["a.log", "b.log"], "unrecognized arguments: b.log"),
        (["a.log", "--lang", "fr"], "invalid choice: 'fr'"),
        (["folder_as_log"], "folder_as_log/verl.log: Is a directory"),
    ],
)
def test_a_bad_argument_gets_one_line_and_exit_code_2(
    argv: list[str], said: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty_folder").mkdir()
    Path("folder_as_log/verl.log").mkdir(parents=True)
    Path("empty.log").touch()
    Path("weights.pt").write_bytes(b"PK\x03\x04\0\0" * 99)
    for name in ("a.log", "b.log"):
        Path(name).write_text(KNOWN)
    assert main(["explain-log", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_bytes_that_are_no_utf8_and_a_line_without_an_end_are_read(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.log").write_bytes(b"\xff\xfe\xe4 " + b"=" * 200_000 + b"\r\n" + KNOWN.encode())
    assert main(["explain-log", "odd.log"]) == 0
    assert "Why: the run asks" in capsys.readouterr().out


def test_a_pipe_is_read_like_a_file(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.write(write, KNOWN.encode())
    os.close(write)
    assert main(["explain-log", f"/dev/fd/{read}"]) == 0
    os.close(read)
