"""Files of model outputs, and the records that their rows belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError
from data_prep.record import Record
from data_prep.responses import read_responses

DATA = [
    Record(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1 = ?"}], "math", "2", {"k": 5}
    ),
    Record([{"role": "user", "content": "请计算：2 + 2"}], "gsm8k", "4", {}),
]


@pytest.fixture
def write(tmp_path: Path):
    def write(*rows: Any) -> Path:
        path = tmp_path / "r.jsonl"
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
        return path

    return write


def test_a_row_finds_its_record_by_index_or_by_prompt(write):
    chat = [{"role": "user", "content": "1 + 1 = ?"}]
    found = read_responses(
        write(
            {"index": 1, "response": "a"},
            {"prompt": " 请计算：2 + 2\n", "completion": "b"},
            {"prompt": chat, "output": "c"},
            {"question": "1 + 1 = ?", "responses": ["d", "e"]},
        ),
        DATA,
    )
    assert [(one.text, one.record, one.ground_truth) for one in found] == [
        ("a", 1, "4"), ("b", 1, "4"), ("c", 0, "2"), ("d", 0, "2"), ("e", 0, "2"),
    ]  # fmt: skip
    assert found[2].extra == {"k": 5}
    assert found[0].group == found[1].group != found[2].group == found[4].group


def test_the_models_of_one_row_are_told_apart(write):
    # the shape of OpenAI's GSM8K file of example model solutions
    row = {
        "question": "How many?",
        "ground_truth": "So it is.\nA: 18",
        "6b": {"is_correct": False, "solution": "A: 26"},
        "175b": {"is_correct": True, "solution": "A: 18"},
    }
    found = read_responses(write(row), [], data_source="gsm8k")
    assert [(one.who, one.text, one.verdict) for one in found] == [("6b", "A: 26", False), ("175b", "A: 18", True)]
    assert found[0].ground_truth == "So it is.\nA: 18"
    assert found[0].group != found[1].group


def test_completions_of_a_run_bring_their_truths_and_groups(write):
    rows = [
        {"step": step, "uid": uid, "prompt": "<user> 1 + 1", "response": text, "ground_truth": "2", "length": 7,
         "data_source": "math", "split": "train"}
        for step, uid, text in [(1, 0, "a"), (1, 0, "b"), (1, 1, "c"), (2, 0, "d")]
    ]  # fmt: skip
    found = read_responses(write(*rows), [])
    assert [one.group == found[0].group for one in found] == [True, True, False, False]
    assert found[0].length == 7
    assert [one.text for one in read_responses(write(*rows), [], step=-1)] == ["d"]
    assert [one.text for one in read_responses(write(*rows), [], step=1)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"index": 2, "response": "a"}], "none of its 1 row belongs to a record .first: line 1."),
        ([{"index": 0, "response": "a"}, {"prompt": "other", "response": "b"}], "1 of 2 rows belong to no record"),
        ([{"index": 0, "text": "a"}], "line 1: no `response`; it has index, text"),
        ([{"index": 0, "response": 5}], "line 1: `response` is 5; it has to be text"),
        ([{"index": 0, "response": None}], "line 1: `response` is null; it has to be text"),
        (
            [{"index": 0, "responses": ["a", None]}],
            r'line 1: `responses` is \["a", null\]; it has to be a list of texts',
        ),
        ([["a"]], "line 1: is no object"),
    ],
)
def test_what_cannot_be_matched_is_named_and_nothing_is_left_out_silently(write, rows, said):
    with pytest.raises(DataError, match=said) as error:
        read_responses(write(*rows), DATA)
    assert "\n" not in str(error.value)


def test_without_data_a_truth_and_a_source_are_needed(write):
    with pytest.raises(DataError, match="--data_source NAME"):
        read_responses(write({"prompt": "1", "response": "a", "ground_truth": "1"}), [])
