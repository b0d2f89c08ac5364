"""The notes of recipes/summarize_t5.yaml: one right summary, a poor teacher, three files apart, no pay for copying."""

from __future__ import annotations

import json
import random
from statistics import fmean

import pytest

from data_prep.meetings import Meeting, note, write
from reward_funcs import Sample
from reward_funcs.text_overlap import length_similarity, rouge

FILES = [f"meetings_{name}.json" for name in ("train", "val", "test", "demonstrations")]
WHAT = Meeting("Delta", "open a shop", "cut the budget", "Ana", "book a room", "Friday")


@pytest.fixture(scope="module")
def shipped(repo):
    return [json.loads((repo / "data_prep" / name).read_text(encoding="utf-8")) for name in FILES]


def test_the_shipped_files_are_what_the_module_writes(tmp_path, repo):
    write(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (repo / "data_prep" / name).read_bytes(), name


def test_training_validation_and_test_notes_share_no_summary(shipped):  # S1-19
    train, val, test, shown = shipped
    summaries = [{row["ground_truth"] for row in rows} for rows in (train, val, test)]
    assert [len(one) for one in summaries] == [len(train), len(val), len(test)] == [2000, 128, 256]
    assert not summaries[0] & summaries[1] | summaries[0] & summaries[2] | summaries[1] & summaries[2]
    assert [row["prompt"] for row in shown] == [row["prompt"] for row in train]


def test_a_note_holds_what_its_summary_says_and_more():
    assert WHAT.summary() == "Delta: open a shop. Ana: book a room by Friday."
    assert WHAT.summary(decision=WHAT.proposal) == "Delta: cut the budget. Ana: book a room by Friday."
    for seed in range(20):
        text, talk = note(WHAT, random.Random(seed))
        assert text.startswith("Project Delta. ")
        facts = ("We decided to open a shop.", "proposed to cut the budget.", "Ana will book a room by Friday.")
        for said in (*facts, talk):
            assert text.count(said) == 1
        assert text.count("Ana") == 1  # nobody else is called like who does it


@pytest.mark.slow
def test_repeating_the_note_scores_lower_than_the_summary_and_so_does_the_teacher(shipped):  # S1-12, S1-15
    train, _, _, shown = shipped

    def reward(text: str, row: dict) -> float:
        sample = Sample("summary", text, row["ground_truth"], {})
        return 0.6 * rouge(sample)["score"] + 0.4 * length_similarity(sample)

    rows = list(zip(train[:60], shown[:60], strict=True))
    assert {round(reward(row["ground_truth"], row), 9) for row, _ in rows} == {1.0}
    assert max(reward(row["prompt"], row) for row, _ in rows) < 0.7
    assert fmean(reward(row["prompt"], row) for row, _ in rows) < 0.5
    assert 0.7 < fmean(reward(said["response"], row) for row, said in rows) < 0.85


def test_the_teacher_mixes_up_eight_decisions_of_ten_and_repeats_six_small_talks(shipped):
    train, _, _, shown = shipped
    pairs = [(row["ground_truth"], said["response"]) for row, said in zip(train, shown, strict=True)]
    talks = [said.count(". ") > 1 for _, said in pairs]
    decided = [said.startswith(right.split(". ")[0]) for right, said in pairs]
    assert 0.57 < fmean(talks) < 0.63
    assert 0.17 < fmean(decided) < 0.23
