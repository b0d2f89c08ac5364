"""Bad input: what users of the peers hit, row by row of the table (RELIABILITY section 4.2), and what happens here.

Everything is found by `./train.sh check`, and by the short form of it before any training, without a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from grpo.__main__ import main
from reward_funcs import Sample, load_reward, score_batch

SUMS = [{"prompt": f"{n} + {n} = ?", "ground_truth": str(2 * n), "data_source": "math"} for n in range(12)]


@pytest.fixture
def run(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    """run(command, rows, *words, code=...) -> (exit code, everything that was said)."""

    def run(command: str, rows: Any, *words: str, code: str | None = None) -> tuple[int, str]:
        text = rows if isinstance(rows, str) else json.dumps(rows, ensure_ascii=False)
        Path("d.json").write_text(text, encoding="utf-8")
        own = ["--reward_func", "my.py"] if code is not None else []
        if code is not None:
            Path("my.py").write_text(f"def compute_score(solution_str, ground_truth):\n{code}\n", encoding="utf-8")
        capsys.readouterr()
        first = [command] if command else []
        ended = main([*first, "--data", "d.json", *own, *words])
        said = capsys.readouterr()
        return ended, said.out + said.err

    return run


@pytest.mark.parametrize("command", ["check", ""])
@pytest.mark.parametrize(
    ("source", "said"),
    [("poetry", '"poetry" (record 1 '), ("gsm8k ", "did you mean gsm8k?"), ("", 'empty "data_source"')],
)
def test_an_unknown_or_empty_data_source_is_refused_before_a_model_is_loaded(run, command, source, said):
    """Row 1: verl raises NotImplementedError at the first reward call, after the model was loaded"""
    code, text = run(command, [row | {"data_source": source} for row in SUMS])
    assert code == 2
    assert said in text
    assert text.startswith(("error: d.json: 10 of 10", "error: d.json: 12 of 12"))
    assert "Known: " in text or "--data_source NAME" in text


@pytest.mark.parametrize("command", ["check", ""])
def test_a_wrong_column_is_named_with_those_that_there_are(run, command):
    """Row 2: `KeyError: 'reward_model'` in the middle of a run"""
    code, text = run(command, [{"question": "1 + 1", "answer": "2", "data_source": "math"}])
    assert code == 2
    assert 'no "prompt"' in text
    assert 'no "ground_truth"' in text
    assert "--answer_key NAME names another column (there are: question, answer, data_source)" in text


def test_a_malformed_row_is_counted_and_never_filtered(run):
    """Row 3: verl prints "skipping" and filters it as too long"""
    code, text = run("check", [*SUMS, {"prompt": 7, "ground_truth": "1", "data_source": "math"}])
    assert code == 2
    assert '1 of 13 records cannot be used; first: record 13 (line 1): "prompt" is the number 7' in text


def test_when_every_prompt_is_too_long_nothing_begins(run, in_folder: Path):
    """Row 4: an assertion, or an empty loader, late"""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(in_folder / "tokenizer.json"))
    code, text = run("check", SUMS, "--model", ".", "--max_prompt_length", "4")
    assert code == 1
    assert "must change: 10 of 10 prompts" in text  # two of the twelve are kept for evaluation
    assert "to do: --max_prompt_length 64 keeps them all" in text


@pytest.mark.slow
def test_fewer_records_than_a_batch_make_the_default_batch_smaller_and_refuse_a_given_one(run):
    """Row 4: fewer rows than a batch"""
    code, text = run("", SUMS, "--val_data", "d.json", "--model", "scratch", "--dry_run")
    assert code == 0
    assert "12 prompts to train on: train_batch_size is 12 instead of" in text
    code, text = run("", SUMS, "--val_data", "d.json", "--model", "scratch", "--train_batch_size", "64", "--dry_run")
    assert code == 2
    assert "the largest that works is 12" in text


@pytest.mark.slow
def test_parts_that_differ_from_response_to_response_are_each_a_curve(run, in_folder: Path):
    """Row 5: KeyError, or columns lost without a word"""
    source = "    right = ground_truth == solution_str\n    return {'score': 1, 'right': 1} if right else 0.0"
    code, text = run("check", SUMS, code=source)
    assert code == 0
    assert "good to know: math: the parts differ from response to response (right); each is a curve" in text
    found = score_batch(load_reward("my.py"), [Sample("m", "1", "1"), Sample("m", "2", "1")], max_errors=0.0)
    assert (found.scores, found.parts) == ([1.0, 0.0], [{"right": 1.0}, {}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "returned None (is a `return` missing?)"),  # row 6: TypeError; or NaN
        ("float('nan')", "returned nan"),  # row 7: the whole update is skipped with one print
        ("float('inf')", "returned inf"),
        ("'1.0'", "returned '1.0' (str)"),  # row 8: TypeError or KeyError deep in Ray
        ("[1.0]", "returned [1.0] (list)"),
        ("{'right': 1.0}", "returned a dict without 'score': it has 'right'"),
        ("{'score': None}", "returned None"),
        ("1 / 0", "ZeroDivisionError: division by zero (my.py, line 2)"),  # row 9: the run dies, or it counts as 0
        ("exit(3)", "SystemExit: 3"),
    ],
)
def test_what_is_no_score_is_refused_before_training(run, returned, said):
    """Rows 6 to 9"""
    code, text = run("check", SUMS, code=f"    return {returned}")
    assert code == 1
    assert said in text
    assert "--max_reward_errors" in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_training_itself_refuses_it_before_a_model_is_loaded(run):
    """Rows 6 to 9, by the short form"""
    code, text = run("", SUMS, "--model", "no/such-model", code="    return None")
    assert code == 2
    assert "returned None (is a `return` missing?)" in text
    assert "or go on with --force" in text


@pytest.mark.slow
def test_a_coroutine_is_awaited_and_not_a_failure(run, in_folder: Path):
    """Row 8: a coroutine"""
    (in_folder / "a.py").write_text(
        "async def compute_score(solution_str, ground_truth):\n    return float(solution_str == ground_truth)\n"
    )
    code, text = run("check", SUMS, "--reward_func", "a.py")
    assert code == 0
    assert "12 of 12 score 1" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", ""])
def test_a_reward_that_hangs_costs_its_deadline_and_is_named(run, command):
    """Row 10: no time limit anywhere"""
    source = "    import time\n    time.sleep(99)\n    return 1.0"
    code, text = run(command, SUMS, "--model", "scratch", "--reward_timeout", "0.3", code=source)
    assert code == (1 if command else 2)
    assert "took longer than 0.3 s (--reward_timeout)" in text


def test_a_prompt_is_the_same_as_text_and_as_a_chat_list(run):
    """Row 11: prompts as JSON strings, and as lists"""
    chat = SUMS[0] | {"prompt": [{"role": "user", "content": SUMS[0]["prompt"]}]}
    code, text = run("check", [*SUMS, chat])
    assert code == 0
    assert "1 record with the same prompt as an earlier one" in text


def test_a_huge_prompt_is_counted_before_it_stops_a_run(run, in_folder: Path):
    """Row 11: `data.truncation=error` raises in the middle of a run"""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(in_folder / "tokenizer.json"))
    code, text = run("check", [*SUMS, SUMS[0] | {"prompt": "word " * 5000}], "--model", ".", "--val_share", "0.01")
    assert code == 0
    assert "1 of 12 prompts have more than --max_prompt_length" in text
    assert "--max_prompt_length 5056 keeps them all" in text  # 5000, rounded up to a multiple of 64


@pytest.mark.slow
def test_a_reward_that_changes_from_call_to_call_is_named(run):
    """Row 12: nobody checks"""
    code, text = run("check", SUMS, code="    import random\n    return random.random()")
    assert code == 0
    assert "should change: math: compute_score scored the same response differently, 24 times of 24" in text
    assert "take chance and state out of it" in text
