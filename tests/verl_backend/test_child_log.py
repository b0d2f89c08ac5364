"""The log of a child process: who wrote a line, the first traceback among interleaved ones, news, deaths, phases."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.verl_backend.running.child_log import News, Tail, Tracebacks, clean, parted, tells_death
from grpo.verl_backend.running.phases import Phases

HEAD = "Traceback (most recent call last):"


def first(*lines: str) -> list[str]:
    tracebacks = Tracebacks()
    for line in lines:
        tracebacks.feed(parted(line))
    return list(tracebacks.first())


def test_rays_and_vllms_additions_are_taken_off():
    assert parted("(WorkerDict pid=7, ip=10.0.0.2)   indented") == ("WorkerDict pid=7, ip=10.0.0.2", "", "  indented")
    assert parted("(vLLMHttpServer pid=1) (EngineCore pid=2) ERROR 11-21 05:58:50 [core.py:1435] died") == (
        "vLLMHttpServer pid=1 EngineCore pid=2",
        "ERROR",
        "died",
    )
    assert parted("(TaskRunnerV1 pid=3) INFO:2026-11-21 06:00:03,121:Total training steps: 4") == (
        "TaskRunnerV1 pid=3",
        "INFO",
        "Total training steps: 4",
    )
    assert parted("x [repeated 3x across cluster] (Ray deduplicates logs by default.)").text == "x"
    assert parted("ERROR in the text, (f(x) pid=3)") == ("", "", "ERROR in the text, (f(x) pid=3)")


def test_colours_and_cursor_orders_are_taken_off():
    assert clean("\x1b[36m(A pid=1)\x1b[0m \x1b[2K\x1b]0;title\x07text\x1b[A  ") == "(A pid=1) text"


def test_a_bar_that_a_worker_draws_keeps_its_worker(tmp_path: Path):
    """Ray puts its prefix before the first state only, and the first carriage return behind the prefix."""
    log = tmp_path / "log"
    log.write_bytes(
        b"\x1b[36m(WorkerDict pid=7)\x1b[0m \rLoad: 0/2 [00:00]\rLoad: 2/2 [00:01]\nplain\r\n\r\n(A pid=1)\n"
    )
    assert list(Tail(log, 0).lines()) == [
        "(WorkerDict pid=7) Load: 0/2 [00:00]",
        "(WorkerDict pid=7) Load: 2/2 [00:01]",
        "plain",
    ]


def test_a_line_is_handed_over_once_and_whole_however_it_is_written(tmp_path: Path):
    log = tmp_path / "log"
    text = "前一行\nsecond 行\nthe last".encode()
    tail, seen = Tail(log, 0), []
    for end in range(len(text) + 1):  # one byte more at a time: also inside a character
        log.write_bytes(text[:end])
        seen += tail.lines()
    assert seen == ["前一行", "second 行"]
    assert list(tail.lines(ended=True)) == ["the last"]
    assert list(tail.lines(ended=True)) == []


def test_the_first_traceback_is_read_out_of_interleaved_processes():
    got = first(
        f"(WorkerDict pid=1) {HEAD}",
        "(WorkerDict pid=2) noise",
        f"(WorkerDict pid=2) {HEAD}",
        '(WorkerDict pid=1)   File "a.py", line 1, in f',
        '(WorkerDict pid=2)   File "b.py", line 2, in g',
        "(WorkerDict pid=2) KeyError: 'second'",
        "(WorkerDict pid=1)     f()",
        "(WorkerDict pid=1) torch.OutOfMemoryError: CUDA out of memory.",
        "(WorkerDict pid=1) Tried to allocate 2 GiB",
        "(WorkerDict pid=1) INFO:2026-11-21 06:00:03,121:something else",
        "(WorkerDict pid=1) and more of it",
    )
    assert got == [
        HEAD,
        '  File "a.py", line 1, in f',
        "    f()",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "Tried to allocate 2 GiB",
    ]


def test_an_error_of_another_process_comes_with_its_own_frames():
    """As Ray 2.60 prints it where somebody waited for the result."""
    got = first(
        HEAD,
        '  File "main_ppo.py", line 9, in run_ppo',
        "    ray.get(runner.run.remote(config))",
        "ray.exceptions.RayTaskError(ZeroDivisionError): ray::TaskRunnerV1.run() (pid=3, ip=10.0.0.2)",
        "           ^^^^^^^^^",
        '  File "trainer_base.py", line 450, in fit',
        "    epoch = steps // per_epoch",
        "ZeroDivisionError: integer division or modulo by zero",
        "During handling of the above exception, another exception occurred:",
        HEAD,
        "Later: no",
    )
    assert got[-1] == "ZeroDivisionError: integer division or modulo by zero"
    assert '  File "trainer_base.py", line 450, in fit' in got


def test_an_error_that_nobody_waited_for_has_no_usual_head():
    got = first(
        "(pid=9) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::WorkerDict.f() (pid=1, ip=::1)",
        '(pid=9)   File "a.py", line 1, in f',
        "(pid=9) ValueError: no",
    )
    assert got == ["ray::WorkerDict.f() (pid=1, ip=::1)", '  File "a.py", line 1, in f', "ValueError: no"]


@pytest.mark.parametrize(
    "harmless",
    [
        ["Exception ignored in: <function Shm.__del__>", HEAD, '  File "x.py", line 1', "BufferError: x"],
        [f"WARNING 11-21 05:58:50 [x.py:1] {HEAD}", "WARNING 11-21 05:58:50 [x.py:1] ImportError: optional"],
        [HEAD, '  File "shm.py", line 1', "BufferError: cannot close exported pointers exist"],
    ],
)
def test_a_traceback_that_explains_nothing_gives_way_to_one_that_does(harmless: list[str]):
    assert (
        first(*harmless, "between", f"(A pid=1) {HEAD}", "(A pid=1) ValueError: the cause")[-1]
        == "ValueError: the cause"
    )


def test_a_masking_error_alone_is_better_than_nothing():
    assert first(HEAD, "BufferError: cannot close exported pointers exist")[-1].startswith("BufferError")
    assert first("no traceback at all") == []


@pytest.mark.parametrize(
    "line",
    [
        "(V pid=1) (Worker pid=2) ERROR 11-21 05:58:50 [multiproc_executor.py:1058] WorkerProc hit an exception.",
        "(V pid=1) (EngineCore pid=2) ERROR 11-21 05:58:50 [core.py:1435] EngineCore encountered a fatal error.",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
    ],
)
def test_a_workers_death_is_recognised(line: str):
    """Texts of vLLM 0.31 and Ray 2.60."""
    assert tells_death(parted(line), Tracebacks())


def test_a_buffer_error_tells_a_death_only_after_a_traceback():
    """At the end of a healthy process it is harmless."""
    tracebacks, line = Tracebacks(), parted("BufferError: cannot close exported pointers exist")
    assert not tells_death(line, tracebacks)
    for text in (HEAD, "AttributeError: weight_loader"):
        tracebacks.feed(parted(text))
    assert tells_death(line, tracebacks)


def test_only_the_time_and_the_counts_of_noise_change():
    news = News()
    said = [
        news.is_new(parted(line))
        for line in (
            "waited 60 s for block 0x7f",
            "waited 120 s for block 0x9a",
            "load: 1/9 [00:01<?]",
            "load: 1/9 [00:07<?]",
            "load: 2/9 [00:08<?]",
            "something else",
        )
    ]
    assert said == [True, False, True, False, True, True]


# Lines of a real run (verl 0.9.1, Ray 2.60, vLLM 0.31 on a CPU), in their order, without what says nothing here.
START = """
[validate_config] All configuration checks passed successfully!
ray init kwargs: {'num_cpus': 32, 'runtime_env': {'env_vars': {'NCCL_DEBUG': 'WARN'}}}
2026-11-21 05:59:47,190	INFO worker.py:2038 -- Started a local Ray instance.
(TaskRunnerV1 pid=31850) Using dataset class: RLHFDataset
(TaskRunnerV1 pid=31850) INFO:2026-11-21 06:00:03,127:worker group kwargs: {'device_name': 'cpu'}
(WorkerDict pid=32029) INFO:2026-11-21 06:00:10,124:Platform override from VERL_PLATFORM: cpu
(WorkerDict pid=32030) Warning: Failed to set NUMA affinity [repeated 3x across cluster] (Ray deduplicates logs)
(WorkerDict pid=32029) Loading weights:   0%|          | 0/26 [00:00<?, ?it/s]
(WorkerDict pid=32029) Loading weights: 100%|##########| 26/26 [00:00<00:00, 28819.21it/s]
(TaskRunnerV1 pid=31850) INFO:2026-11-21 06:00:13,641:actor and ref model engine initialized
(AgentLoopWorkerTQ pid=352) Using dataset class: RLHFDataset
(TaskRunnerV1 pid=31850) LLMServerManager: ['192.0.2.2:33851']
(TaskRunnerV1 pid=31850) INFO:2026-11-21 06:00:47,061:all initialize finished, ready to fit
(AgentLoopWorkerTQ pid=352) Using dataset class: RLHFDataset
(TaskRunnerV1 pid=31850) ("Initial validation metrics: {'val-core/math_reasoning/reward/mean@1': "
(WorkerDict pid=32029) Loading weights:   0%|          | 0/26 [00:00<?, ?it/s]
""".strip().splitlines()


def phases(*, workers: int, validates: bool) -> list[str]:
    told = Phases(workers, validates=validates)
    texts = [told.text]
    texts += [told.text for line in START if told.feed(line)]
    return texts


def test_the_start_is_told_phase_by_phase_and_never_backwards():
    assert phases(workers=8, validates=True) == [
        "starting verl",
        "starting Ray",
        "Ray up",
        "reading the data",
        "starting workers",
        "workers 1/8",
        "workers 4/8",
        "loading weights",
        "starting vLLM",
        "vLLM up",
        "starting the rollout",
        "first validation",
        "first rollout",
    ]


def test_without_a_first_validation_the_rollout_comes_at_once_and_no_more_workers_are_counted_than_there_are():
    texts = phases(workers=2, validates=False)
    assert texts[-2:] == ["starting the rollout", "first rollout"]
    assert "workers 2/2" in texts
    assert "workers 4/2" not in texts
