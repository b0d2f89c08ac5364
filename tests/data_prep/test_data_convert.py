"""What is written for the engines: verl's schema, exact values, whole files, and a split that stays."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.convert import convert, load_rows, split
from data_prep.errors import DataError
from data_prep.records import Record, read_records


def sums(count: int, first: int = 0) -> list[Record]:
    return [
        Record([{"role": "user", "content": f"{i} + 1 = ?"}], "math_reasoning", str(i + 1), {})
        for i in range(first, first + count)
    ]


@pytest.mark.slow
def test_the_file_has_verls_columns_and_types(tmp_path: Path) -> None:
    out = tmp_path / "new" / "train.parquet"
    record = Record([{"role": "user", "content": "请解答：15 + 27 = ?"}], "math_reasoning", "42", {"level": 3})
    other = Record([{"role": "user", "content": "q"}], "mine", "", {"level": "hard", "tags": []})
    assert convert([record, other], out, split="test") == 2
    table = pq.read_table(out)
    text = pa.string()
    assert table.schema.equals(
        pa.schema(
            {
                "prompt": pa.list_(pa.struct({"role": text, "content": text})),
                "data_source": text,
                "ability": text,
                "reward_model": pa.struct({"style": text, "ground_truth": text}),
                "extra_info": pa.struct({"index": pa.int64(), "split": text, "columns": text}),
            }
        )
    )
    assert table.to_pylist() == [
        {
            "prompt": [{"role": "user", "content": "请解答：15 + 27 = ?"}],
            "data_source": "math_reasoning",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"index": 0, "split": "test", "columns": '{"level": 3}'},
        },
        {
            "prompt": [{"role": "user", "content": "q"}],
            "data_source": "mine",
            "ability": "mine",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": 1, "split": "test", "columns": '{"level": "hard", "tags": []}'},
        },
    ]


def test_the_engines_get_the_other_columns_decoded_beside_the_index(tmp_path: Path) -> None:
    out = tmp_path / "a.parquet"
    records = [*sums(2), Record([{"role": "user", "content": "q"}], "qa", "a", {"level": 3, "index": "A-17"})]
    convert(records, out, ability="x")
    assert [row["extra_info"] for row in load_rows(out)] == [
        {"index": 0, "split": "train"},
        {"index": 1, "split": "train"},
        {"index": "A-17", "split": "train", "level": 3},  # the user's own column of that name is what the reward sees
    ]
    assert load_rows(out)[0] == {
        "prompt": [{"role": "user", "content": "0 + 1 = ?"}],
        "data_source": "math_reasoning",
        "ground_truth": "1",
        "extra_info": {"index": 0, "split": "train"},
    }


@pytest.mark.slow
def test_indexes_run_on_over_more_rows_than_are_held_in_memory(tmp_path: Path) -> None:
    convert(sums(5000), tmp_path / "a.parquet")
    rows = load_rows(tmp_path / "a.parquet")
    assert [row["extra_info"]["index"] for row in rows] == list(range(5000))
    assert [row["ground_truth"] for row in rows] == [str(i + 1) for i in range(5000)]


def test_what_convert_wrote_can_be_given_as_data_again(tmp_path: Path) -> None:
    records = [
        *sums(2),
        Record([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "qa", "007", {"big": 2**70}),
    ]
    convert(records, tmp_path / "a.parquet")
    assert read_records(tmp_path / "a.parquet") == records
    assert read_records(f"{tmp_path / 'a.parquet'}#1") == records[:1]


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    convert(sums(3), tmp_path / "a.parquet")
    convert(sums(3), tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_an_error_on_the_way_leaves_the_earlier_file_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "a.parquet"
    convert(sums(3), out)
    before = out.read_bytes()

    def stops_late() -> Iterator[Record]:
        yield from sums(3000)
        raise DataError("record 3001: bad")

    for records in (stops_late(), iter([])):
        with pytest.raises(DataError):
            convert(records, out)
        assert out.read_bytes() == before
        assert os.listdir(tmp_path) == ["a.parquet"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "a.parquet"
    (tmp_path / f".a.parquet.tmp-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"a\.parquet: cannot be written: .*[Nn]o space left on device"):
        convert(sums(3), out)
    assert os.listdir(tmp_path) == []


def test_a_file_in_another_schema_is_no_training_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["p"]}), path)
    with pytest.raises(DataError, match="not in the schema"):
        load_rows(path)
    with pytest.raises(DataError, match="cannot be read"):
        load_rows(tmp_path / "missing.parquet")


@pytest.mark.slow
def test_the_split_takes_about_its_share_and_keeps_every_record_once() -> None:
    train, val = split(sums(2000), 0.1)
    assert 150 < len(val) < 250  # 200 expected, standard deviation 13
    numbers = [[int(record.ground_truth) for record in side] for side in (train, val)]
    assert sorted(numbers[0] + numbers[1]) == list(range(1, 2001))
    assert numbers == [sorted(side) for side in numbers]  # in the records' order


def test_a_system_prompt_moves_no_prompt_to_the_other_side() -> None:
    """Else runs with other system prompts would be compared on other prompts, some of them trained on."""
    asked = [
        replace(record, prompt=[{"role": "system", "content": "Be kind."}, *record.prompt]) for record in sums(200)
    ]
    for plain, kind in zip(split(sums(200), 0.1), split(asked, 0.1), strict=True):
        assert [record.ground_truth for record in kind] == [record.ground_truth for record in plain]


def test_a_prompt_stays_on_its_side_in_any_order_and_in_a_larger_file() -> None:
    # printf '[["user", "1 + 1 = ?"]]' | sha256sum  begins with less than 0x19999999 = 0.1 * 2**32, and so on
    _, val = split(sums(40), 0.1)
    assert [record.ground_truth for record in val] == ["2", "3", "6", "10", "18", "20", "24", "34"]
    _, shuffled = split(random.Random(1).sample(sums(40), 40), 0.1)
    assert sorted(shuffled, key=str) == sorted(val, key=str)
    _, larger = split(sums(400), 0.1)
    assert [record for record in larger if int(record.ground_truth) <= 40] == val


def test_equal_prompts_fall_on_one_side() -> None:
    records = sums(50) + [Record(record.prompt, "qa", "another answer", {}) for record in sums(50)]
    train, val = split(records, 0.3)
    assert not {str(record.prompt) for record in train} & {str(record.prompt) for record in val}


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.5, 0.999999, 1.0])
def test_neither_side_is_empty_when_there_are_two_prompts(share: float) -> None:
    for count in (2, 3, 10):
        train, val = split(sums(count), share)
        assert train
        assert val
        assert len(train) + len(val) == count


def test_a_single_prompt_is_trained_on_and_evaluated() -> None:
    # The seed's own example file has one record.
    (only,) = sums(1)
    assert split([only], 0.1) == ([only], [only])
    assert split([only, only], 0.1) == ([only, only], [only])


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Not "\x08eta", "\times" and their like, which are refused as LaTeX that lost a backslash.
WORDS = TEXT.filter(lambda text: text.strip() and not set(text) & set("\x08\x0c\t"))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
COLUMN = TEXT.filter(
    lambda name: name not in ("prompt", "ground_truth", "data_source", "extra_info", "reward_model", "ability")
)
ROW = st.fixed_dictionaries(
    {"prompt": WORDS, "ground_truth": WORDS, "data_source": WORDS, "extra": st.dictionaries(COLUMN, VALUES, max_size=3)}
)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(rows=st.lists(ROW, min_size=1, max_size=6), ascii_only=st.booleans(), lines=st.booleans())
def test_every_valid_row_reaches_the_reward_equal_in_value_and_type(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], ascii_only: bool, lines: bool
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    flat = [{key: row[key] for key in ("prompt", "ground_truth", "data_source")} | row["extra"] for row in rows]
    texts = [json.dumps(row, ensure_ascii=ascii_only) for row in flat]
    path = folder / ("a.jsonl" if lines else "a.json")
    path.write_bytes(("\n".join(texts) if lines else f"[{','.join(texts)}]").encode())
    convert(read_records(path), folder / "a.parquet")
    for index, (row, loaded) in enumerate(zip(rows, load_rows(folder / "a.parquet"), strict=True)):
        assert loaded["prompt"] == [{"role": "user", "content": row["prompt"]}]
        assert (loaded["ground_truth"], loaded["data_source"]) == (row["ground_truth"], row["data_source"])
        expected = {"index": index, "split": "train"} | row["extra"]
        assert loaded["extra_info"] == expected
        assert repr(loaded["extra_info"]) == repr(expected)  # 1 == True == 1.0, but their repr differs


@pytest.mark.slow
def test_ten_thousand_rows_come_back_exactly(tmp_path: Path) -> None:
    # RELIABILITY.md goal 16
    make = random.Random(0)
    alphabet = 'aZ09 .-+e\n\t"\\{}[],:/é请解😀\u2028\u0000\u001b'
    rows = [
        {
            "prompt": "p" + "".join(make.choices(alphabet, k=make.randrange(40))),
            "ground_truth": make.choice(["007", "3.10", "1e5", "1,234", "True", "null", "#### 18", str(2**70), "请"]),
            "data_source": make.choice(["qa", "数学", "gsm8k"]),
            "number": make.choice([1, 1.0, -0.0, 2**70, 1e300, True, None, [1, [2.5]], {"k": {}}]),
        }
        for _ in range(10_000)
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    convert(read_records(path), tmp_path / "a.parquet")
    loaded = load_rows(tmp_path / "a.parquet")
    got = [
        {
            "prompt": row["prompt"][0]["content"],
            "ground_truth": row["ground_truth"],
            "data_source": row["data_source"],
            "number": row["extra_info"]["number"],
        }
        for row in loaded
    ]
    assert repr(got) == repr(rows)
