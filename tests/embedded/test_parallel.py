"""Several processes that train as one: shares, what one process alone does, refusals. Real runs: test_processes.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from grpo import flags
from grpo.__main__ import main
from grpo.embedded import processes
from grpo.embedded.choosing import Sampling
from grpo.embedded.engine import EmbeddedEngine
from grpo.embedded.parallel import ALONE, World, my_rows, sample_together
from grpo.embedded.processes import run_as_json, run_from_json, train_in_processes
from grpo.embedded.rollout import Rollouts, sample
from grpo.engine import EngineError
from grpo.launch import make_run
from grpo.resolve import resolve
from grpo.run_dir import differences
from tests.embedded.conftest import ids

PROMPTS = ("1+2=", "30+4=", "5", "66=")


def _run(*words: str, **changes: object):
    resolved = resolve(flags.parse(["--model", "scratch", "--engine", "embedded", *words]), {})
    return make_run(resolved, resolved.settings(), **changes)


def _texts(*words: str) -> list[str]:
    return [refusal.text for refusal in EmbeddedEngine().refusals(_run(*words))]


def test_equal_items_are_dealt_in_turn_and_a_process_may_get_none() -> None:
    assert [World(rank, 3).mine([7] * 4) for rank in range(3)] == [[0, 3], [1], [2]]
    assert [World(rank, 3).mine([7]) for rank in range(3)] == [[0], [], []]


def test_one_process_alone_takes_all_and_changes_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([3.0, 4.0])
    ALONE.sum_gradients([weight])
    ALONE.copy_from_first([weight])
    assert weight.grad.tolist() == [3.0, 4.0]
    assert weight.tolist() == [1.0, 1.0]
    assert ALONE.mine([5, 1, 9]) == [0, 1, 2]
    assert ALONE.gather("value") == ["value"]
    assert ALONE.from_first(lambda: 7) == 7
    assert ALONE.sum({"loss": 0.1}) == {"loss": 0.1}
    assert ALONE.add(torch.tensor([1.0])).tolist() == [1.0]
    assert ALONE.first


def test_a_prompt_is_answered_alike_among_all_and_chosen(policy) -> None:
    """The random numbers are drawn for all prompts, so that whoever answers one draws the same."""
    prompts = ids(policy, *PROMPTS)
    how = {"sampling": Sampling(n=3, max_length=6), "seed": 11}
    whole = sample(policy, prompts, **how)
    part = sample(policy, prompts, **how, chosen=[1, 3])
    rows = torch.tensor([3, 4, 5, 9, 10, 11])
    width = part.response_ids.shape[1]
    assert part.response_ids.equal(whole.response_ids[rows, :width])
    assert part.response_mask.equal(whole.response_mask[rows, :width])
    torch.testing.assert_close(part.log_probs, whole.log_probs[rows, :width], atol=1e-5, rtol=0)


class _Told(World):
    """The second of two, which hears what the first one sampled. No process: the first one's part is made here."""

    def __init__(self, first_part: tuple[list[int], Rollouts]) -> None:
        super().__init__(1, 2)
        self._first = first_part

    def gather(self, value):
        return [self._first, value]


def test_what_two_processes_sample_comes_together_as_one_batch_in_the_order_of_the_prompts(policy) -> None:
    prompts, sampling = ids(policy, *PROMPTS), Sampling(n=3, max_length=6)
    costs = [len(prompt) + 18 for prompt in prompts]  # 5 and 4 tokens and 1 and 3: the first takes 1 and 2
    theirs = World(0, 2).mine(costs)
    first = (theirs, sample(policy, prompts, sampling, seed=11, chosen=theirs))
    how = {"seed": 11, "max_rows": 64, "on_token": lambda done: None}
    got = sample_together(_Told(first), policy, prompts, sampling, **how)
    whole = sample(policy, prompts, sampling, seed=11)
    assert theirs != [0, 1]
    for name in ("prompt_ids", "prompt_mask", "response_ids", "response_mask", "uid", "truncated"):
        assert getattr(got, name).equal(getattr(whole, name)), name
    torch.testing.assert_close(got.log_probs, whole.log_probs, atol=1e-5, rtol=0)


def test_the_update_is_shared_by_whole_groups_balanced_by_their_tokens() -> None:
    # tokens: 2 + 8, 2 + 2, 2 + 4 (prompt + responses): the first group for one, the others for the other process
    lengths = torch.tensor([4, 4, 1, 1, 1, 3])
    response_mask = (torch.arange(4) < lengths[:, None]).long()
    two, six = torch.ones(3, 2, dtype=torch.long), torch.zeros(6, 4)
    uid = torch.arange(3).repeat_interleave(2)
    rollouts = Rollouts(two, two, six.long(), response_mask, six, uid, torch.zeros(6, dtype=torch.bool))
    assert my_rows(World(0, 2), rollouts).tolist() == [0, 1]
    assert my_rows(World(1, 2), rollouts).tolist() == [2, 3, 4, 5]


def test_a_run_comes_out_of_its_line_of_text_as_it_went_in() -> None:
    run = _run("--lr", "3e-7", "--n_gpus", "2", recipe="demo", resume=True, passthrough={"a.b": "++a.b=1"})
    again = run_from_json(run_as_json(run))
    assert "\n" not in run_as_json(run)
    assert again == run
    assert json.loads(run_as_json(run))["train"] == str(run.train)


@pytest.mark.slow
def test_more_processes_than_places_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    there = processes.processors()
    refused = EmbeddedEngine().refusals(_run("--device", "cpu", "--n_gpus", f"{there + 1}"))
    said = f"trainer.n_gpus_per_node={there + 1} (flag --n_gpus): this machine has {there} processors; --n_gpus {there}"
    assert [(one.text, one.fix) for one in refused] == [(said, {"trainer.n_gpus_per_node": there})]
    assert _texts("--device", "cpu", "--n_gpus", f"{there}") == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _texts("--n_gpus", "3") == [
        "trainer.n_gpus_per_node=3 (flag --n_gpus): this machine has 2 CUDA devices that this run may use; --n_gpus 2"
    ]
    assert EmbeddedEngine().refusals(_run("--n_gpus", "3"), here=False) == []  # a plan is for any machine


def test_more_machines_than_one_are_for_verl() -> None:
    (line,) = _texts("--nnodes", "2")
    assert line == "trainer.nnodes=2 (flag --nnodes): beyond one node: --engine verl"


def test_the_processes_of_a_job_see_the_gpus_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-6")
    assert processes.visible_gpus() == ["4", "GPU-6"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert processes.visible_gpus() == ["0", "1"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"reward": len}, "a reward given as a function"), ({"records": []}, "prompts made during training")],
)
def test_what_lives_in_one_process_of_python_is_not_given_to_several(changes, what) -> None:
    with pytest.raises(EngineError, match=f"^{what} cannot be given to 2 processes"):
        train_in_processes(_run("--n_gpus", "2", **changes), 2)


def test_an_unfinished_run_of_the_embedded_engine_may_go_on_with_another_number_of_processes() -> None:
    old, new = {"trainer.n_gpus_per_node": 2}, {"trainer.n_gpus_per_node": 1}
    embedded, verl = {"launcher.engine": "embedded"}, {"launcher.engine": "verl"}
    assert differences(old, embedded, new, embedded) == []
    assert differences(old, verl, new, verl) == ["trainer.n_gpus_per_node was 2 and is 1"]


def test_sft_keeps_to_one_process_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demonstrations = tmp_path / "demos.json"
    demonstrations.write_text('[{"prompt": "1 + 1 = ?", "response": "2"}]', encoding="utf-8")
    assert main(["sft", "--data", str(demonstrations), "--model", "scratch", "--n_gpus", "2", "--dry_run"]) == 2
    said = "error: trainer.n_gpus_per_node=2 (flag --n_gpus): sft runs in one process; --n_gpus 1\n"
    assert capsys.readouterr().err == said


def test_the_plan_says_how_many_processes_there_will_be() -> None:
    assert EmbeddedEngine().plan(_run("--device", "cpu"))[0].startswith("the embedded engine in this process, on cpu")
    line = EmbeddedEngine().plan(_run("--n_gpus", "4"))[0]
    assert line.startswith("the embedded engine in 4 processes of this machine, a GPU each where there are GPUs")
    assert Path("outputs").resolve().as_posix() in line
