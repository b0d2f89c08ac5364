"""A reward that would run programs is refused before training where no jail holds, on every way into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo.__main__ import main
from reward_funcs import Sample, build_reward
from reward_funcs.code_options import code_options, run_without_jail
from reward_funcs.code_ready import refuse_code_without_jail
from reward_funcs.sandbox import SandboxError, close_servers, probe
from reward_funcs.scoring import Scoring

TRUTH = '{"kind": "call", "entry": "f", "cases": [{"args": [1], "expected": 2}]}'
RECORD = {
    "prompt": "Write f.",
    "data_source": "code",
    "ground_truth": TRUTH,
    "solution": "def f(x):\n    return 2 * x\n",
}


@pytest.fixture
def no_jail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every probe has failed."""
    monkeypatch.setattr(probe, "_found", {"bubblewrap": "is not installed", "landlock": "not in this kernel"})
    monkeypatch.setattr("reward_funcs.code_options._without_jail", False)


@pytest.fixture
def data(tmp_path: Path) -> str:
    file = tmp_path / "d.json"
    file.write_text(json.dumps([{**RECORD, "prompt": f"Write f, {n}."} for n in range(4)]), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("names", ["", "accuracy", "accuracy,format", "cosine:max_len=9", "accuracy:data_source=code"])
def test_a_reward_that_meets_programs_is_refused_without_a_jail(names: str, no_jail: None):
    with pytest.raises(SandboxError, match=r"bubblewrap: is not installed; landlock: not in this kernel.*--unsafe"):
        refuse_code_without_jail(build_reward(names=names), ["math", "humaneval"])


def test_the_reward_code_by_name_is_refused_when_it_is_made(no_jail: None):
    with pytest.raises(SandboxError, match="no sandbox for model-written code works on this machine"):
        build_reward(names="format,code:timeout=2")


def test_what_runs_no_program_here_is_not_refused(no_jail: None, monkeypatch: pytest.MonkeyPatch):
    refuse_code_without_jail(build_reward(), ["math", "qa", "unknown"])
    refuse_code_without_jail(build_reward(names="format"), ["code"])
    refuse_code_without_jail(build_reward(names="accuracy:data_source=qa"), ["code"])
    refuse_code_without_jail(build_reward(function=lambda solution_str: 1.0), ["code"])
    build_reward(names="code:url=http://127.0.0.1:8080")
    monkeypatch.setenv("CODE_REWARD", "url=http://127.0.0.1:8080")
    refuse_code_without_jail(build_reward(), ["code"])


@pytest.mark.parametrize("names", ["", "code", "accuracy"])
def test_unsafe_code_exec_is_heeded_by_every_reward_and_ends_with_the_next_one(names: str, no_jail: None):
    refuse_code_without_jail(build_reward(names=names, unsafe_code_exec=True), ["code"])
    assert code_options().unsafe
    build_reward()
    assert not code_options().unsafe


@pytest.mark.parametrize("words", ["unsafe=true", "unsafe=yes,timeout=2"])
def test_nothing_but_the_flag_takes_the_jail_away(words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CODE_REWARD", words)
    with pytest.raises(Exception, match="code: no option 'unsafe'"):
        code_options()


@pytest.mark.parametrize("command", [[], ["check"], ["score"], ["serve-reward"]], ids=" ".join)
@pytest.mark.parametrize("reward", [[], ["--reward", "code"]], ids=["by source", "by name"])
def test_each_command_says_so_in_one_line_before_it_scores(
    command: list[str], reward: list[str], data: str, tmp_path: Path, no_jail: None, capsys: pytest.CaptureFixture[str]
):
    responses = tmp_path / "r.jsonl"
    responses.write_text('{"index": 0, "response": "def f(x): return 2 * x"}\n', encoding="utf-8")
    words = [*command, "--data", data, *reward]
    if command == ["serve-reward"]:
        words = [*command, "--port", "0", "--data_source", "code", *reward]
    elif command == ["score"]:
        words += ["--responses", str(responses)]
    elif not command:
        words += ["--engine", "embedded", "--model", "scratch", "--output_dir", str(tmp_path / "out")]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no sandbox for model-written code works on this machine (bubblewrap: is not")
    assert not (tmp_path / "out").exists()


@pytest.mark.verl
def test_the_verl_engine_is_refused_before_ray_starts(data: str, tmp_path: Path, no_jail: None, missing, capsys):
    from grpo.verl_backend.installation.environment import find_environment

    if find_environment("cpu") is None:
        missing("verl's CPU environment; ./train.sh setup --engine verl --device cpu makes it")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}', encoding="utf-8"
    )
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    words = ["--engine", "verl", "--device", "cpu", "--data", data, "--model", str(model)]
    words += ["actor_rollout_ref.model.custom_chat_template=plain"]
    main([*words, "--output_dir", str(tmp_path / "out")])
    assert "no sandbox for model-written code works on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_run_without_a_jail_only_when_the_user_said_so(monkeypatch: pytest.MonkeyPatch):
    # the option travels to worker processes: there, naming a jail that does not exist is not reached
    sample = Sample("code", "import os\ndef f(x):\n    return 2 * os.path.exists('/etc/passwd')\n", TRUTH)
    with Scoring(build_reward(unsafe_code_exec=True), workers=1, timeout=30) as scoring:
        assert [attempt.score for attempt in scoring.attempts([sample])] == [1.0]  # type: ignore[union-attr]
    with Scoring(build_reward(), workers=1, timeout=30) as scoring:
        assert [attempt.score for attempt in scoring.attempts([sample])] == [0.0]  # type: ignore[union-attr]
    run_without_jail(False)
    close_servers()
