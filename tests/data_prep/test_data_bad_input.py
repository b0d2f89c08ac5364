"""Files that cannot be used: one line with where and what to do, in under two seconds, and nothing written.

RELIABILITY.md section 4 and its goals 15 and 23. Every case goes through the command that writes parquet.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.errors import DataError
from grpo.commands.data import main

OK = {"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"}
LINE = json.dumps(OK, ensure_ascii=False)
CHINESE = json.dumps([OK] * 30, ensure_ascii=False)


def record(**changes: object) -> str:
    """An array with one record: OK with some keys changed, or left out where the value is ... ."""
    row = {key: value for key, value in (OK | changes).items() if value is not ...}
    return json.dumps([row], ensure_ascii=False)


class _Bomb:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("exploded",)


CASES: dict[str, tuple[str, str | bytes, str]] = {
    # what is wrong: (file name, content, what the message must hold)
    "empty": ("a.json", "", "a.json: is empty"),
    "only space": ("a.json", " \n\n\t", "is empty"),
    "only a byte order mark": ("a.json", b"\xef\xbb\xbf", "is empty"),
    "no records": ("a.json", "[]", "holds no records"),
    "a header without rows": ("a.csv", "prompt,ground_truth,data_source\n", "holds no records"),
    "text": ("a.json", "hello", "not JSON at line 1 column 1: expecting value"),
    "text called txt": ("a.txt", "hello", "name it .json, .jsonl, .csv or .parquet"),
    "CSV called json": ("a.json", "prompt,ground_truth\na,b\n", "not JSON at line 1 column 1"),
    "a web page": ("a.json", "<!DOCTYPE html>\n<html>", "is a web page"),
    "a Git LFS pointer": ("a.jsonl", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "a number alone": ("a.json", "12", "holds a single value"),
    "one object": ("a.json", LINE, "holds one object, not a list of records; put [ before it and ] after it"),
    "a list inside an object": ("a.json", json.dumps({"data": [OK]}), 'the list under "data" should be the whole file'),
    "cut off in a string": ("a.json", f"[{LINE},\n{LINE[:20]}", "line 2 column 12 (record 2): the string that begins"),
    "cut off after a record": ("a.json", f"[{LINE}", "the file ends too early: it is cut off"),
    "cut off after a comma": ("a.json", f"[{LINE},", "the file ends too early"),
    "cut off in JSONL": ("a.jsonl", f"{LINE}\n{LINE[:-1]}", "line 2 column 84 (record 2): the file ends too early"),
    "a comma at the list's end": ("a.json", f"[\n{LINE},\n]", "line 3 column 1 (record 1): the list ends with a comma"),
    "a comma at a record's end": ("a.json", '[{"prompt": "a",}]', "column 17 (record 1): a comma before the closing }"),
    "a comma missing": (
        "a.json",
        f"[\n{LINE}\n{LINE}\n]",
        "line 3 column 1 (record 1): a comma or ] should stand here",
    ),
    "a colon missing": ("a.json", '[{"prompt" "a"}]', "line 1 column 12"),
    "text after the list": ("a.json", f"[{LINE}]\nx", "line 2 column 1 (record 1): the list has ended"),
    "two records on a line": ("a.jsonl", f"{LINE} {LINE}", "JSONL holds one record on each"),
    "single quotes": ("a.json", "[{'prompt': 'a'}]", "single quotes"),
    "Python's None": ("a.json", '[{"prompt": None}]', "column 13 (record 1): None is not JSON"),
    "a comment": ("a.json", f"[ // sums\n{LINE}]", "// is not JSON"),
    "a line break in a string": ("a.json", '[{"prompt": "a\nb"}]', "a line break inside a string; write it as \\n"),
    "a control character": ("a.json", '[{"prompt": "a\x01b"}]', "U+0001 inside a string; write it as \\u0001"),
    "LaTeX with one backslash": ("a.json", '[{"prompt": "\\sqrt 2"}]', "a backslash that begins no JSON escape"),
    "LaTeX that became a form feed": ("a.json", record().replace("42", "\\frac{1}{2}"), "lost a backslash: \\frac{"),
    "nested without end": ("a.json", "[" * 100_000, "nested too deeply"),
    "NaN": ("a.json", record().replace('"42"', "NaN"), "record 1 (line 1): NaN is not JSON"),
    "minus infinity": ("a.json", record().replace('"42"', "-Infinity"), "-Infinity is not JSON"),
    "a key twice": (
        "a.json",
        record().replace('{"', '{"prompt": "b", "'),
        'record 1 (line 1): the key "prompt" stands twice',
    ),
    "a key twice inside": (
        "a.json",
        record(x={"y": 1}).replace('"y": 1', '"y": 1, "y": 2'),
        'the key "y" stands twice',
    ),
    "half a surrogate pair": (
        "a.json",
        record().replace("42", "\\ud800"),
        '"ground_truth" holds half a surrogate pair',
    ),
    "half a pair in a column": ("a.json", record(x="#").replace("#", "\\udc00"), 'column "x": holds half a surrogate'),
    "GBK": (
        "a.json",
        CHINESE.encode("gbk"),
        "not UTF-8 at byte 13 (0xC7); it looks like GBK. Convert it: iconv -f GBK -t",
    ),
    "GBK, one record": ("a.json", f"[{LINE}]".encode("gbk"), "it looks like GBK"),
    "GBK as CSV": ("a.csv", "prompt,ground_truth\n你好,1\n".encode("gbk"), "byte 20 (0xC4); it looks like GBK"),
    "UTF-16 with a mark": (
        "a.json",
        CHINESE.encode("utf-16"),
        "UTF-16 from byte 0, not UTF-8. Convert it: iconv -f UTF-16",
    ),
    "UTF-16 without": ("a.json", CHINESE.encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8"),
    "UTF-16 big end first": ("a.jsonl", LINE.encode("utf-16-be"), "iconv -f UTF-16BE -t UTF-8"),
    "UTF-32": ("a.json", CHINESE.encode("utf-32"), "iconv -f UTF-32 -t UTF-8"),
    "Latin-1": (
        "a.json",
        record(prompt="café prétend").encode("latin-1"),
        "byte 16 (0xE9); it looks like Latin-1. Convert",
    ),
    "Windows-1252": (
        "a.json",
        record(prompt="“naïve” café").encode("cp1252"),
        "byte 13 (0x93); it looks like Windows-1252",
    ),
    "a damaged byte": (
        "a.json",
        CHINESE.encode().replace("解".encode(), b"\xff", 1),
        "byte 16 (0xFF), and no encoding we know",
    ),
    "cut off in a character": (
        "a.jsonl",
        (LINE + "\n你").encode()[:-1],
        "in the middle of a UTF-8 character: it is cut off",
    ),
    "no prompt": ("a.json", record(prompt=...), 'record 1 (line 1): no "prompt". What to do: --prompt_key NAME'),
    "null prompt": ("a.json", record(prompt=None), '"prompt" is null. What to do: fill such records or leave them out'),
    "no answer": ("a.json", record(ground_truth=...), 'no "ground_truth". What to do: --answer_key NAME names another'),
    "no source": ("a.json", record(data_source=...), 'no "data_source". What to do: --data_source NAME fills it'),
    "null answer": ("a.json", record(ground_truth=None), 'no "ground_truth"'),
    "empty prompt": ("a.json", record(prompt=" \n"), 'empty "prompt"'),
    "empty answer": ("a.json", record(ground_truth=""), 'empty "ground_truth"'),
    "empty source": ("a.json", record(data_source=""), 'empty "data_source"'),
    "a number as prompt": ("a.json", record(prompt=3.10), '"prompt" is the number 3.1'),
    "an object as prompt": ("a.json", record(prompt={}), '"prompt" is an object'),
    "an empty chat": ("a.json", record(prompt=[]), '"prompt" is an empty list'),
    "a chat of strings": ("a.json", record(prompt=["hi"]), 'message 1 of "prompt" is a string'),
    "a chat without content": (
        "a.json",
        record(prompt=[{"role": "user"}]),
        'message 1 of "prompt" has no text "content"',
    ),
    "a chat without role": ("a.json", record(prompt=[{"content": "a"}]), 'message 1 of "prompt" has no text "role"'),
    "a chat with a tool": (
        "a.json",
        record(prompt=[{"role": "user", "content": "a", "tool": "x"}]),
        'has "tool", which a prompt cannot carry',
    ),
    "a number as source": ("a.json", record(data_source=7), '"data_source" is the number 7'),
    "true as answer": ("a.json", record(ground_truth=True), '"ground_truth" is true'),
    "a record that is a number": ("a.json", f"[{LINE}, 5]", "record 2 (line 1): is the number 5, not an object"),
    "a record that is a list": ("a.jsonl", f"{LINE}\n[1]", "record 2 (line 2): is a list, not an object"),
    "a number no float holds": ("a.json", record(x="#").replace('"#"', "1e999"), 'column "x": "1e999" is too large'),
    "a number of 5000 digits": (
        "a.json",
        record(x="#").replace('"#"', "9" * 5000),
        "a number of 5,000 digits is too long",
    ),
    "a column named twice": ("a.json", record(x=1, extra_info={"x": 2}), '"x" stands beside extra_info and inside it'),
    "a CSV column twice": ("a.csv", "prompt,prompt\na,b\n", 'two columns are called "prompt"'),
    "a CSV column without name": ("a.csv", ",prompt\na,b\n", "line 1: a column has no name"),
    "CSV rows of other widths": (
        "a.csv",
        "prompt,b\n1\n1,2,3\n",
        "record 1 (line 2): 1 cell for 2 columns; record 2 (line 3): 3",
    ),
    "a CSV quote left open": ("a.csv", 'prompt,b\n"a,1\nb,2\n', "not CSV in the row that begins on line 2"),
    "a stray CSV quote": ("a.csv", 'prompt,b\nx,1\n"a"b,1\n', "not CSV in the row that begins on line 3"),
    "no parquet": ("a.parquet", "hello", "is named .parquet but is no parquet file"),
    "damaged parquet": ("a.parquet", b"PAR1" + b"\0" * 100, "a damaged parquet file"),
    "a pickle": ("a.pkl", pickle.dumps(_Bomb()), "is a pickle, which runs code when it is opened, so it is never read"),
    "a pickle called json": ("a.json", pickle.dumps(_Bomb()), "is a pickle"),
    "a pickle called parquet": ("a.parquet", pickle.dumps(_Bomb()), "is a pickle"),
    "an old pickle": ("a.pickle", pickle.dumps(_Bomb(), protocol=0), "is a pickle"),
    "gzip": ("a.jsonl.gz", b"\x1f\x8b\x08\0", "gunzip -k"),
    "a workbook": ("a.xlsx", b"PK\x03\x04", "save the sheet as CSV"),
}


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The message of a command that must fail, after checking that it is one line, quick and silent."""
    began = time.process_time()
    with pytest.raises(DataError) as caught:
        main(list(argv))
    assert time.process_time() - began < 2  # wall time would measure who else is working here
    assert capsys.readouterr().out == ""
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_one_line_and_writes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, expected = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refusal(capsys, file, "out.parquet")
    assert message.startswith(f"{file}: ")
    assert expected in message
    assert os.listdir() == [file]  # no result, no temporary file, nothing that a pickle made


def test_all_bad_records_are_counted_and_the_first_five_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [dict(OK) for _ in range(200)]
    for index in range(2, 172, 10):  # 17 of them
        del rows[index]["ground_truth"]
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(rows, indent=1))  # good records take five lines, those without an answer four
    message = refusal(capsys, str(path), str(tmp_path / "out.parquet"))
    assert message.startswith(
        f'{path}: 17 of 200 records cannot be used; first: record 3 (line 12): no "ground_truth"; record 13 (line 61): '
    )
    assert message.count("record ") == 5
    assert (
        "; and 12 more. What to do: --answer_key NAME names another column (there are: prompt, data_source)" in message
    )
    assert os.listdir(tmp_path) == ["prompts.json"]


@pytest.mark.slow
def test_a_hundred_thousand_bad_records_are_counted_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "1 + 1", "solution": "2"}\n' * 100_000)
    message = refusal(capsys, str(path))
    assert "100,000 of 100,000 records cannot be used" in message
    assert "(there are: question, solution)" in message


def test_paths_that_are_no_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.json").write_text(record())
    (tmp_path / "none").mkdir()
    os.mkfifo(tmp_path / "pipe")
    expected = {
        "promts.json": "no such file; did you mean",
        "other/prompts.json": "there is no folder",
        "": f"is a folder; name one file, for example {tmp_path / 'prompts.json'}",
        "none": "is a folder; it holds no JSON, JSONL, CSV or parquet file",
        "pipe": "is not a regular file",
        "x" * 300: "File name too long",
        "two\nlines.json": "two\\u000alines.json: no such file",
        "prompts.json#0": "how many rows to take, 1 or more",
        "prompts.json#many": "how many rows to take, 1 or more",
    }
    for name, text in expected.items():
        assert text in refusal(capsys, str(tmp_path / name), str(tmp_path / "out.parquet"))


def test_parquet_columns_that_cannot_be_kept_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.parquet"
    base = {"prompt": ["p"], "ground_truth": ["1"], "data_source": ["qa"]}
    pq.write_table(pa.table({**base, "image": [b"\x89PNG"]}), path)
    assert 'record 1: column "image": holds a bytes, which JSON cannot' in refusal(capsys, str(path))
    pq.write_table(pa.table([["p"], ["q"]], names=["prompt", "prompt"]), path)
    assert 'two columns are called "prompt"' in refusal(capsys, str(path))
    pq.write_table(pa.table({**base, "ground_truth": [float("nan")]}), path)
    assert '"ground_truth" is the number nan' in refusal(capsys, str(path))


def test_arguments_that_cannot_be_meant_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({key: [value] for key, value in OK.items()}), path)
    source = str(path)
    assert "is the input itself" in refusal(capsys, source, source)
    assert "name it OUT.parquet" in refusal(capsys, source, str(tmp_path / "out.json"))
    (tmp_path / "folder.parquet").mkdir()
    assert "is a folder" in refusal(capsys, source, str(tmp_path / "folder.parquet"))
    (tmp_path / "file").touch()
    assert "cannot be written" in refusal(capsys, source, str(tmp_path / "file" / "out.parquet"))
    assert "did you mean --prompt_key?" in refusal(capsys, source, "--promt_key", "q")
    assert "required: IN" in refusal(capsys)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "file", "folder.parquet"]
