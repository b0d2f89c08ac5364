"""`./train.sh eval`: models beside each other on the same prompts, with intervals; what stops goes on. S1-19, S1-22"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grpo.__main__ import main
from grpo.commands.eval_numbers import groups_of, sizes, sums_of
from grpo.commands.eval_page import write_page
from grpo.commands.eval_table import as_text, shown
from grpo.metrics.intervals import Measured


def line(reward: float | None, **more: Any) -> dict[str, Any]:
    plain = {"model": "A", "data": "test.json", "record": 0, "prompt": "1 + 1 = ?", "response": "2", "reward": reward}
    plain |= {"parts": {}, "length": 3, "truncated": False, "ground_truth": "2", "data_source": "math"}
    return plain | more


def ratio(sums: Any, name: str) -> float:
    return sum(top for top, _ in sums[name]) / sum(under for _, under in sums[name])


def test_pass_at_k_is_the_unbiased_estimate_and_maj_at_k_the_reward_of_the_majority():
    # Of four: 2 right in the first prompt, none in the second. pass@2 = 1 - C(2,2)/C(4,2) = 5/6, and 0 (Chen et al.
    # 2021); pass@4 = 1 and 0. The first prompt's majority is 2, which is right; the second's is 5, which is wrong.
    prompts = [
        [line(1.0), line(0.0, response="3"), line(0.0, response="4"), line(1.0, response="2.0")],
        [line(0.0, response="5"), line(0.0, response="5"), line(0.0, response="6"), line(0.0, response="")],
    ]
    sums = sums_of(prompts, k=4, pass_at=1.0)
    names = ("accuracy", "pass@2", "pass@4", "maj@4", "reward", "length", "truncated")
    assert [ratio(sums, name) for name in names] == pytest.approx([2 / 8, 5 / 12, 1 / 2, 1 / 2, 2 / 8, 3, 0])
    assert "failed" not in sums
    assert sizes(1) == []
    assert sizes(6) == [2, 4, 6]


def test_a_failed_reward_call_counts_for_length_alone_and_is_shown():
    lines = [line(None, length=9, truncated=True, parts={}), line(0.5, parts={"style": 0.25})]
    sums = sums_of([lines], k=2, pass_at=0.5)
    assert ratio(sums, "accuracy") == 1.0
    assert ratio(sums, "reward") == 0.5
    assert ratio(sums, "reward/style") == 0.25
    assert sums["pass@2"] == [(0, 0)]  # one scored response does not tell
    assert [ratio(sums, name) for name in ("length", "truncated", "failed")] == [6, 0.5, 0.5]


def test_numbers_come_for_each_file_and_each_of_its_sources():  # S1-19: train, validation and test side by side
    lines = [
        line(float(record == 0), model=model, data=data, record=record, data_source="math" if record else "qa")
        for data in ("train.json", "test.json")
        for record in (0, 1)
        for model in ("A", "B")
    ]
    groups = groups_of(lines, ["A", "B"], k=1, pass_at=1.0, seed=1)
    assert [(group.data, group.data_source, group.prompts) for group in groups] == [
        *(("train.json", source, count) for source, count in (("all", 2), ("math", 1), ("qa", 1))),
        *(("test.json", source, count) for source, count in (("all", 2), ("math", 1), ("qa", 1))),
    ]
    assert [group.by_model["B"]["accuracy"].value for group in groups[:3]] == [0.5, 0.0, 1.0]
    assert groups[0].differences["B"]["accuracy"].value == 0.0


def test_a_table_shows_shares_in_percent_and_a_star_where_a_difference_is_sure():
    assert shown("accuracy", Measured(0.625, 0.5, 0.75)) == "62.5 % [50.0, 75.0]"
    assert shown("accuracy", Measured(0.1, 0.05, 0.15), difference=True) == "+10.0 % [+5.0, +15.0] *"
    assert shown("reward", Measured(-0.5, -1.0, 0.25), difference=True) == "-0.5 [-1, +0.25]"
    assert shown("length", Measured(12.34, None, None)) == "12.3"
    assert shown("length", Measured(-0.01, -0.04, 0.0), difference=True) == "+0.0 [+0.0, +0.0]"
    lines = [line(1.0, model=model, record=record) for record in (0, 1) for model in ("A", "B", "C")]
    told = {"models": {"A": "one", "B": "two", "C": "three"}, "k": 1, "temperature": 0.0, "seed": 42}
    text = as_text(told, groups_of(lines, ["A", "B", "C"], k=1, pass_at=1.0, seed=1))
    assert "test.json, math: 2 prompts x 1 response, the likeliest tokens" in text
    assert "B - A" in text
    assert "C - A" in text


def test_the_page_shows_what_differs_most_first_and_runs_nothing_that_a_model_wrote(tmp_path: Path):
    lines = [line(reward, model=model, record=record, response=text)
             for record, model, reward, text in (
                 (0, "A", 1.0, "same"), (0, "B", 1.0, "same"),
                 (1, "A", 0.0, "<script>alert(1)</script>"), (1, "B", 1.0, "\x1b[31mright"))]  # fmt: skip
    told = {"models": {"A": "one", "B": "two"}, "k": 1, "temperature": 0.0, "pass_at": 1.0, "reward": "shipped"}
    told |= {"command": "./train.sh eval", "seed": 1}
    page = write_page(tmp_path, told, groups_of(lines, ["A", "B"], k=1, pass_at=1.0, seed=1), lines, language="zh")
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "␛[31mright" in text
    assert text.index("&lt;script&gt;") < text.index(">same<")
    assert "default-src 'none'" in text
    assert 'lang="zh"' in text


# The command

REWARD = """
import os, signal
from pathlib import Path

def compute_score(data_source, solution_str, ground_truth, extra_info):
    if extra_info["index"] == 5 and Path("stop").exists():
        Path("stop").unlink()
        os.kill(os.getppid(), signal.SIGINT)
    return {"score": len(set(solution_str)) / 7, "digits": sum(c.isdigit() for c in solution_str)}
"""
WORDS = ["--reward_func=reward.py", "--device=cpu", "--dtype=float32", "--max_response_length=8"]


@pytest.fixture
def folder(in_folder: Path) -> Path:
    """Prompts and a reward; models only where a test makes them."""
    rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": f"{n + 1}", "data_source": "math"} for n in range(8)]
    Path("test.json").write_text(json.dumps(rows))
    Path("val.json").write_text(json.dumps(rows[:3]))
    Path("reward.py").write_text(REWARD)
    return in_folder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--data FILE names the prompts to answer"),
        (["--data=test.json"], "--model ./outputs: no such folder"),
        (["--data=test.json", "--model=./nowhere"], "--model ./nowhere: no such folder; name a run's folder"),
        (["--data=nothing.json", "--model=some/model"], "nothing.json"),
        (["--data", "test.json", "test.json", "--model=some/model"], "--data test.json is named twice"),
        (["--data=test.json", "--model=some/model", "-k", "0"], "-k 0 must be at least 1"),
        (["--data=test.json", "--model=some/model", "-k", "x"], "invalid int value: 'x'"),
        (["--data=test.json", "--model=some/model", "-k", "4", "--temperature=0"], "would all be the same"),
        (["--data=test.json", "--model=some/model", "--temperature=-1"], "--temperature -1 must be 0 or more"),
        (["--data=test.json", "--model=some/model", "--engine=verl"], "eval runs on the embedded engine"),
        (["--data=test.json", "--model=some/model", "--reward=acuracy"], "acuracy"),
        (["--data=test.json", "--model=some/model", "--max_response_length=0"], "must be at least 1"),
        (["--data=test.json", "--model=some/model", "--dta=x"], "--dta is no flag; did you mean --data?"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(words: list[str], says: str, folder: Path, capsys):
    assert main(["eval", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not Path("outputs_eval").exists()


def test_records_without_a_reward_are_named_before_a_model_is_opened(folder: Path, capsys):
    Path("odd.json").write_text('[{"prompt": "1", "ground_truth": "1", "data_source": "odd"}]')
    assert main(["eval", "--data=odd.json", "--model=some/model"]) == 2
    assert re.search(r"odd\.json.*odd", capsys.readouterr().err)


@pytest.mark.slow
def test_models_and_an_adapter_are_compared_and_what_was_stopped_goes_on(folder: Path, capsys):  # S1-22
    from grpo.embedded.adapter import Lora, attach, matrices, save
    from grpo.embedded.models import read_model, read_tokenizer
    from tests.embedded.tiny_models import llama, model_folder

    model_folder(llama(), folder / "base")
    model_folder(llama(), folder / "run" / "checkpoints" / "final", seed=3)
    adapted = attach(read_model("base"), Lora(4, 16, "all-linear", "base"), seed=1)
    for name, weight in matrices(adapted).items():
        if "lora_B" in name:
            weight.data.normal_(std=0.3)
    save(adapted, folder / "adapter")
    read_tokenizer("base").save_pretrained("adapter")
    models = ["--model=base", "--model=run", "--model=adapter"]
    words = ["eval", *models, "--data", "test.json", "val.json", "actor_rollout_ref.rollout.max_num_seqs=16", *WORDS]
    words += ["-k", "4"]
    capsys.readouterr()
    assert main([*words, "--to=whole"]) == 0
    text = capsys.readouterr().out
    for says in ("A  base", "B  run/checkpoints/final", "C  adapter", "test.json, ", "val.json, ", "C - A", "maj@4"):
        assert says in text.replace("math: ", ""), says
    Path("stop").touch()
    assert main([*words, "--to=stopped"]) == 130
    error = capsys.readouterr().err
    assert "stopped: 16 responses stay in stopped/unfinished.jsonl; the same command goes on" in error
    assert [path.name for path in Path("stopped").iterdir()] == ["unfinished.jsonl"]
    with open("stopped/unfinished.jsonl", "a") as file:
        file.write('{"model": "A", "da')  # torn by a kill
    assert main([*words, "--to=stopped", "--json"]) == 0
    said = capsys.readouterr()
    assert "going on with 16 responses" in said.err
    found = json.loads(said.out)
    assert found["command"].startswith("./train.sh eval --model=base --model=run --model=adapter --data test.json")
    assert found["models"] == {"A": "base", "B": "run/checkpoints/final", "C": "adapter"}
    assert found["groups"][0]["prompts"] == 8
    assert found["groups"][0]["by_model"]["C"] != found["groups"][0]["by_model"]["A"]
    one, two = (Path(name, "completions.jsonl").read_text(encoding="utf-8") for name in ("whole", "stopped"))
    assert one == two
    assert len(one.splitlines()) == 3 * 4 * (8 + 3)
    assert sorted(path.name for path in Path("whole").iterdir()) == [
        "compare.html",
        "completions.jsonl",
        "results.json",
    ]


@pytest.mark.slow
def test_a_prompt_or_a_response_that_a_model_has_no_room_for_is_said(folder: Path, capsys):
    from tests.embedded.tiny_models import gpt2, llama, model_folder

    model_folder(llama(), folder / "base")
    model_folder(gpt2(n_positions=16), folder / "short")
    rows = [{"prompt": "7" * size, "ground_truth": "7", "data_source": "math"} for size in (4, 5, 40)]
    Path("lengths.json").write_text(json.dumps(rows))
    words = ["eval", "--model=base", "--model=short", "--data=lengths.json", "--device=cpu", "--dtype=float32"]
    assert main([*words, "--max_prompt_length=20"]) == 0
    said = capsys.readouterr().out
    assert "lengths.json: left out 1 prompts over 20 tokens" in said  # for both models
    room = re.search(r"responses have at most (\d+) tokens: a model reads no more behind its longest prompt", said)
    assert room
    assert int(room[1]) < 12
    assert "2 prompts x 1 response" in said
    assert main([*words, "--max_prompt_length=20", "--max_response_length=14"]) == 2
    assert "short reads at most 16 tokens, and the longest prompt has" in capsys.readouterr().err
    assert main([*words, "--max_prompt_length=2"]) == 2
    assert "lengths.json: every prompt is over --max_prompt_length 2; raise it" in capsys.readouterr().err
