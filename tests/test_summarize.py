"""`--recipe summarize_t5` and the table of bench/summaries.py, each with a few steps of a smaller model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.__main__ import main
from grpo.config import read_recipe
from tests.documents import text_of

FEW = ["launcher.sft.steps=3", "launcher.sft.batch_size=4", "trainer.total_training_steps=1", "data.train_batch_size=2"]
FEW += ["launcher.scratch.hidden_size=16", "launcher.scratch.num_layers=1", "data.val_max_samples=4"]


@pytest.mark.slow
def test_the_recipe_is_sft_first_then_rouge_and_length(in_folder, capsys):  # S1-13, S1-14, S1-19, S1-23
    """The judge, half of the mixture, needs a model; the other two keep their proportion of 0.3 to 0.2."""
    made = read_recipe("summarize_t5")
    assert made["launcher.reward.names"] == ["rouge", "length_similarity"]
    assert made["launcher.reward.weights"] == [0.6, 0.4]
    assert made["launcher.sft.steps"] > 0
    assert main(["--recipe", "summarize_t5", "--dry_run=json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert "meetings_train.json" in json.dumps(plan)
    assert "meetings_val.json" in json.dumps(plan)


@pytest.mark.parametrize("page", ["docs/summarization.md", "docs/summarization.zh.md"])
def test_the_page_shows_the_table_that_was_measured_and_says_who_learns_more_easily(page, repo):  # S1-22, S1-29
    measured = (repo / "bench" / "results" / "summaries.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:ORI|SFT|GRPO|SFT \+ GRPO|the note itself) \|.*$", measured, re.MULTILINE)
    assert len(rows) == 5
    text = text_of(page)
    for row in rows:
        numbers = [cell.strip().split(" ")[0] for cell in row.split("|")[2:5]]
        assert all(number in text for number in numbers), row
    assert any(title in text for title in ("## Models that think aloud", "## 先思考再回答的模型"))


@pytest.mark.slow
def test_the_recipe_runs_and_its_model_opens_as_any_t5(in_folder, capsys):  # S1-01, S1-23
    assert main(["--recipe", "summarize_t5", "--device=cpu", *FEW]) == 0, capsys.readouterr().err
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    final = "outputs/checkpoints/final"
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(final), AutoTokenizer.from_pretrained(final)
    assert model.config.model_type == "t5"
    assert len(tokenizer(" decided")["input_ids"]) == 1  # a frequent word is one token
    text = "请把 décidé 写成摘要"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text  # and any other text is bytes
    rows = [json.loads(line) for line in Path("outputs/completions.jsonl").read_text().splitlines()]
    assert {"rouge", "length_similarity"} <= {name.split("/")[0] for row in rows for name in row["parts"]}


@pytest.mark.slow
def test_the_bench_prints_every_stage_on_every_file(repo, in_folder):  # S1-22
    words = [sys.executable, str(repo / "bench" / "summaries.py"), "--notes", "3", "--threads", "1", "--set", *FEW]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {line.split(" | ")[0]: line for line in done.stdout.splitlines() if line.startswith("| ")}
    for name in ("ORI", "SFT", "GRPO", "SFT + GRPO", "the note itself"):
        assert len(re.findall(r"\d\.\d{3} \(-?\d\.\d{3} to -?\d\.\d{3}\)", rows[f"| {name}"])) == 3
    assert "SFT + GRPO less SFT: " in done.stdout
