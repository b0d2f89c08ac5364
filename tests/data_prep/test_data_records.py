"""What a user's file may look like, and that its values reach the record as they were written."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep import json_rows
from data_prep.errors import DataError
from data_prep.record import Columns
from data_prep.records import Record, check_sources, from_rows, read_records

SUM = {"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"}
SUM_RECORD = Record([{"role": "user", "content": "请解答：15 + 27 = ?"}], "math_reasoning", "42", {})


def save(path: Path, content: object) -> Path:
    """`content` as JSON, or as it is when it is text or bytes."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        path.write_bytes(text.encode("utf-8"))
    return path


def answers(path: Path, **settings: Any) -> list[str]:
    return [record.ground_truth for record in read_records(path, **settings)]


def contents(records: list[Record]) -> list[str]:
    return [record.prompt[-1]["content"] for record in records]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("array.json", json.dumps([SUM], ensure_ascii=False)),
        ("escaped.json", json.dumps([SUM], indent=4)),
        ("mark.json", "\ufeff" + json.dumps([SUM])),
        ("lines.jsonl", json.dumps(SUM) + "\n"),
        ("windows.jsonl", json.dumps(SUM) + "\r\n\r\n"),
        ("table.csv", "prompt,ground_truth,data_source\n请解答：15 + 27 = ?,42,math_reasoning\n"),
        ("mark.csv", "\ufeffdata_source,prompt,ground_truth\r\nmath_reasoning,请解答：15 + 27 = ?,42\r\n"),
        ("table.tsv", "prompt\tground_truth\tdata_source\n请解答：15 + 27 = ?\t42\tmath_reasoning\n"),
        ("no_suffix", json.dumps([SUM])),
    ],
)
def test_the_same_record_comes_out_of_every_format(tmp_path: Path, name: str, text: str) -> None:
    # S2-02, S2-03
    assert read_records(save(tmp_path / name, text)) == [SUM_RECORD]


def test_jsonl_is_read_by_its_content_also_when_it_is_called_json(tmp_path: Path) -> None:
    path = save(tmp_path / "prompts.json", json.dumps(SUM) + "\n" + json.dumps(SUM | {"ground_truth": "43"}))
    assert answers(path) == ["42", "43"]


def test_a_path_may_hold_chinese_characters_spaces_and_a_hash(tmp_path: Path) -> None:
    # S2-03. The real file whose name contains # wins over "the first rows of".
    folder = tmp_path / "数 据 #1"
    folder.mkdir()
    whole = save(folder / "提示.json", [SUM, SUM, SUM])
    assert len(read_records(f"{whole}#2")) == 2
    save(folder / "提示.json#2", [SUM | {"ground_truth": "the other file"}])
    assert answers(folder / "提示.json#2") == ["the other file"]


def test_the_first_rows_are_taken_without_looking_at_the_rest(tmp_path: Path) -> None:
    # S3-21
    path = save(
        tmp_path / "a.jsonl", "".join(json.dumps(SUM | {"ground_truth": str(i)}) + "\n" for i in range(9)) + "{"
    )
    assert answers(path, limit=7) == ["0", "1", "2", "3", "4", "5", "6"]
    assert [record.ground_truth for record in read_records(f"{path}#3", limit=7)] == ["0", "1", "2"]
    with pytest.raises(DataError, match="line 10"):
        read_records(path)


@pytest.mark.parametrize(
    ("written", "arrives"),
    [
        ('"007"', "007"),
        ('"3.10"', "3.10"),
        ('"1e5"', "1e5"),
        ('" 42 "', " 42 "),
        ("42", "42"),
        ("3.10", "3.10"),
        ("1e5", "1e5"),
        ("1E+05", "1E+05"),
        ("-0.0", "-0.0"),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        (str(2**70), "1180591620717411303424"),
        ("9" * 5000, "9" * 5000),
        ("1e400", "1e400"),
        ('["a", 3.10, null, true]', '["a", 3.10, null, true]'),
        ('{"答案": {"x": 1e5}}', '{"答案": {"x": 1e5}}'),
        ('"a\\u0000b\\tc\\r\\nd"', "a\0b\tc\r\nd"),
        ('"\\ud83d\\ude00"', "😀"),
    ],
)
def test_an_answer_arrives_as_it_was_written(tmp_path: Path, written: str, arrives: str) -> None:
    path = save(tmp_path / "a.json", '[{"prompt": "p", "data_source": "qa", "ground_truth": ' + written + "}]")
    assert answers(path) == [arrives]


def test_a_csv_cell_is_text_with_its_quotes_commas_and_line_ends(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.csv", 'prompt,ground_truth,data_source,level\r\n"a ""b"",\r\nc",007,qa,1e5\r\n\r\nd,3.10,qa,\r\n'
    )
    records = read_records(path)
    assert contents(records) == ['a "b",\r\nc', "d"]
    assert [record.ground_truth for record in records] == ["007", "3.10"]
    assert [record.extra for record in records] == [{"level": "1e5"}, {"level": ""}]


def test_a_csv_cell_may_be_longer_than_the_csv_modules_own_limit(tmp_path: Path) -> None:
    path = save(tmp_path / "a.csv", "prompt,ground_truth,data_source\n" + "x" * 200_000 + ",1,qa\n")
    assert len(contents(read_records(path))[0]) == 200_000


def test_parquet_values_keep_their_digits_whatever_their_type(tmp_path: Path) -> None:
    columns = {"prompt": ["p"], "data_source": ["qa"]}
    for answer, arrives in [(["007"], "007"), ([7], "7"), ([3.25], "3.25"), ([["a", "b"]], '["a", "b"]')]:
        pq.write_table(pa.table({**columns, "ground_truth": answer}), tmp_path / "a.parquet")
        assert answers(tmp_path / "a.parquet") == [arrives]


def test_true_and_false_are_answers_of_a_classification_only(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "ground_truth": True, "data_source": "classification"}]
    assert answers(save(tmp_path / "a.json", rows)) == ["true"]
    with pytest.raises(DataError, match='"ground_truth" is true'):
        read_records(save(tmp_path / "b.json", [rows[0] | {"data_source": "qa"}]))


def test_a_prompt_may_be_a_chat_and_a_system_text_stands_before_it(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "?"},
    ]
    path = save(tmp_path / "a.json", [SUM | {"prompt": chat}, SUM])
    assert read_records(path)[0].prompt == chat
    system = {"role": "system", "content": "Think first."}
    first, second = read_records(path, system="Think first.")
    assert first.prompt == [system, *chat]
    assert second.prompt == [system, *SUM_RECORD.prompt]


def test_a_system_prompt_may_be_a_file(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", [SUM])
    text = save(tmp_path / "system.txt", "先思考。\nThen answer.\n")
    assert read_records(path, system=str(text))[0].prompt[0]["content"] == "先思考。\nThen answer."
    with pytest.raises(DataError, match="no such file"):
        read_records(path, system=str(tmp_path / "sytem.txt"))
    with pytest.raises(DataError, match="it looks like GBK"):
        read_records(path, system=str(save(tmp_path / "gbk.txt", "先思考，然后回答。".encode("gbk"))))


def test_two_system_prompts_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", [SUM | {"prompt": [{"role": "system", "content": "s"}, *SUM_RECORD.prompt]}])
    assert read_records(path)[0].prompt[0]["role"] == "system"
    with pytest.raises(DataError, match=r"record 1 .*system message of its own.*leave --system out"):
        read_records(path, system="another")


def test_other_column_names_and_a_missing_source_are_mapped(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.json",
        [{"q": "p", "a": "1", "from": "qa"}, {"q": "r", "a": "2"}, {"q": "s", "a": "3", "from": ""}],
    )
    records = read_records(path, prompt_key="q", answer_key="a", source_key="from", data_source="trivia")
    assert [record.data_source for record in records] == ["qa", "trivia", "trivia"]
    assert [record.extra for record in records] == [{}, {}, {}]


def test_a_record_needs_no_answer_when_answer_key_says_so(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", [{"prompt": "p", "data_source": "mine"}, SUM])
    records = read_records(path, answer_key="none")
    assert [record.ground_truth for record in records] == ["", ""]
    assert records[1].extra == {"ground_truth": "42"}  # a column like any other now


def test_other_columns_keep_value_and_type(tmp_path: Path) -> None:
    extra = {"level": 3, "share": 0.25, "big": 2**70, "id": "007", "tags": ["a", None, {"b": False}], "nothing": None}
    (record,) = read_records(save(tmp_path / "a.json", [SUM | extra]))
    assert record.extra == extra
    assert {key: type(value) for key, value in record.extra.items()} == {key: type(v) for key, v in extra.items()}


def test_an_extra_info_object_is_opened(tmp_path: Path) -> None:
    (record,) = read_records(save(tmp_path / "a.json", [SUM | {"extra_info": {"level": 3}, "topic": "sums"}]))
    assert record.extra == {"level": 3, "topic": "sums"}


def test_verls_own_schema_is_understood(tmp_path: Path) -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "p"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"split": "train", "index": 7, "answer": "#### 72"},
    }
    expected = [Record(row["prompt"], "openai/gsm8k", "72", row["extra_info"])]
    assert read_records(save(tmp_path / "a.jsonl", row)) == expected
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert read_records(tmp_path / "a.parquet") == expected


def test_gsm8ks_own_files_keep_the_answer_with_its_steps(tmp_path: Path) -> None:
    # S2-24: the reward reads the number after ####
    settings = {"prompt_key": "question", "answer_key": "answer", "data_source": "gsm8k"}
    answer = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72"
    path = save(tmp_path / "a.jsonl", {"question": "How many clips?", "answer": answer})
    assert read_records(path, **settings) == [
        Record([{"role": "user", "content": "How many clips?"}], "gsm8k", answer, {})
    ]


@pytest.mark.slow
def test_all_of_gsm8k_is_read(shared: Path) -> None:
    whole = shared / "data" / "gsm8k_train.jsonl"
    rows = [json.loads(line) for line in whole.read_text(encoding="utf-8").split("\n") if line]
    assert len(rows) == 7473
    records = read_records(whole, prompt_key="question", answer_key="answer", data_source="gsm8k")
    assert [record.ground_truth for record in records] == [row["answer"] for row in rows]
    assert contents(records) == [row["question"] for row in rows]


def test_records_longer_than_the_reading_window_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every cut falls somewhere: inside a string, an escape, a number, between records, inside a multi-byte character.
    rows = [{"prompt": f'解 \\ "{i}" 😀' * i, "ground_truth": i * 1000, "data_source": "qa"} for i in range(1, 8)]
    text = json.dumps(rows, indent=1)
    path = save(tmp_path / "a.json", text)
    expected = [row["prompt"] for row in rows]
    for window in (1, 2, 3, 7, 50, 333):
        monkeypatch.setattr(json_rows, "WINDOW", window)
        records = read_records(path)
        assert contents(records) == expected
        assert [record.ground_truth for record in records] == [str(row["ground_truth"]) for row in rows]
        broken = save(tmp_path / "b.json", text.replace('"ground_truth": 4000,', '"ground_truth": 4000'))
        with pytest.raises(DataError, match=r"line 20 column 3 \(record 4, begun on line 17\)"):
            read_records(broken)


def test_a_number_that_the_reading_window_cuts_is_still_one_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows, "WINDOW", 3)
    with pytest.raises(DataError, match=r"1 of 1 record .* is the number 1234567"):
        read_records(save(tmp_path / "a.json", "[1234567]"))


def test_the_column_of_an_error_counts_from_the_line_and_not_from_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps([SUM] * 9, ensure_ascii=False) + " x"
    for window in (2, 10, 100, 10_000):
        monkeypatch.setattr(json_rows, "WINDOW", window)
        with pytest.raises(DataError, match=f"at line 1 column {len(text)} "):
            read_records(save(tmp_path / "a.json", text))


def test_rows_made_in_python_follow_the_same_rules() -> None:
    # S1-28
    rows = ({"prompt": f"{i} + 1 = ?", "ground_truth": i + 1, "data_source": "math"} for i in range(3))
    assert [record.ground_truth for record in from_rows(rows)] == ["1", "2", "3"]
    columns = Columns(prompt="q", answer=None, source="data_source", data_source="mine")
    assert list(from_rows([{"q": "p"}], columns=columns)) == [
        Record([{"role": "user", "content": "p"}], "mine", "", {})
    ]
    with pytest.raises(DataError, match=r'^made now: 1 of 2 records .* record 2: no "ground_truth"'):
        list(from_rows([SUM, {"prompt": "p", "data_source": "qa"}], name="made now"))
    with pytest.raises(DataError, match="half a surrogate pair"):
        list(from_rows([SUM | {"extra": {"\ud800": 1}}]))


def test_a_record_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(SUM_RECORD)) == SUM_RECORD  # noqa: S301  bytes made on this line


def test_an_unknown_source_is_named_with_its_rows_and_the_nearest_known_one() -> None:
    # S2-35: check that data_source matches
    records = list(from_rows([SUM | {"data_source": source} for source in ("qa", "gsm9k", "mine", "gsm9k")]))
    check_sources(records, ("qa", "gsm9k", "mine"))
    with pytest.raises(DataError, match=r'1 of 2 records .* "gsm9k" \(record 4,'):
        check_sources([records[0], records[3]], ("qa", "gsm8k"))  # numbered as in the file, also after a split
    with pytest.raises(DataError) as caught:
        check_sources(records, ("qa", "gsm8k"), name="prompts.json")
    message = str(caught.value)
    assert message.startswith("prompts.json: 3 of 4 records have a data_source without a shipped reward: ")
    assert '"gsm9k" (record 2 and 1 more, did you mean gsm8k?); "mine" (record 3)' in message
    assert "Known: gsm8k, qa;" in message
    assert "--reward_func FILE" in message
