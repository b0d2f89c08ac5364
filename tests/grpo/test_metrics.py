"""Metrics: their names, what the files hold whenever a run stops, and the page that explains them."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.metrics.history import Series, read_history
from grpo.metrics.log import MetricsLog, read_lines
from grpo.metrics.names import BY_NAME, TABLE, TIMING_NAMES, markdown_table, with_both_names


def lines_of(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("name", "verl", "healthy"),
    [
        ("reward_mean", "critic/rewards/mean", "keeps rising"),  # S2-37
        ("reward_std", None, "slowly falling"),  # S2-38: verl logs none in training
        ("kl_loss", "actor/kl_loss", "0.001 to 0.1"),  # S2-39
        ("policy_loss", "actor/pg_loss", "falls, with noise"),  # S2-40
        ("response_length", "response_length/mean", "stable"),  # S2-41
    ],
)
def test_the_five_metrics_have_verls_names_and_their_healthy_range(name: str, verl: str | None, healthy: str) -> None:
    metric = BY_NAME[name]
    assert (metric.verl, metric.healthy) == (verl, healthy)
    assert metric.meaning_zh
    assert metric.healthy_zh


def test_the_healthy_band_of_kl_is_a_thousandth_to_a_tenth() -> None:
    assert BY_NAME["kl_loss"].band == (0.001, 0.1)  # S2-39


def test_what_looks_wrong_but_is_normal_is_said() -> None:
    assert "near 0 all the time" in BY_NAME["policy_loss"].normal  # S3-02
    assert "exactly 0 with one update per step" in BY_NAME["clip_fraction"].normal  # S4-10


def test_each_name_brings_its_counterpart_whichever_side_it_came_from() -> None:
    both = {"kl_loss": 0.02, "reward/format": 1.0, "actor/kl_loss": 0.02}
    assert with_both_names({"kl_loss": 0.02, "reward/format": 1.0}) == both
    assert with_both_names({"actor/kl_loss": 0.02, "reward/format": 1.0}) == both
    assert list(with_both_names({"actor/lr": 1.0, "kl_loss": 0.0}))[:2] == ["kl_loss", "lr"]  # plain names first


def test_verls_names_are_those_that_verl_logs() -> None:
    found = importlib.util.find_spec("verl")
    if found is None or not found.submodule_search_locations:
        pytest.skip("verl is not installed: pip install --no-deps verl==0.9.1")
    source = Path(found.submodule_search_locations[0])
    said = "".join((source / f"trainer/ppo/{name}.py").read_text() for name in ("metric_utils", "ray_trainer"))
    whole = ("critic/rewards/mean", "response_length/mean", "response_length/clip_ratio", "perf/throughput")
    whole += ("actor/reward_kl_penalty", "actor/reward_kl_penalty_coeff")
    for name in (*whole, "actor/entropy", "training/global_step", "training/epoch"):
        assert f'"{name}"' in said
        assert name in {metric.verl for metric in TABLE}


def test_a_step_is_one_line_with_both_names(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.step(1, {"reward_mean": 0.5, "reward/errors": 0, "entropy": None})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "reward_mean": 0.5, "reward/errors": 0, "critic/rewards/mean": 0.5}\n'


def test_nan_and_infinity_are_null_and_counted_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.step(1, {"kl_loss": math.nan, "grad_norm": math.inf, "lr": 1e-6})
        assert log.nonfinite == 2
        log.completions(1, [{"uid": 0, "response": "x", "reward": None, "parts": {"a": -math.inf}}])
    [line] = lines_of(tmp_path)
    assert (line["kl_loss"], line["actor/kl_loss"], line["grad_norm"], line["lr"]) == (None, None, None, 1e-6)
    assert line["nonfinite"] == 2
    assert lines_of(tmp_path, "completions.jsonl")[0]["parts"] == {"a": None}


def test_a_torch_or_numpy_scalar_is_a_number_and_a_word_is_not(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with MetricsLog(tmp_path) as log:
        log.step(1, {"kl_loss": numpy.float32(0.5)})
        with pytest.raises(ValueError):
            log.step(2, {"kl_loss": "much"})
    assert [line["kl_loss"] for line in lines_of(tmp_path)] == [0.5]


def test_text_is_written_as_it_is_and_a_lone_surrogate_comes_back(tmp_path: Path) -> None:
    """S2-03"""
    response = "答案是 42 🙂\u2028\x00\ud800"
    with MetricsLog(tmp_path) as log:
        log.completions(1, [{"prompt": "请解答", "response": response}])
    raw = (tmp_path / "completions.jsonl").read_bytes()
    assert raw.count(b"\n") == 1
    assert "答案是 42 🙂" in raw.decode("utf-8")
    assert next(read_lines(tmp_path / "completions.jsonl"))["response"] == response


def test_a_resume_drops_later_lines_of_both_files_and_repairs_a_torn_one(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        for step in range(1, 6):
            log.step(step, {"reward_mean": step / 10})
            log.completions(step, [{"uid": uid} for uid in range(2)])
    for name in ("metrics.jsonl", "completions.jsonl"):
        with open(tmp_path / name, "ab") as file:
            file.write(b'{"step": 2, "torn": 0.')
    with MetricsLog(tmp_path, (), 3) as log:
        log.step(4, {"reward_mean": 9.0})
    assert [(line["step"], line["reward_mean"]) for line in lines_of(tmp_path)] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 9.0),
    ]
    assert [line["step"] for line in lines_of(tmp_path, "completions.jsonl")] == [1, 1, 2, 2, 3, 3]
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "torn": 0.')  # within what the resume keeps
    MetricsLog(tmp_path, (), 4).close()
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3, 4]


def test_a_fresh_start_empties_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    MetricsLog(tmp_path).step(0, {"val_accuracy": 0.1})
    with MetricsLog(tmp_path) as log:
        log.step(0, {"val_accuracy": 0.2})
    assert [line["val_accuracy"] for line in lines_of(tmp_path)] == [0.2]


def test_a_resumed_run_has_the_lines_of_an_undisturbed_one_except_timings(tmp_path: Path) -> None:
    def train(folder: Path, steps: range, resume_step: int | None) -> None:
        with MetricsLog(folder, (), resume_step) as log:
            for step in steps:
                log.completions(step, [{"response": f"r{step}", "reward": 1.0}])
                log.step(step, {"kl_loss": step / 7, "seconds_per_step": random.random(), "tokens_per_second": 1.0})

    train(tmp_path / "whole", range(1, 9), None)
    train(tmp_path / "cut", range(1, 7), None)  # killed after step 6, its last checkpoint at step 4
    train(tmp_path / "cut", range(5, 9), 4)
    without = [
        [{k: v for k, v in line.items() if k not in TIMING_NAMES} for line in lines_of(tmp_path / name)]
        for name in ("whole", "cut")
    ]
    assert without[0] == without[1]
    assert {"seconds_per_step", "timing_s/step", "tokens_per_second", "perf/throughput"} == TIMING_NAMES
    files = [(tmp_path / name / "completions.jsonl").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]


WRITER = """
import sys
from grpo.metrics.log import MetricsLog
log = MetricsLog(sys.argv[1])
for step in range(10**9):
    log.completions(step, [{"response": "x" * 5000}] * 4)
    log.step(step, {"reward_mean": 0.5})
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_whole_lines_after_the_next_open(tmp_path: Path, repo: Path) -> None:
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], env={**os.environ, "PYTHONPATH": str(repo)}
        )
        while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").stat().st_size < 500:
            time.sleep(0.002)
        time.sleep(random.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        last = max(line["step"] for line in read_lines(folder / "metrics.jsonl"))
        MetricsLog(folder, (), last).close()
        assert [line["step"] for line in lines_of(folder)] == list(range(last + 1))
        assert [line["step"] for line in lines_of(folder, "completions.jsonl")] == [
            s for s in range(last + 1) for _ in "four"
        ]


FULL = """
import resource, signal, sys
from grpo.metrics.log import MetricsLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
log = MetricsLog(sys.argv[1])
try:
    for step in range(100):
        log.completions(step, [{"response": "x" * 100}])
except OSError as problem:
    print(problem.filename)
"""


def test_when_no_more_can_be_written_the_file_is_named_and_ends_with_a_whole_line(tmp_path: Path, repo: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(repo)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "completions.jsonl")
    assert [line["step"] for line in lines_of(tmp_path, "completions.jsonl")] == list(range(7))  # 7 x 130 bytes < 1000


def test_a_history_takes_the_later_of_two_lines_of_a_step_and_remembers_bad_steps(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.step(0, {"val_accuracy": 0.1})
        log.step(1, {"kl_loss": math.nan, "val_accuracy": 0.2})
        log.step(1, {"val_accuracy": 0.3})
    history = read_history(tmp_path)
    assert history["val_accuracy"] == Series([0, 1], [0.1, 0.3], [])
    assert history["kl_loss"] == Series([], [], [1])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_documentation_holds_the_table_as_it_is(repo: Path, language: str) -> None:
    page = (repo / "docs" / ("metrics.md" if language == "en" else "metrics.zh.md")).read_text(encoding="utf-8")
    begin, end = "<!-- table: grpo/metrics/names.py -->\n", "<!-- end of table -->"
    assert page[page.index(begin) + len(begin) : page.index(end)] == markdown_table(language)


def test_every_flag_that_the_advice_names_exists(repo: Path) -> None:
    """S2-07, S2-34, S2-36: as commands"""
    groups = yaml.safe_load((repo / "configs" / "flags.yaml").read_text(encoding="utf-8"))
    flags = {
        name for group in groups for flag, rest in group["flags"].items() for name in (flag, *rest.get("alias", []))
    }
    pages = [repo / "docs" / "metrics.md", repo / "docs" / "metrics.zh.md", repo / "grpo" / "metrics" / "verdicts.py"]
    for page in pages:
        named = set(re.findall(r"--([a-z_]+)", page.read_text(encoding="utf-8"))) - {"logdir"}  # TensorBoard's own
        assert named
        assert named <= flags
