"""verl's files as ours: what verl 0.9.1 and our reward workers write in a run, read while it is being written."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from data_prep.convert import convert
from data_prep.record import Record
from grpo import algorithm
from grpo import overrides as command_line
from grpo.config import Draft
from grpo.engine import Run
from grpo.metrics.live import Progress
from grpo.metrics.log import MetricsLog, read_lines
from grpo.verl_backend.recording import step_values
from grpo.verl_backend.recording.earlier import last_recorded
from grpo.verl_backend.recording.records import Records
from reward_funcs import RewardError

A, B = "11111111-aaaa", "00000000-bbbb"  # uids of two prompts; verl's are random, so B's dump comes before A's
PROMPTS = {A: "1+1=", B: "2+2="}


class VerlRun:
    """The folder of a run that verl writes into, and our side of it."""

    def __init__(self, folder: Path, *words: str, resume_step: int | None = None) -> None:
        self.out = folder
        draft = Draft()
        few = ["data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "data.max_response_length=16"]
        command_line.apply(draft, ["actor_rollout_ref.model.path=m", *few, *words])
        settings = draft.settings()
        val = folder / "data" / "val.parquet"
        convert([Record([{"role": "user", "content": p}], "qa", "", {}) for p in PROMPTS.values()], val, split="val")
        run = Run(
            settings.config(),
            settings.origins,
            folder,
            None,
            val,
            algorithm="gspo",
            recipe="demo",
            passthrough=settings.passthrough,
        )
        self.screen = io.StringIO()
        self.progress = Progress(4, Console(file=self.screen, width=200))
        self.log = MetricsLog(folder, [], None if resume_step is None else last_recorded(folder, resume_step))
        self.records = Records(run, self.log, self.progress, resume_step=resume_step)

    def logs(self, step: int, data: Mapping[str, Any]) -> None:
        """As verl's FileLogger does (orjson: no spaces, null for NaN)."""
        self.append("verl_metrics.jsonl", json.dumps({"step": step, "data": data}, separators=(",", ":")) + "\n")

    def calls(self, *calls: Mapping[str, Any], worker: str = "node1-77") -> None:
        """Reward calls as inside/scoring.py writes them."""
        usual = {"split": "train", "data_source": "qa", "score": 0.0, "parts": {}, "length": 3, "truncated": False}
        for call in calls:
            line = {"key": None, "step": None, "index": None, **usual, **call}
            self.append(f"reward_parts/{worker}.jsonl", json.dumps(line) + "\n")

    def dumps(self, folder: str, step: int, *rows: tuple[str, float], **beside: Any) -> None:
        """(uid, score) as verl's _write_generations does, sorted by uid."""
        lines = [
            {
                "input": PROMPTS.get(uid.split("_")[0], "!"),
                "output": f"r {uid}",
                "gts": "2",
                "score": score,
                "step": step,
            }
            | beside
            | {"uid": uid}
            for uid, score in sorted(rows)
        ]
        self.append(f"{folder}/{step}.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def append(self, name: str, text: str) -> None:
        path = self.out / name
        path.parent.mkdir(exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)

    def metrics(self) -> list[dict[str, Any]]:
        return list(read_lines(self.out / "metrics.jsonl"))

    def completions(self) -> list[dict[str, Any]]:
        return list(read_lines(self.out / "completions.jsonl"))


def a_step(run: VerlRun, step: int = 1) -> None:
    """A's rewards are 1 and 0, B's are 0.1 and 0.1; A is record 3, B is record 5."""
    run.calls(
        {"key": f"{A}_0", "step": step, "index": 3, "score": 1.0, "parts": {"digits": 1.0}},
        {
            "key": f"{A}_1",
            "step": step,
            "index": 3,
            "score": 0.0,
            "parts": {"digits": 3.0},
            "length": 16,
            "truncated": True,
        },
        {"key": f"{B}_1", "step": step, "index": 5, "score": 0.1},
    )
    run.calls({"key": f"{B}_0", "step": step, "index": 5, "score": 0.1, "parts": {"digits": 5.0}}, worker="node2-5")
    tenth = 0.10000000149011612  # as float32
    run.dumps("rollouts", step, (f"{A}_0_0", 1.0), (f"{A}_1_0", 0.0), (f"{B}_0_0", tenth), (f"{B}_1_0", tenth))


def test_a_step_has_our_metrics_under_both_names_and_verls_others_beside_them(tmp_path: Path):
    run = VerlRun(tmp_path)
    a_step(run)
    times = {"timing_s/step": 5.0, "timing_s/save_checkpoint": 1.0, "timing_s/gen": 2.0, "perf/throughput": 100.0}
    lengths = {"response_length/mean": 6.25, "response_length/max": 16.0, "response_length/clip_ratio": 0.75}
    logged = {
        "training/global_step": 1,
        "training/epoch": 0,
        "actor/pg_loss": -0.5,
        "critic/rewards/mean": 0.3,
        **lengths,
    }
    run.logs(1, {**logged, **times, "actor/kl_loss": None})
    run.records.poll()
    (line,) = run.metrics()
    # A: squares of +-1/2 over 1; B: equal
    assert line.pop("reward_std") == pytest.approx((math.sqrt(0.5) + 0) / 2)
    assert line.pop("reward_mean") == pytest.approx(0.3)
    assert line.pop("reward/digits") == 3.0  # the mean of those three that have it
    assert line == {
        "step": 1, "epoch": 0, "training/epoch": 0, "nonfinite": 1,
        "zero_std_fraction": 0.5, "reward/errors": 0.0, "critic/rewards/mean": 0.3,
        "policy_loss": -0.5, "actor/pg_loss": -0.5, "kl_loss": None, "actor/kl_loss": None,
        "response_length": 6.25, "response_length/mean": 6.25, "response_length/max": 16.0,
        "response_clip_fraction": 0.25, "response_length/clip_ratio": 0.25,
        # without the second that saving took
        "seconds_per_step": 4.0, "timing_s/step": 5.0, "tokens_per_second": 125.0, "perf/throughput": 100.0,
        "timing_s/save_checkpoint": 1.0, "timing_s/gen": 2.0,
    }  # fmt: skip
    assert "train" in run.screen.getvalue() or "step 1/4  reward  0.300" in run.screen.getvalue()


def test_completions_have_the_embedded_engines_rows_in_the_order_of_the_records(tmp_path: Path):
    run = VerlRun(tmp_path)
    a_step(run)
    run.logs(1, {"actor/lr": 1e-3})
    run.records.poll()
    rows = run.completions()
    assert rows[1] == {
        "step": 1, "uid": 0, "prompt": "1+1=", "response": f"r {A}_1_0", "reward": 0.0, "parts": {"digits": 3.0},
        "length": 16, "ground_truth": "2", "data_source": "qa", "split": "train",
    }  # fmt: skip
    assert [(row["uid"], row["prompt"], row["reward"]) for row in rows] == [
        (0, "1+1=", 1.0),
        (0, "1+1=", 0.0),
        (1, "2+2=", 0.1),  # as the reward gave it, not as float32
        (1, "2+2=", 0.1),
    ]


def test_what_a_reward_manager_takes_off_a_reward_counts(tmp_path: Path):
    run = VerlRun(tmp_path)
    run.calls({"key": f"{A}_0", "step": 1, "index": 3, "score": 1.0})
    run.dumps("rollouts", 1, (f"{A}_0_0", 0.5))
    run.logs(1, {"actor/lr": 1e-3})
    run.records.poll()
    assert [row["reward"] for row in run.completions()] == [0.5]


def test_a_failed_call_counts_in_no_mean_and_its_row_has_no_reward(tmp_path: Path):
    run = VerlRun(tmp_path, "launcher.max_reward_errors=0.25")
    failed = {
        "error": "ValueError: no",
        "traceback": "Traceback of the user's file",
        "response": "?",
        "ground_truth": "2",
    }
    failed |= {"prompt": [{"role": "user", "content": "1+1="}], "score": None, "length": 16, "truncated": True}
    run.calls(
        {"key": f"{A}_0", "step": 1, "index": 3, "score": 1.0},
        {"key": f"{A}_1", "step": 1, "index": 3, **failed},
        {"key": f"{B}_0", "step": 1, "index": 5, "score": 0.0},
        {"key": f"{B}_1", "step": 1, "index": 5, "score": 0.5},
    )
    # verl fills the batch up with an empty row
    run.dumps("rollouts", 1, (f"{A}_0_0", 1.0), (f"{B}_0_0", 0.0), (f"{B}_1_0", 0.5), ("pad77_0_0", 0.0))
    run.logs(1, {"response_length/max": 16.0, "response_length/clip_ratio": 0.5})
    run.records.poll()
    (line,) = run.metrics()
    assert (line["reward_mean"], line["reward/errors"], line["response_clip_fraction"]) == (0.5, 1.0, 0.25)
    assert line["reward_std"] == pytest.approx(math.sqrt(0.125))  # B alone: A's other response compares with nothing
    assert [(row["uid"], row["response"], row["reward"]) for row in run.completions()] == [
        (0, f"r {A}_0_0", 1.0), (0, "?", None), (1, f"r {B}_0_0", 0.0), (1, f"r {B}_1_0", 0.5),
    ]  # fmt: skip
    said = run.screen.getvalue()
    assert "a reward call failed in step 1; its response trains nothing:\nTraceback of the user's file" in said
    assert "step 1: groups left with one response: 1; verl" in said


def test_more_failed_calls_than_allowed_stop_the_run_before_the_step_is_done(tmp_path: Path):
    run = VerlRun(tmp_path, "reward.custom_reward_function.path=/奖励/my.py")
    run.calls({"key": f"{B}_0", "step": 1, "index": 5, "score": 0.0})
    run.records.poll()
    failed = {"step": 1, "score": None, "error": "ValueError: no (my.py, line 3)", "prompt": [], "response": ""}
    run.calls({"key": f"{A}_0", "index": 3, "traceback": "Traceback: the first", "ground_truth": "", **failed})
    with pytest.raises(RewardError) as error:
        run.records.poll()
    assert str(error.value) == (
        "/奖励/my.py:compute_score: 1 of 4 reward calls failed, more than --max_reward_errors 0.1 allows; "
        "the first, record 3: ValueError: no (my.py, line 3)"
    )
    assert "Traceback: the first" in run.screen.getvalue()


def test_files_may_come_late_and_lines_in_halves(tmp_path: Path):
    run = VerlRun(tmp_path)
    run.records.poll()  # there is nothing at all
    line = json.dumps({"step": 1, "data": {"actor/lr": 0.5}})
    run.append("verl_metrics.jsonl", line[:20])
    run.records.poll()
    run.append("verl_metrics.jsonl", line[20:] + "\n")
    run.records.poll()
    assert run.metrics() == []  # the dump is not there yet
    a_step(run)
    dump = tmp_path / "rollouts" / "1.jsonl"
    whole = dump.read_text()
    dump.write_text(whole[: whole.rindex("{")])  # three whole lines of four
    run.records.poll()
    assert run.metrics() == []
    dump.write_text(whole)
    run.records.poll()
    assert [(row["step"], row["lr"]) for row in run.metrics()] == [(1, 0.5)]
    run.records.poll()
    assert len(run.metrics()) == 1
    assert len(run.completions()) == 4


def test_a_dump_with_fewer_rows_than_calls_waits_until_verl_has_ended_or_gone_on(tmp_path: Path):
    run = VerlRun(tmp_path)
    run.calls({"key": f"{A}_0", "step": 1, "index": 3}, {"key": f"{A}_1", "step": 1, "index": 3})
    run.dumps("rollouts", 1, (f"{A}_0_0", 0.0))
    run.logs(1, {"actor/lr": 0.5})
    run.records.poll()
    assert run.metrics() == []
    run.logs(2, {"actor/lr": 0.25})
    run.records.poll()
    assert [row["step"] for row in run.metrics()] == [1]
    run.records.poll(ended=True)  # no dump of step 2 at all
    assert [row["lr"] for row in run.metrics()] == [0.5, 0.25]
    assert "step 1: verl lost 3 of 4 responses; see verl.log" in run.screen.getvalue()


def an_evaluation(run: VerlRun, step: int, scores: Sequence[float]) -> None:
    keys = [f"{uid}_0" for uid in (A, B)]
    run.calls(
        *({"key": key, "step": step, "split": "val", "index": i, "score": scores[i]} for i, key in enumerate(keys))
    )
    rows = [(f"{key}_0", score) for key, score in zip(keys, scores, strict=True)]
    run.dumps("validation", step, *rows, reward=0.0, digits=0.0)


def test_evaluations_and_the_summary_have_the_embedded_engines_names(tmp_path: Path):
    run = VerlRun(tmp_path)
    an_evaluation(run, 0, [0.0, 1.0])
    run.logs(0, {"val-core/qa/reward/mean@1": 0.5})
    run.records.poll()
    a_step(run, 1)
    an_evaluation(run, 1, [2.0, 1.0])
    run.logs(1, {"actor/lr": 0.5, "val-core/qa/reward/mean@1": 1.5})
    run.records.poll(ended=True)
    before, after = run.metrics()
    assert before == {
        "step": 0, "val_accuracy": 0.5, "val_reward_mean": 0.5, "val-core/qa/reward/mean@1": 0.5,
    }  # fmt: skip
    assert (after["val_accuracy"], after["val_reward_mean"], after["val-core/qa/reward/mean@1"]) == (1.0, 1.5, 1.5)
    assert [(row["step"], row["split"], row["prompt"]) for row in run.completions()[:2]] == [
        (0, "val", "1+1="), (0, "val", "2+2="),
    ]  # fmt: skip
    summary = run.records.finish(tmp_path / "checkpoints" / "final")
    assert summary.pop("seconds") < 5
    assert summary.pop("peak_rss_mb") >= 0
    assert summary == {
        "engine": "verl", "algorithm": "gspo", "recipe": "demo", "steps": 1,
        "accuracy": {"start": 0.5, "final": 1.0}, "reward_mean": {"start": 0.5, "final": 1.5},
        "checkpoint": str(tmp_path / "checkpoints" / "final"), "report": str(tmp_path / "report.html"),
        "example": {"prompt": "1+1=", "ground_truth": "2", "first": f"r {A}_0_0", "last": f"r {A}_0_0"},
    }  # fmt: skip


def test_a_resumed_run_goes_on_after_its_checkpoint_and_keeps_its_start(tmp_path: Path):
    first = VerlRun(tmp_path)
    an_evaluation(first, 0, [0.0, 1.0])
    first.logs(0, {"val-core/qa/reward/mean@1": 0.5})
    for step in (1, 2, 3):
        a_step(first, step)
        first.logs(step, {"timing_s/step": 10.0})
        first.records.poll()
    first.log.close()
    run = VerlRun(tmp_path, resume_step=2)
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == ["1.jsonl", "2.jsonl"]
    assert not (tmp_path / "verl_metrics.jsonl").exists()  # verl begins it anew
    assert list((tmp_path / "reward_parts").iterdir()) == []
    run.logs(2, {"val-core/qa/reward/mean@1": 0.5})  # verl evaluates what it goes on from
    a_step(run, 3)
    run.logs(3, {"timing_s/step": 7.0})
    run.records.poll(ended=True)
    assert [(row["step"], row.get("seconds_per_step")) for row in run.metrics()] == [
        (0, None), (1, 10.0), (2, 10.0), (3, 7.0),
    ]  # fmt: skip
    assert [row["step"] for row in run.completions()] == [0] * 2 + [1] * 4 + [2] * 4 + [3] * 4
    summary = run.records.finish(tmp_path)
    assert summary["accuracy"] == {"start": 0.5}
    assert 20 <= summary["seconds"] < 25


def test_what_an_attempt_was_killed_before_writing_down_is_recorded_by_the_next(tmp_path: Path):
    first = VerlRun(tmp_path)
    a_step(first, 1)
    first.logs(1, {"timing_s/step": 10.0})
    first.records.poll()
    a_step(first, 2)
    first.log.completions(2, [{"uid": 0, "split": "train"}])  # the launcher dies here
    first.log.close()
    first.logs(2, {"timing_s/step": 11.0, "actor/pg_loss": 0.25})
    first.calls(
        *({"key": f"{u}_{i}", "step": 3, "score": float(i), "parts": {"digits": 3.0}} for u in "CD" for i in (0, 1))
    )
    # verl dies here: the third step is saved, and neither dumped nor logged
    run = VerlRun(tmp_path, resume_step=3)
    one, two, three = run.metrics()
    assert (one["step"], two["step"], two["policy_loss"], two["seconds_per_step"]) == (1, 2, 0.25, 11.0)
    of_rewards = {"reward_mean": 0.5, "zero_std_fraction": 0.0, "reward/errors": 0.0, "reward/digits": 3.0}
    assert three.pop("reward_std") == pytest.approx(math.sqrt(0.5))
    assert {name: three[name] for name in ("step", "response_length", *of_rewards)} == {
        "step": 3, "response_length": 3.0, **of_rewards,
    }  # fmt: skip
    assert [row["step"] for row in run.completions()] == [1] * 4 + [2] * 4  # of step 3 no text was kept
    assert "step 3: verl was ended after its save and before its line of metrics" in run.screen.getvalue()
    a_step(run, 4)
    run.logs(4, {"timing_s/step": 7.0})
    run.records.poll(ended=True)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    assert run.records.finish(tmp_path)["seconds"] < 30


def test_a_run_that_only_lacks_its_export_still_knows_its_last_evaluation(tmp_path: Path):
    first = VerlRun(tmp_path)
    for step, scores in ((0, [0.0, 0.0]), (1, [0.0, 1.0]), (2, [1.0, 1.0])):
        an_evaluation(first, step, scores)
        first.logs(step, {"val-core/qa/reward/mean@1": 0.0})
    first.records.poll(ended=True)
    first.log.close()
    run = VerlRun(tmp_path, resume_step=2)
    run.records.poll(ended=True)
    summary = run.records.finish(tmp_path)
    assert (summary["steps"], summary["accuracy"]) == (2, {"start": 0.0, "final": 1.0})


def test_the_allowed_share_of_failed_calls_is_one_of_all_calls_where_verl_replaces_groups(tmp_path: Path):
    run = VerlRun(tmp_path)  # one of ten may fail, and a batch has four responses
    run.calls(*({"key": f"{A}_{i}", "step": 1} for i in range(9)))
    failed = {"score": None, "error": "no", "traceback": None, "response": "", "prompt": [], "ground_truth": ""}
    run.calls({"key": f"{B}_0", "step": 1, **failed})
    run.records.poll()
    run.calls({"key": f"{B}_1", "step": 1, **failed})
    with pytest.raises(RewardError, match=r"^the shipped reward: 2 of 11 reward calls failed"):
        run.records.poll()


def test_a_failed_call_ends_a_run_of_the_older_trainer_which_would_train_on_its_zero(tmp_path: Path):
    run = VerlRun(tmp_path, "trainer.use_v1=False", "launcher.max_reward_errors=0.9")
    failed = {"score": None, "error": "no jail", "traceback": None, "response": "", "prompt": [], "ground_truth": ""}
    run.calls({"key": f"{A}_0", "step": 1, "index": 3}, {"key": f"{A}_1", "step": 1, "index": 3, **failed})
    said = r"1 of 4 reward calls failed, and trainer\.use_v1=False cannot leave a response out .* record 3: no jail"
    with pytest.raises(RewardError, match=said):
        run.records.poll()


def test_dumps_of_the_older_trainer_have_parts_and_no_uid(tmp_path: Path):
    run = VerlRun(tmp_path)
    rows = [("1+1=", 1.0), ("1+1=", 0.0), ("2+2=", 0.5), ("2+2=", 0.5)]
    row = {"output": "r", "gts": "2", "step": 1, "digits": 4, "verdict": "text"}
    run.append("rollouts/1.jsonl", "".join(json.dumps({"input": p, "score": s, **row}) + "\n" for p, s in rows))
    run.calls(*({"index": 0, "score": score} for _, score in rows))
    run.logs(1, {"response_length/max": 12.0, "response_length/clip_ratio": 0.5})
    run.records.poll()
    (line,) = run.metrics()
    assert (line["zero_std_fraction"], line["reward/digits"], line["response_clip_fraction"]) == (0.5, 4.0, 0.0)
    assert [(row["uid"], row["length"], row["parts"]) for row in run.completions()][1:3] == [
        (0, None, {"digits": 4}), (1, None, {"digits": 4}),
    ]  # fmt: skip


def test_spread_within_groups_is_the_embedded_engines():
    noise = random.Random(3)
    lines = [{"uid": i // 4, "reward": noise.choice([0.0, 0.1, 1.0]), "parts": {}} for i in range(200)]
    for line in lines[:8]:
        line["reward"] = 0.1  # equal, and no binary fraction
    values = step_values.of_training(lines, errors=0)
    rewards, uid = (torch.tensor([line[name] for line in lines]) for name in ("reward", "uid"))
    assert values["reward_std"] == pytest.approx(float(algorithm.group_std(rewards, uid)), rel=1e-5)
    assert values["zero_std_fraction"] == pytest.approx(float(algorithm.zero_std_fraction(rewards, uid)), rel=1e-6)


@pytest.mark.parametrize(
    ("truncated", "longest", "share"),
    [
        ([True, False], 16.0, 0.5),  # what the responses themselves say
        ([True, None], 16.0, 0.75),  # verl's: these have the length of the batch's longest, which is the limit
        ([None, None], 15.0, 0.0),  # the longest of this batch ended by itself
    ],
)
def test_verls_share_of_cut_responses_counts_only_at_the_limit(truncated: list[Any], longest: float, share: float):
    logged = {"response_length/max": longest, "response_length/clip_ratio": 0.75}
    assert step_values.clip_fraction(truncated, logged, 16) == share
    assert step_values.clip_fraction([None], {}, 16) is None
