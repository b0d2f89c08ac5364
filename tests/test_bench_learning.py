"""bench/learning.py: what its runs are told, what it reads from them, what it says of them; and one short run."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grpo.presets import algorithms
from tests.conftest import REPO


def _of_bench(name: str) -> ModuleType:
    """A file of bench/, whose files name each other without a package."""
    sys.path.append(str(REPO / "bench"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(REPO / "bench"))


result, runs, tasks = (_of_bench(f"learning_{name}") for name in ("result", "runs", "tasks"))


def test_the_interval_of_one_run_is_that_of_its_prompts():
    # 400 prompts, half of them right: the mean's standard error is 0.5 / 20, 1.96 of them are 0.049
    mean, low, high = result.interval(result.matrix(["01" * 200]))
    assert mean == 0.5
    assert (low, high) == pytest.approx((0.451, 0.549), abs=0.004)


def test_runs_that_differ_widen_the_interval_although_all_prompts_agree():
    # Two runs, all right and all wrong: the mean over two draws is 0 or 1 a quarter of the time each.
    assert result.interval(result.matrix(["1" * 50, "0" * 50])) == (0.5, 0.0, 1.0)


def test_the_doubt_between_two_engines_is_that_between_their_seeds():
    # Variances 0.0001 and 0.0004 over three runs: an error of sqrt(0.0005 / 3) = 0.012910. Welch's degrees of freedom
    # are (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 2.94, so t is that of 2, 4.303; 0.05555 to each side.
    mean, low, high = result.difference([0.89, 0.90, 0.91], [0.85, 0.87, 0.89])
    assert (mean, low, high) == pytest.approx((0.03, 0.03 - 0.05555, 0.03 + 0.05555), abs=1e-5)
    assert result.difference([0.9], [0.1, 0.2])[1:] == (-math.inf, math.inf)  # one seed tells nothing


def _run(seed: int, *accuracies: float, batch: int = 10) -> dict[str, Any]:
    points = [
        {
            "step": 5 * at,
            "responses": 5 * at * batch,
            "correct": "1" * round(100 * right) + "0" * round(100 - 100 * right),
        }
        for at, right in enumerate(accuracies)
    ]
    return {"seed": seed, "points": points}


def test_who_sampled_more_in_a_step_is_judged_by_what_it_had_at_the_others_number():
    greedy = _run(1, 0.3, 0.5, 0.9, batch=20)  # its looks come after 0, 100 and 200 responses
    (row,) = result.outcomes({"dapo": [greedy]}, budget=100)
    assert (row["after"][0], row["responses"]) == (0.5, 100)


@pytest.mark.slow
def test_learning_is_a_gain_whose_whole_interval_is_over_a_tenth():
    sides = {"well": [_run(1, 0.3, 0.6), _run(2, 0.3, 0.7)], "barely": [_run(1, 0.3, 0.42)], "not": [_run(1, 0.3, 0.3)]}
    rows = {row["side"]: row for row in result.outcomes(sides, budget=50)}
    assert rows["well"]["gain"][0] == pytest.approx(0.35)
    assert rows["well"]["each"] == [0.6, 0.7]
    assert {side: row["learns"] for side, row in rows.items()} == {"well": True, "barely": False, "not": False}
    text = result.table(list(rows.values()))
    assert "| well | 2 | 0.300" in text
    assert text.count("DOES NOT CLEARLY LEARN") == 2


def test_engines_agree_when_nothing_is_within_the_interval_of_their_difference():
    sides = {
        "ours": [_run(1, 0.3, 0.9, 0.9), _run(2, 0.3, 0.9, 0.92)],
        "slow": [_run(1, 0.3, 0.4, 0.91), _run(2, 0.3, 0.4, 0.92)],
        "other": [_run(1, 0.3, 0.9, 0.5), _run(2, 0.3, 0.9, 0.49)],
    }
    pairs = result.agreements(sides, budget=100)
    found = {(pair["measure"], *pair["pair"]): pair["agree"] for pair in pairs}
    assert found[("end", "ours", "slow")]  # 0.91 and 0.915
    assert not found[("end", "ours", "other")]
    assert not found[("curve", "ours", "slow")]  # 0.905 against 0.6575: it came there later
    assert "- end: ours less other +0.415" in result.pairs_text(pairs)


def test_a_run_is_read_with_the_batches_that_each_step_sampled(tmp_path: Path):
    metrics = [{"step": 0}, {"step": 1, "generated_batches": 2.0}, {"step": 2}]
    asked = {"Compute: 41 + 5 = ?\n": (0.0, 1.0), "请计算：7 + 90 = ?\n": (1.0, 1.0)}
    lines: list[dict[str, Any]] = [{"step": 1, "split": "train", "prompt": "Compute: 9 + 9 = ?", "reward": 1.0}]
    for look, step in enumerate((0, 2)):
        for prompt, rewards in asked.items():
            parts = {"accuracy": rewards[look]} if step else {}  # a sum of rewards is not the accuracy
            line = {
                "step": step,
                "split": "val",
                "prompt": prompt,
                "reward": rewards[look] - 0.1 * step,
                "parts": parts,
            }
            lines.append(line)
    for name, rows in {"metrics": metrics, "completions": lines}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert runs.points_of(tmp_path, 8) == [
        {"step": 0, "responses": 0, "correct": "10"},  # 7 + 90 comes before 41 + 5
        {"step": 2, "responses": 24, "correct": "11"},
    ]


@pytest.mark.parametrize("side", [*algorithms(), *runs.RECIPES, "verl"])
def test_every_algorithm_starts_from_the_same_and_may_sample_as_much(side: str, tmp_path: Path):
    from grpo import flags
    from grpo.resolve import resolve

    (start := runs.task_of(side).start(tmp_path)).mkdir()
    (start / "config.json").touch()
    shape = runs.Shape(steps=6, prompts=16, n=4)
    settings = resolve(flags.parse(runs.words(side, 3, tmp_path, shape)), {}).settings()
    assert settings["actor_rollout_ref.model.path"] == str(start)
    assert settings["launcher.seed"] == 3
    sampled = settings["data.train_batch_size"] * settings["actor_rollout_ref.rollout.n"]
    assert settings["trainer.total_training_steps"] * sampled == shape.budget == 384
    assert settings["trainer.test_freq"] * sampled == 2 * 16 * 4  # looks come after as many responses
    assert settings["launcher.engine"] == ("verl" if side == "verl" else "embedded")


def test_trl_gets_the_start_the_prompts_and_the_sizes_of_the_others(tmp_path: Path):
    spec = runs.trl_spec(3, tmp_path, runs.Shape(lr=1e-3))
    assert spec["model"] == str(runs.SUMS.start(tmp_path) / "checkpoints" / "final")
    assert spec["train_file"] == str(tmp_path / "arithmetic_train.json")
    assert (spec["seed"], spec["prompts"], spec["n"], spec["lr"]) == (3, 16, 8, 1e-3)


def test_a_knave_lies_about_whether_they_are_alike():
    # Ava calls Ben a knave. Were Ava a knave, Ben would be a knight: they are not alike whoever lies. So who says that
    # they are alike lies, and who says that they are not tells the truth.
    by_told = {row["src"]: row["tgt"] for row in tasks.puzzles()}
    assert by_told["Ava: Ben is a knave. Ben: we are alike.\n<think>"] == "(1) Ava is a knight\n(2) Ben is a knave"
    assert by_told["Ava: Ben is a knave. Ben: we are not alike.\n<think>"] == "(1) Ava is a knave\n(2) Ben is a knight"
    assert len(by_told) == 12 * 11 * 4


def test_held_out_puzzles_are_about_pairs_that_training_never_names(tmp_path: Path):
    tasks.KNIGHTS.write(tmp_path, 64)
    read = {part: json.loads(tasks.KNIGHTS.file(tmp_path, part).read_text("utf-8")) for part in ("train", "val")}
    pairs = {part: {frozenset(re.findall(r"(\w+) is", row["tgt"])) for row in rows} for part, rows in read.items()}
    assert (len(read["val"]), len(read["train"])) == (64, 528 - 64)
    assert {len(pair) for pair in pairs["val"]} == {2}
    assert not pairs["val"] & pairs["train"]


@pytest.mark.parametrize("task", [tasks.REASONED, tasks.KNIGHTS], ids=lambda task: task.name)
def test_a_teacher_is_right_now_and_then_so_that_there_is_something_to_find(task: Any, tmp_path: Path):
    from grpo.config import read_recipe
    from reward_funcs import build_reward

    task.write(tmp_path, 16)
    keys = {tasks.REASONED: ("prompt", "ground_truth"), tasks.KNIGHTS: ("src", "tgt")}[task]
    truth = {row[keys[0]]: row[keys[1]] for row in json.loads(task.file(tmp_path, "train").read_text("utf-8"))}
    demonstrations = json.loads(task.file(tmp_path, "demonstrations").read_text("utf-8"))[:300]
    names = read_recipe(task.recipe)["launcher.reward.names"]
    reward = build_reward(names=names)
    full = 0
    for row in demonstrations:
        full += reward("math_reasoning", row["response"], truth[row["prompt"]], {}).score == len(names)
    assert 0.1 < full / len(demonstrations) < 0.7


def test_a_changed_setting_gets_a_folder_of_its_own():
    assert runs.Shape().key() != runs.Shape(lr=2e-4).key()
    assert runs.Shape().key() == runs.Shape().key()


@pytest.mark.slow
def test_the_drawing_names_every_side(tmp_path: Path):
    plot = _of_bench("learning_plot")
    sides = {"grpo": [_run(1, 0.3, 0.6), _run(2, 0.3, 0.7)], "rloo": [_run(1, 0.3, 0.8)]}
    plot.draw(tmp_path / "l.svg", result.outcomes(sides, 50), {"ours": sides["grpo"], "TRL": sides["rloo"]}, 50)
    drawn = (tmp_path / "l.svg").read_text(encoding="utf-8")
    assert all(f">{name}<" in drawn for name in ("grpo", "rloo", "ours, 2 seeds", "TRL, 1 seeds"))


def _bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPO / "bench" / "learning.py"), "--folder", str(folder), *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_two_steps_of_one_algorithm_go_from_the_start_to_the_table_and_are_not_run_again(tmp_path: Path):
    # The start is a model without training, so nothing is learned in two steps, and the bench says so.
    folder = tmp_path / "runs of 学习"
    done = _bench(folder, "--only", "rloo", "--seeds", "7", "--steps", "2", "--sft_steps", "1")
    assert done.returncode == 1, done.stderr
    assert "| rloo | 1 | 0.000" in done.stdout
    assert "DOES NOT CLEARLY LEARN" in done.stdout
    kept = json.loads((folder / "runs" / "rloo-7.json").read_text(encoding="utf-8"))
    assert [point["step"] for point in kept["points"]] == [0, 2]
    assert [point["responses"] for point in kept["points"]] == [0, 2 * 16 * 8]

    kept["points"][1]["correct"] = "1" * 256  # what is written there is taken for what was run
    (folder / "runs" / "rloo-7.json").write_text(json.dumps(kept), encoding="utf-8")
    again = _bench(folder, "--only", "rloo", "--seeds", "7", "--steps", "2", "--sft_steps", "1")
    assert again.returncode == 0
    assert "1.000" in again.stdout
