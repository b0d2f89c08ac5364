"""Rewards inside verl's workers: the same results as the embedded engine, and every call written down."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.convert import convert, load_rows
from data_prep.record import Record
from grpo import overrides as command_line
from grpo.config import Draft
from grpo.engine import Run
from grpo.verl_backend.settings import reward_settings
from grpo.verl_backend.settings.reward_settings import INSIDE
from reward_funcs import RewardError, Sample, load_reward, score_batch

PARTS = """
import json, zlib
def judge(data_source, solution_str, ground_truth, extra_info):
    seen = zlib.crc32(repr((data_source, ground_truth, extra_info)).encode())
    return {"score": float(solution_str == ground_truth), "seen": seen, "step": 7, "verdict": "text is no curve"}
"""
FAILING = """
def compute_score(solution_str):
    return 1 / len(solution_str)
"""


def given(file: Path, name: str = "compute_score") -> str:
    """The arguments of a reward as the overrides hand them over."""
    return json.dumps({"file": str(file), "name": name})


def loaded(**reward_kwargs: Any) -> Callable[..., dict[str, float]]:
    """compute_score as verl 0.9.1's load_module and get_custom_reward_fn make it: by path, outside sys.modules."""
    spec = importlib.util.spec_from_file_location("custom_module_-17", INSIDE / "reward.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return partial(module.compute_score, **reward_kwargs)


def calls_in(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_real_answers_get_the_same_scores_as_in_the_embedded_engine(shared: Path):
    samples = []
    for line in (shared / "data" / "gsm8k_model_answers.jsonl").read_text(encoding="utf-8").splitlines()[:150]:
        row = json.loads(line)
        truth = row["ground_truth"].rpartition("A:")[2].strip()
        solutions = [value["solution"] for value in row.values() if isinstance(value, dict)]
        samples += [Sample("gsm8k", solution, truth) for solution in solutions]
    embedded = score_batch(load_reward(None), samples, max_errors=0).scores
    score = loaded()
    workers = [
        score(data_source=s.data_source, solution_str=s.solution, ground_truth=s.ground_truth)["score"] for s in samples
    ]
    assert len(samples) == 600
    assert 100 < sum(workers) < 500  # right and wrong ones
    assert workers == embedded


def test_a_file_in_a_chinese_folder_sees_what_it_sees_in_the_embedded_engine(tmp_path: Path):
    file = tmp_path / "奖励 函数" / "my reward.py"
    file.parent.mkdir()
    file.write_text(PARTS, encoding="utf-8")
    extra = {"级别": 3, "tags": ["a", None], "index": "its own", "weight": 0.25}
    record = Record([{"role": "user", "content": "1+1?"}], "qa", "2", extra)
    convert([record], tmp_path / "train.parquet")
    (row,) = load_rows(tmp_path / "train.parquet")
    embedded = load_reward(f"{file}:judge")(row["data_source"], "2", row["ground_truth"], row["extra_info"])

    import pyarrow.parquet as pq

    (stored,) = pq.read_table(tmp_path / "train.parquet").to_pylist()  # what verl's data set gives
    beside = {"num_turns": 2, "turn_scores": [], "global_steps": 0, "rollout_reward_scores": {}}  # what `naive` adds
    score = loaded(reward=given(file, "judge"), calls_folder=str(tmp_path / "calls"))
    got = score(
        data_source=np.array([stored["data_source"]])[0],
        solution_str="2",
        ground_truth=stored["reward_model"]["ground_truth"],
        extra_info=stored["extra_info"] | beside,
    )
    assert (embedded.score, embedded.parts["step"]) == (1.0, 7.0)
    assert got == {"score": 1.0, "seen": embedded.parts["seen"]}  # `step` is a column of verl's own dump
    (call,) = calls_in(tmp_path / "calls")
    assert call == {
        "key": None, "step": None, "split": "train", "index": 0, "data_source": "qa",
        "score": 1.0, "parts": embedded.parts, "length": None, "truncated": None,
    }  # fmt: skip


def test_a_failed_call_is_written_down_and_its_response_left_out(tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text(FAILING, encoding="utf-8")
    score = loaded(reward=given(file), calls_folder=str(tmp_path / "calls"))
    info = {"index": 5, "split": "val", "columns": "{}", "_response": {"key": "u_1", "step": 3, "length": 1}}
    for _ in range(2):
        with pytest.raises(
            RewardError, match=r"record 5 gets no reward .*: ZeroDivisionError: .* \(reward.py, line 3\)"
        ):
            score(data_source="qa", solution_str="", ground_truth="甲", extra_info=dict(info))
    assert score(data_source="qa", solution_str="four", ground_truth="", extra_info=dict(info)) == {"score": 0.25}
    first, second, good = calls_in(tmp_path / "calls")
    assert first["traceback"].splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "in compute_score" in first["traceback"]
    assert {k: first[k] for k in ("key", "step", "split", "index", "score", "response", "ground_truth")} == {
        "key": "u_1", "step": 3, "split": "val", "index": 5, "score": None, "response": "", "ground_truth": "甲",
    }  # fmt: skip
    assert (second["error"], second["traceback"]) == (first["error"], None)
    assert (good["score"], good["length"], "error" in good) == (0.25, 1, False)


def test_for_the_older_trainer_a_failed_call_scores_0_and_is_written_down(tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text(FAILING, encoding="utf-8")
    score = loaded(reward=given(file), calls_folder=str(tmp_path / "calls"), failed="zero")
    assert score(data_source="qa", solution_str="", ground_truth="") == {"score": 0.0}
    assert [call["score"] for call in calls_in(tmp_path / "calls")] == [None]


def test_a_file_that_does_not_import_in_the_workers_says_so_at_every_call(tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text("import no_such_package\n", encoding="utf-8")
    score = loaded(reward=given(file), calls_folder=str(tmp_path / "calls"))
    for _ in range(2):
        with pytest.raises(RewardError, match="does not import: ModuleNotFoundError"):
            score(data_source="qa", solution_str="", ground_truth="")
    assert [call["error"].count("no_such_package") for call in calls_in(tmp_path / "calls")] == [1, 1]


def test_a_timeout_by_signal_works_though_verl_calls_rewards_in_threads(tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text(
        "import signal\ndef compute_score():\n    signal.signal(signal.SIGALRM, signal.SIG_DFL)\n    return 1\n",
        encoding="utf-8",
    )
    score = loaded(reward=given(file))
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(score, "qa", "2", "2").result() == {"score": 1.0}


@pytest.mark.slow
def test_a_reward_that_hangs_costs_its_deadline_and_its_response(tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(solution_str):\n    while solution_str == 'hang': pass\n    return 1\n")
    score = loaded(reward=json.dumps({"file": str(file), "timeout": 0.5}))
    with pytest.raises(RewardError, match=r"took longer than|0\.5 s|deadline"):
        score("qa", "hang", "2")
    assert score("qa", "go", "2") == {"score": 1.0}


@pytest.mark.slow
def test_calls_from_many_threads_load_the_file_once_and_write_whole_lines(tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text(
        "import time, pathlib\n"
        f"open({str(tmp_path / 'imports')!r}, 'a').write('once ')\n"
        "time.sleep(0.1)\n"
        "def compute_score(solution_str, ground_truth):\n"
        "    return {'score': len(solution_str), 'long' * 100: 1}\n",
        encoding="utf-8",
    )
    score = loaded(reward=given(file), calls_folder=str(tmp_path / "calls"))
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda n: score("qa", "答" * n, "")["score"], range(400)))
    assert found == list(range(400))
    assert sorted(call["score"] for call in calls_in(tmp_path / "calls")) == found
    assert (tmp_path / "imports").read_text() == "once once "  # here, and in the process that calls it


def test_a_folder_that_cannot_be_written_stops_no_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "calls").write_text("a file")
    score = loaded(calls_folder=str(tmp_path / "calls"))
    assert score("qa", "2", "2") == {"score": 1.0}
    assert "could not be written down" in capsys.readouterr().err


def run_of(*words: str) -> Run:
    draft = Draft()
    command_line.apply(draft, ["actor_rollout_ref.model.path=m", *words])
    settings = draft.settings()
    out = Path("/输出")
    return Run(settings.config(), settings.origins, out, None, out / "v", passthrough=settings.passthrough)


def test_the_overrides_name_our_wrapper_and_the_users_file():
    words = ["reward.custom_reward_function.path=奖励/a.py", "reward.custom_reward_function.name=judge"]
    function = "reward.custom_reward_function"
    assert dict(reward_settings.settings(run_of(*words))) == {
        f"{function}.path": str(INSIDE / "reward.py"),
        f"{function}.name": "compute_score",
        f"{function}.reward_kwargs.reward": json.dumps(
            {
                "names": [],
                "weights": [],
                "plugins": [],
                "file": str(Path("奖励/a.py").absolute()),
                "name": "judge",
                "max_response_length": 1024,
                "unsafe_code_exec": False,
                "timeout": 60.0,
            },
            ensure_ascii=False,
        ),
        f"{function}.reward_kwargs.calls_folder": "/输出/reward_parts",
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.module.path": str(INSIDE / "reward_manager.py"),
    }


def test_the_users_own_manager_and_the_older_trainer_are_heeded():
    decided = dict(reward_settings.settings(run_of("trainer.use_v1=False", "reward.reward_manager.source=importlib")))
    assert decided["reward.custom_reward_function.reward_kwargs.failed"] == "zero"
    assert not [key for key in decided if key.startswith("reward.reward_manager")]


def test_what_would_not_get_past_our_wrapper_is_refused():
    run = run_of("+reward.custom_reward_function.reward_kwargs.x=1", "reward.reward_model.enable=True")
    first, second = reward_settings.refusals(run)
    assert first.startswith("reward.custom_reward_function.reward_kwargs.x (override): reward functions are called")
    assert second.startswith("reward.reward_model.enable (override): a reward function decides the score")
    assert reward_settings.refusals(run_of("reward.reward_model.enable=False")) == []


WORKER = """
import asyncio, json, sys
import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from tensordict import TensorDict
import numpy as np
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager

manager, inside, file, calls = sys.argv[1:]
words = {"<eos>": 0, "2": 1, "3": 2, "?": 3}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "?")), eos_token="<eos>")
custom = {"path": f"{inside}/reward.py", "name": "compute_score"}
custom["reward_kwargs"] = {"reward": json.dumps({"file": file, "name": "judge"}), "calls_folder": calls}
module = {"path": f"{inside}/reward_manager.py", "name": None}
overlong = {"overlong_buffer_cfg": {"enable": True, "len": 2, "penalty_factor": 1.0, "log": False}, "max_resp_len": 3}
config = {
    "data": {"max_response_length": 3}, "trainer": {"experiment_name": "e"},
    "reward": {"custom_reward_function": custom, "num_workers": 1, "reward_kwargs": overlong,
               "reward_manager": {"source": "importlib", "name": manager, "module": module}},
}

async def main():
    found = []
    judge = load_reward_manager(OmegaConf.create(config), tokenizer)
    for session, (ids, split) in enumerate([([1, 0], "train"), ([2, 2, 2], "train"), ([1], "val")]):
        tensors = {"prompts": torch.tensor([[3, 3]]), "responses": torch.tensor([ids]),
                   "attention_mask": torch.ones(1, 2 + len(ids), dtype=torch.int64)}
        fields = {"uid": "u-1", "session_id": session, "global_steps": 4, "data_source": "qa",
                  "reward_model": {"ground_truth": "2"}, "raw_prompt": [{"role": "user", "content": "1+1?"}],
                  "extra_info": {"index": 9, "split": split, "columns": '{"a": 1}'}}
        rows = {k: np.array([v] if k != "raw_prompt" else [v, None], dtype=object)[:1] for k, v in fields.items()}
        rows |= {"__num_turns__": np.array([2]), "tool_extra_fields": np.array([{"global_steps": 3}], dtype=object)}
        data = DataProto(batch=TensorDict(tensors, batch_size=1), non_tensor_batch=rows)
        found.append(await judge.run_single(data))
    return found

print("RESULT " + json.dumps(asyncio.run(main()), default=float))
"""


@pytest.mark.verl
@pytest.mark.parametrize(
    ("manager", "rewards"), [("naive", [1.0, 0.0, 1.0]), ("dapo", [0.5, -1.0, 1.0]), ("gdpo", [1.0, 0.0, 1.0])]
)
def test_verls_own_loader_and_managers_call_it(
    tmp_path: Path, manager: str, rewards: list[float], missing: Callable[[str], Any]
):
    """Responses of 2, 3 and 1 tokens. dapo, with a limit of 3 and a buffer of 2, takes off half of what is over 1."""
    from grpo.verl_backend.installation.environment import find_environment

    verl = find_environment("cpu")
    if verl is None:
        missing("verl's CPU environment; ./train.sh setup --engine verl --device cpu makes it")
    file, calls = tmp_path / "奖励.py", tmp_path / "calls"
    file.write_text(PARTS, encoding="utf-8")
    done = subprocess.run(
        [verl.python, "-c", WORKER, manager, INSIDE, file, calls], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(line.removeprefix("RESULT "))
    embedded = load_reward(str(file), "judge")("qa", "2", "2", {"index": 9, "split": "train", "a": 1})
    assert [one["reward_score"] for one in found] == rewards
    assert found[0]["reward_extra_info"] == {"score": 1.0, "seen": embedded.parts["seen"]}
    shown = [[call[k] for k in ("key", "step", "split", "index", "length", "truncated")] for call in calls_in(calls)]
    assert shown == [
        ["u-1_0", 4, "train", 9, 2, False],
        ["u-1_1", 4, "train", 9, 3, True],  # three tokens are the limit, and no <eos>
        ["u-1_2", 4, "val", 9, 1, False],
    ]
