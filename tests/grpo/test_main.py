"""`python -m grpo` from the outside: exit codes, what stands on which stream, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo import flags
from grpo.__main__ import main
from grpo.flags import REPO
from grpo.hydra_text import hydra_value
from grpo.resolve import resolve
from grpo.run_dir import open_run
from grpo.values import defaults

ONE = [{"prompt": "请解答：15 + 27 = ?", "ground_truth": "42", "data_source": "math_reasoning"}]  # S2-02
REWARDS = {
    "none.py": "return None",
    "nan.py": "return float('nan')",
    "text.py": "return 'good'",
    "raises.py": "raise ValueError('no answer')",
    "stops.py": "raise KeyboardInterrupt",
    "half.py": "return 0.5",
}


@pytest.fixture
def files(in_folder: Path) -> Path:
    """Data files, good and bad, and rewards."""
    Path("one.json").write_text(json.dumps(ONE, ensure_ascii=False), encoding="utf-8")
    Path("bad.json").write_text('[{"prompt": "a"},\n {"prompt": "b",]')
    Path("empty.json").write_text("")
    Path("lacks.json").write_text('[{"prompt": "a", "data_source": "qa"}]')
    Path("source.json").write_text('[{"prompt": "a", "ground_truth": "1", "data_source": "math_reasonin"}]')
    for name, body in REWARDS.items():
        Path(name).write_text(
            f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}"
        )
    Path("nothing.py").write_text("x = 1\n")
    return in_folder


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "nope.json"], "nope.json: no such file"),
        (["--data", "bad.json"], "bad.json: not JSON at line 2 column 17"),
        (["--data", "empty.json"], "empty.json: is empty"),
        (["--data", "lacks.json"], 'no "ground_truth"'),
        (["--data", "source.json"], "did you mean math_reasoning?"),
        (["--data", "one.json", "--reward_func", "none.py"], "returned None"),
        (["--data", "one.json", "--reward_func", "nan.py"], "compute_score fails on 17 of 17 responses: returned nan"),
        (["--data", "one.json", "--reward_func", "text.py"], "compute_score fails on 17 of 17 responses: returned"),
        (["--data", "one.json", "--reward_func", "raises.py"], "no answer"),
        (["--data", "one.json", "--reward_func", "nothing.py"], "no function 'compute_score'"),
        (["--data", "one.json", "--reward_func", "no.py"], "no such file"),
        (["--data", "one.json", "--reward_func", "."], "is a folder; name a file that holds compute_score"),
        (["--data", "one.json", "--train_batch_size", "8"], "the largest that works is 1"),
        (["--data", "one.json", "--rollout_n", "1"], "needs 2 or more"),
        (["--data", "one.json", "--model", "./nope"], "no such folder"),
        (["--data", "one.json", "trainer.balance_batch2=1"], "did you mean trainer.balance_batch?"),
        (["--data", "one.json", "++trainer.esi_redundant_time=1"], "only the verl engine knows this key"),
        (["--recipe", "dmo"], "did you mean demo?"),
        (["--rolout_n", "8"], "did you mean --rollout_n?"),
        (["dta", "one.json"], "did you mean ./train.sh data?"),
        (["data", "nope.json", "out.parquet"], "nope.json: no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(
    files: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    before = sorted(files.iterdir())
    code, out, err = answer(capsys, *words)
    assert code == 2
    assert said in err
    assert out == ""
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert len(err.splitlines()) == (2 if words[0] == "dta" else 1)  # the second word of `dta one.json` is stray too
    assert sorted(files.iterdir()) == before


@pytest.mark.slow
def test_a_dry_run_on_one_record_says_what_would_happen_and_writes_nothing(
    files: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(files.iterdir())
    code, out, err = answer(capsys, "--data", "one.json", "trainer.balance_batch=false", "--dry_run")
    assert (code, err) == (0, "")
    assert "no model named: taking Qwen/Qwen2.5-0.5B-Instruct" in out
    assert "1 prompt to train on: train_batch_size is 1 instead of 256" in out
    assert "No effect on the embedded engine\n  trainer.balance_batch=false  override" in out
    assert "each step    1 prompt x 5 responses = 5 responses" in out
    assert sorted(files.iterdir()) == before


@pytest.mark.slow
def test_a_dry_run_for_machines_is_json_and_nothing_else(files: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = answer(capsys, "--data=one.json", "--dry_run=json", "--lr", "5e-7", "--model", "scratch")
    read = json.loads(out)
    assert (code, read["engine"]) == (0, "embedded")
    assert set(read["values"]) == set(defaults())
    assert read["values"]["actor_rollout_ref.actor.optim.lr"] == {"value": 5e-7, "origin": "flag --lr"}
    assert read["values"]["data.train_batch_size"] == {"value": 1, "origin": "launcher"}
    assert isinstance(read["command"], list)


VERL_WORDS = [
    *("--engine", "verl", "--data", "one.json", "--model", "Qwen/Qwen2.5-7B", "--n_gpus", "8", "--train_batch_size=1"),
    *("--rollout_n", "8", "actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=32"),
    *("actor_rollout_ref.rollout.tensor_model_parallel_size=4", "trainer.balance_batch=false"),
    "+data.apply_chat_template_kwargs.enable_thinking=False",
]


@pytest.mark.slow
def test_the_verl_engine_is_planned_to_its_exact_command(files: Path, capsys: pytest.CaptureFixture[str]):
    """S2-08, S2-09: raw overrides reach verl unchanged, and no GPU is needed to see it."""
    code, out, err = answer(capsys, *VERL_WORDS, "--dry_run")
    assert (code, err) == (0, "")
    assert "python3 -m verl.trainer.main_ppo \\\n" in out.partition("Would run\n")[2]
    code, out, _ = answer(capsys, *VERL_WORDS, "--dry_run=json")
    command = json.loads(out)["command"]
    assert command[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    assert set(VERL_WORDS[-5:]) <= set(command)
    assert "actor_rollout_ref.rollout.n=8" in command


@pytest.mark.slow
def test_a_dry_run_for_verl_leaves_a_script_that_runs_by_itself(files: Path, capsys: pytest.CaptureFixture[str]):
    words = ("--engine", "verl", "--model", "Qwen/Qwen2.5-7B", "--n_gpus", "8", "--nnodes", "9", "--rollout_n", "8")
    code, out, err = answer(capsys, *words, "--train_batch_size", "9", "--dry_run")
    assert (code, err) == (0, "")
    assert out.endswith("wrote outputs/launch.sh outputs/launch_node.sh outputs/launch.slurm\n")
    script = (files / "outputs" / "launch.sh").read_text()
    assert subprocess.run(["bash", "-n", files / "outputs" / "launch.sh"]).returncode == 0
    assert f"data.train_files={hydra_value(f'{files}/outputs/data/train.parquet')}" in script.replace("'", "")
    assert (files / "outputs" / "data" / "train.parquet").is_file()


@pytest.mark.slow
def test_a_dry_run_writes_nothing_into_the_folder_of_a_run(files: Path, capsys: pytest.CaptureFixture[str]):
    (files / "outputs").mkdir()
    (files / "outputs" / "run.json").write_text("{}")
    code, out, _ = answer(capsys, *VERL_WORDS, "--dry_run")
    assert code == 0
    assert "wrote" not in out
    assert [path.name for path in (files / "outputs").iterdir()] == ["run.json"]


@pytest.mark.slow
def test_verl_without_a_gpu_is_refused_with_what_trains_here(files: Path, capsys: pytest.CaptureFixture[str]):
    code, _, err = answer(capsys, *VERL_WORDS)
    assert code == 2
    assert "--engine embedded trains without one, --device cpu runs verl for debugging" in err


@pytest.mark.slow
def test_what_an_engine_cannot_do_at_all_is_said_before_its_data_is_looked_at(
    files: Path, capsys: pytest.CaptureFixture[str]
):
    words = ("--recipe", "summarize_t5", "--engine", "verl", "--max_prompt_length", "8", "--dry_run")
    code, _, err = answer(capsys, *words)
    assert code == 2
    assert "use --engine embedded" in err
    assert "longer" not in err  # than 8 tokens, which is true of each prompt and would be the next to mend


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--reward accuracy,format --reward_weights 1", "--reward_weights has 1 (1) for 2 rewards"),
        ("--reward nope", "no reward is called 'nope'"),
        ("--reward cosine:foo=1", "cosine has no parameter 'foo'"),
    ],
)
def test_a_dry_run_refuses_the_rewards_that_training_refuses(
    words: str, said: str, files: Path, capsys: pytest.CaptureFixture[str]
):
    code, _, err = answer(capsys, "--data", "one.json", "--model", "scratch", *words.split(), "--dry_run")
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err


@pytest.mark.slow
def test_a_dry_run_names_the_engine_and_what_it_makes_nothing_of(files: Path, capsys: pytest.CaptureFixture[str]):
    words = ("--data", "one.json", "--model", "scratch", "--hang_minutes", "3", "--ray_address", "10.0.0.1:6379")
    _, out, _ = answer(capsys, *words, "--dry_run")
    assert "engine embedded: it makes the model scratch" in out
    unused = out.partition("No effect on the embedded engine\n")[2]
    assert {line.split()[0] for line in unused.splitlines()[:2]} == {"launcher.hang_minutes", "launcher.ray_address"}


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_not_downloaded_by_a_dry_run(files: Path, capsys: pytest.CaptureFixture[str]):
    """S3-21."""
    words = ("--data", "AI-MO/NuminaMath-TIR#5000", "--model", "scratch", "--dry_run", "--max_steps", "9")
    code, out, err = answer(capsys, *words)
    assert (code, err) == (0, "")
    assert "in all       9 steps at most" in out


@pytest.mark.slow
def test_the_environment_sets_values(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """S2-10."""
    monkeypatch.setenv("ROLLOUT_N", "8")
    monkeypatch.setenv("LEARNING_RATE", "")
    _, out, _ = answer(capsys, "--dry_run")
    assert "from the environment: ROLLOUT_N=8" in out
    assert "  env ROLLOUT_N\n" in out
    assert "LEARNING_RATE" not in out


def test_recipe_list_shows_each_with_its_first_line(capsys: pytest.CaptureFixture[str]):
    code, out, _ = answer(capsys, "--recipe", "list")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} >= {"demo", "drgrpo", "gsm8k", "gsm8k_smoke"}
    assert "DrGRPO: GRPO without its two biases" in out


def test_help_filters(capsys: pytest.CaptureFixture[str]):
    code, out, _ = answer(capsys, "--help", "rollout_n")
    assert code == 0
    assert "ROLLOUT_N" in out
    assert "--seed" not in out


def test_the_sub_command_data_converts(files: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = answer(capsys, "data", "one.json", "out.parquet")
    assert code == 0
    assert Path("out.parquet").is_file()
    assert "1 record" in out


@pytest.mark.slow
def test_a_folder_that_a_live_run_holds_is_refused(files: Path, capsys: pytest.CaptureFixture[str]):
    with opened("outputs", "--data", "one.json"):
        code, _, err = answer(capsys, "--data", "one.json", "--model", "scratch")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "is in use by a run with process id" in err


@pytest.mark.slow
def test_an_unfinished_run_of_another_configuration_is_refused(files: Path, capsys: pytest.CaptureFixture[str]):
    with opened("outputs", "--data", "one.json", "--lr", "1e-3"):
        Path("outputs/metrics.jsonl").write_text("{}\n")
    before = sorted(Path("outputs").rglob("*"))
    code, _, err = answer(capsys, "--data", "one.json", "--model", "scratch")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "actor_rollout_ref.actor.optim.lr was 0.001 and is 1e-06" in err
    assert sorted(Path("outputs").rglob("*")) == before


def opened(folder: str, *words: str):
    settings = resolve(flags.parse([*words, "--model", "scratch"]), {}).settings()
    return open_run(folder, config=settings.config(), origins=settings.origins, fingerprint={}, command="x")


@pytest.mark.slow
def test_ctrl_c_is_exit_code_130(files: Path):
    """The reward presses it, while it is called: whoever waits for that from outside may be too late."""
    (files / "slow.py").write_text(
        "import os, pathlib, signal, time\n"
        "def compute_score(solution_str):\n"
        "    os.kill(int(pathlib.Path('launcher').read_text()), signal.SIGINT)\n"
        "    time.sleep(60)\n"
        "    return 1\n"
    )
    words = ["--data", "one.json", "--model", "scratch", "--reward_func", "slow.py", "--reward_timeout", "60"]
    begin = "import os, pathlib, runpy; pathlib.Path('launcher').write_text(str(os.getpid())); "
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}runpy.run_module('grpo', run_name='__main__', alter_sys=True)", *words],
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (130, "stopped\n")


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error(files: Path):
    done = shell('"$PYTHON" -m grpo --help | true; exit ${PIPESTATUS[0]}')
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_help_in_a_chinese_locale_is_chinese(files: Path):
    """S2-44."""
    assert "最常用" in shell('"$PYTHON" -m grpo --help', LC_ALL="zh_CN.UTF-8", PYTHONUTF8="1").stdout


@pytest.mark.parametrize("words", ["--help", "--dry_run", "--data one.json --dry_run trainer.balance_batch=false"])
def test_an_answer_without_training_costs_less_than_a_second(files: Path, words: str):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shell(f'"$PYTHON" -m grpo {words}')
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # CPU seconds, so that a busy machine does not decide.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def shell(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPO),
        "PYTHON": sys.executable,
        "LC_ALL": "C.UTF-8",
        **environ,
    }
    return subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, encoding="utf-8")


@pytest.mark.slow
def test_training_on_one_record_ends_with_the_table_and_the_next_command(
    files: Path, capsys: pytest.CaptureFixture[str]
):
    """S2-02, S2-11: the requirement's own file, a new small model, two steps."""
    words = [
        "--data",
        "one.json",
        "--model",
        "scratch",
        "--max_steps",
        "2",
        "--max_response_length",
        "8",
        "--rollout_n=2",
    ]
    code, out, err = answer(capsys, *words, "launcher.scratch.num_layers=1", "launcher.scratch.hidden_size=32")
    assert (code, err) == (0, "")
    assert "accuracy (held-out prompts)" in out
    assert "next      ./train.sh --config outputs/config.yaml --rollout_n 8 --output_dir outputs_n8" in out
    summary = json.loads(Path("outputs/summary.json").read_text())
    assert (summary["steps"], summary["engine"]) == (2, "embedded")
    assert Path("outputs/checkpoints/final/config.json").is_file()
    code, out, _ = answer(capsys, *words, "launcher.scratch.num_layers=1", "launcher.scratch.hidden_size=32")
    assert (code, Path("outputs.1/summary.json").is_file()) == (0, True)
    assert "moved the finished run" in out


def test_a_device_that_the_machine_cannot_have_is_refused_before_anything_is_touched(in_folder, capsys):
    assert main(["--model", "scratch", "--device", "mps"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: trainer.device=mps (flag --device): this machine has no such device")
    assert error.count("\n") == 1
    assert not Path("outputs").exists()


def test_a_run_without_any_reward_does_not_end_like_a_success():
    from grpo.final import no_signal

    assert no_signal({"reward_mean": {"start": 0.0, "final": 0.1}}) == []
    assert "no evaluated response earned anything" in no_signal({"reward_mean": {"start": 0.0, "final": 0.0}})[1]
    assert "every reward call of the evaluations failed" in no_signal({"reward_mean": {"start": None}})[1]


@pytest.mark.slow
def test_a_run_whose_reward_calls_all_failed_leaves_a_summary_that_is_json(files: Path, capsys):
    words = ["--data", "one.json", "--val_data", "one.json", "--model", "scratch", "--reward_func", "raises.py"]
    words += ["--max_reward_errors", "1", "--max_steps", "1", "--train_batch_size", "1", "--max_response_length", "4"]
    code, out, err = answer(capsys, *words, "--device", "cpu", "--force")
    assert (code, err) == (0, "")
    assert "every reward call of the evaluations failed, and nothing is learned from those: mend the reward" in out
    summary = json.loads(Path("outputs/summary.json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert summary["accuracy"] == summary["reward_mean"] == {"start": None, "final": None}


@pytest.mark.slow
def test_ctrl_c_in_a_warm_up_promises_no_checkpoint(in_folder: Path, capsys, monkeypatch):
    from grpo.embedded import beginning

    warm_up = beginning.warm_up

    def pressed(*given, **more):
        signal.raise_signal(signal.SIGINT)
        return warm_up(*given, **more)

    monkeypatch.setattr(beginning, "warm_up", pressed)
    assert main(["--sft_warmup", "5", "--device", "cpu"]) == 130
    said = capsys.readouterr()
    assert "stopping: before the first step there is nothing to save (once more to stop at once)" in said.err
    assert "saving a checkpoint" not in said.out + said.err
    assert "stopped before the first step, so there is nothing to save; a warm-up is kept once it is done" in said.err


def test_a_misspelled_key_in_a_file_is_refused_with_the_nearest_one(in_folder, capsys):
    Path("my.yaml").write_text("actor_rollout_ref: {rollout: {nn: 8}}\n", encoding="utf-8")
    assert main(["--model", "scratch", "--config", "my.yaml", "--dry_run"]) == 2
    assert "actor_rollout_ref.rollout.n?" in capsys.readouterr().err
