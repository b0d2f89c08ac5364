"""`./train.sh plan` and the memory table of --dry_run, as they are typed. S2-32, S1-24."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.__main__ import main
from grpo.flags import REPO

SUMS = [{"prompt": f"{n} + {n} = ?", "ground_truth": str(2 * n), "data_source": "math"} for n in range(640)]
SEVEN_B = ("--model", "Qwen/Qwen2.5-7B", "--engine", "verl", "--data", "d.json", "--gpu", "H100")


@pytest.fixture
def plan(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    """plan(*words) -> (exit code, standard output, errors), beside a d.json of 640 records."""
    Path("d.json").write_text(json.dumps(SUMS), encoding="utf-8")

    def plan(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["plan", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return plan


@pytest.mark.slow
def test_the_page_of_a_large_model_on_gpus_that_are_not_here(plan):
    code, page, _ = plan(*SEVEN_B, "--n_gpus", "8")
    assert code == 0
    assert "Qwen/Qwen2.5-7B: 7.62B weights (qwen2)" in page
    assert "of 76.0 GB that can be planned with (95%): fits" in page
    assert (
        "what each saves by itself, in the order to try:\n  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=" in page
    )
    assert "largest that fits: actor_rollout_ref.actor.ppo_max_token_len_per_gpu=" in page
    # 576 of 640 records to train on, 256 a step, 15 passes
    assert "(ASSUMED, not measured: 40% of 989 TFLOP/s" in page
    assert "all 30 steps take about" in page
    assert sorted(path.name for path in Path().iterdir()) == ["d.json"]  # nothing is written


@pytest.mark.slow
def test_json_holds_bytes_seconds_and_what_to_change(plan):
    code, page, _ = plan(*SEVEN_B, "--n_gpus", "2", "--json")
    read = json.loads(page)
    assert code == 0
    assert read["model"] == {"name": "Qwen/Qwen2.5-7B", "family": "qwen2", "weights": 7_615_616_512}
    assert read["phases"]["update"]["parts"]["AdamW"] == 4 * 7_615_616_512
    assert read["missing"] > 0
    assert read["to_fit"] == {"words": ["--n_gpus 4"], "missing": 0}
    assert read["memory"]["room"] == 76 * 10**9
    assert read["seconds"]["step"] == pytest.approx(sum(read["seconds"]["phases"].values()))
    assert read["seconds"]["steps"] == 30
    assert read["knobs"][0]["words"] == "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192"


@pytest.mark.slow
def test_the_embedded_engine_on_this_machine_without_its_probe(plan):
    words = ("--model", "scratch", "--engine", "embedded", "--device", "cpu", "--data", "d.json", "--no_probe")
    code, page, _ = plan(*words, "--memory", "8GB")
    assert code == 0
    assert "GB on the process" in page
    assert "8.0 GB (given with --memory)" in page
    assert "time: not probed (--no_probe)" in page
    assert "engine embedded (flag --engine)\nfor GPUs that are not in this machine: --engine verl --n_gpus 8" in page
    _, page, _ = plan(*words[:-1], "--dry_run")  # which looks and runs nothing
    assert "time: not probed (--dry_run)" in page


def test_for_a_card_that_is_not_here_this_machine_is_not_probed(plan):
    words = ("--model", "Qwen/Qwen2.5-7B", "--engine", "embedded", "--data", "d.json", "--gpu", "H100")
    code, page, errors = plan(*words)
    assert (code, errors) == (0, "")
    assert "GB on the GPU" in page
    assert page.endswith(
        "time: not probed (--gpu H100: the time comes from a probe of this machine, where that card is not)\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "no/such"), "--model no/such: its size is not known without its config.json; give a folder"),
        (("--memory", "lots"), "--memory lots: not an amount of memory; write --memory 80GB"),
        (("--gpu", "T4"), "--gpu T4: no peak numbers are known of it"),
        (("--mean_response", "few"), "./train.sh plan: argument --mean_response: invalid float value"),
        (("--mean_response", "0"), "--mean_response 0: a number of tokens over 0"),
        (
            ("--mean_response", "99999"),
            "--mean_response 99999 is more than data.max_response_length=1024 (default) allows; give at most 1024, or",
        ),
        (("--mean_prompt", "512.5"), "--mean_prompt 512.5 is more than data.max_prompt_length=512 (default) allows"),
        (("--rolout_n", "8"), "--rolout_n is no flag; did you mean --rollout_n?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(plan, words: tuple[str, ...], said: str):
    code, page, errors = plan("--data", "d.json", "--engine", "verl", *words)
    assert (code, page) == (2, "")
    assert errors.startswith(f"error: {said}")
    assert len(errors.splitlines()) == 1


@pytest.mark.slow
def test_a_dry_run_shows_the_table(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("d.json").write_text(json.dumps(SUMS), encoding="utf-8")
    assert main(["--data", "d.json", "--model", "Qwen/Qwen2.5-7B", "--engine", "embedded", "--dry_run"]) == 0
    section = capsys.readouterr().out.partition("\nMemory\n")[2].partition("\n\n")[0]
    assert section.startswith("  Qwen/Qwen2.5-7B: 7.62B weights (qwen2)\n  GB on the ")
    assert main(["--data", "d.json", "--model", "no/such", "--engine", "embedded", "--dry_run"]) == 0
    assert "\nMemory\n  not planned: --model no/such: its size is not known" in capsys.readouterr().out


@pytest.mark.slow
def test_a_plan_with_its_probe_tells_the_time_of_a_small_run(tmp_path: Path):
    """S1-24. What is told is checked against a run by bench/memory.py."""
    command = [sys.executable, "-m", "grpo", "plan", "--max_steps", "50", "--device", "cpu", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(REPO)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout)["seconds"]
    assert set(seconds["phases"]) == {"rollout", "log-prob", "update"}
    assert all(0.0 < value < 60.0 for value in seconds["phases"].values())
    assert (seconds["steps"], seconds["source"]) == (50, "a probe of this machine")
    assert list(tmp_path.iterdir()) == []
