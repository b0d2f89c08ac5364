"""Which failure a log of verl shows: each message in its library's own words, and what wins where several stand."""

from __future__ import annotations

import functools
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import yaml

from grpo.flags import by_spelling
from grpo.verl_backend.failures import RANKS, UNKNOWN, explain, load_failures, render
from tests.verl_backend import troubleshooting_tables
from tests.verl_backend.real_failures import REAL

SAMPLES = yaml.safe_load((Path(__file__).parent / "failure_samples.yaml").read_text(encoding="utf-8"))
ALL_SAMPLES = [(name, sample) for name, samples in SAMPLES.items() for sample in samples]
SPECIAL = [failure for failure in load_failures() if failure.name != UNKNOWN]


def names(log: str) -> list[str]:
    return [one.name for one in explain(log.splitlines(keepends=True))]


def said(says: tuple[str, ...], log: str) -> bool:
    return any(re.search(".*".join(map(re.escape, says)), line) for line in log.splitlines())


@functools.cache
def log_of(name: str) -> str:
    """The first sample of a failure."""
    return SAMPLES[name][0]["log"].rstrip("\n") + "\n"


@pytest.mark.parametrize(("name", "sample"), ALL_SAMPLES, ids=[name for name, _ in ALL_SAMPLES])
def test_what_a_library_prints_is_explained_by_its_own_entry_first(name: str, sample: dict[str, str]) -> None:
    assert names(sample["log"])[:1] == [name]


def test_every_message_of_every_entry_has_a_sample_and_every_sample_an_entry() -> None:
    assert [failure.name for failure in SPECIAL] == list(SAMPLES)
    without = [
        (failure.name, says)
        for failure in SPECIAL
        for says in failure.says
        if not any(said(says, sample["log"]) for sample in SAMPLES[failure.name])
    ]
    assert without == []
    assert len(SPECIAL) >= 45


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_the_real_error_is_explained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised by the library itself, here and now."""
    if name.startswith("no_gpu") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception) as raised:  # each library has its own
        REAL[name]()
    log = "".join(traceback.format_exception(raised.value))
    assert names(log)[:1] == [name.partition(":")[0]], log


@pytest.mark.verl
def test_each_message_stands_where_its_sample_says(missing: Callable[[str], NoReturn]) -> None:
    """In the packages of the environment that verl runs in on a CPU: a new version may say it in other words."""
    from grpo.verl_backend.installation.environment import find_environment

    environment = find_environment("cpu")
    if environment is None:
        missing("verl's environment; ./train.sh setup --engine verl --device cpu")
    says = {failure.name: failure.says for failure in SPECIAL}
    sought = [(name, sample) for name, sample in ALL_SAMPLES if "file" in sample]
    gone = []
    for name, sample in sought:
        text = in_one_piece(environment.packages / sample["file"])
        printed = [pieces for pieces in says[name] if said(pieces, sample["log"])]
        if not any(all(piece.encode() in text for piece in pieces) for pieces in printed):
            gone.append((name, sample["file"]))
    assert gone == []
    assert len(sought) > 90


@functools.cache
def in_one_piece(file: Path) -> bytes:
    """The file, with the strings that Python puts together written as one."""
    return re.sub(rb"[\"']\s*\+?\s*\n\s*[rf]?[\"']", b"", file.read_bytes())


@pytest.mark.parametrize("failure", load_failures(), ids=lambda failure: failure.name)
def test_an_entry_speaks_both_languages_and_names_only_flags_that_exist(failure: Any) -> None:
    for texts in (failure.cause, failure.fix, failure.group):
        assert re.search(r"[\u4e00-\u9fff]", texts["zh"])
        assert not re.search(r"[\u4e00-\u9fff]", texts["en"].replace("/数据/", ""))
        assert not texts["en"].endswith(".")
        assert not texts["zh"].endswith("。")
    assert failure.kind in RANKS
    if failure.flag and failure.flag.startswith("--"):
        assert failure.flag.split()[0].removeprefix("--") in by_spelling()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_shows_all_entries(lang: str) -> None:
    page = troubleshooting_tables.PAGES[lang].read_text(encoding="utf-8")
    how = "write them again: python -m tests.verl_backend.troubleshooting_tables"
    assert troubleshooting_tables.filled(page, lang) == page, how
    assert len(re.findall(r"^\| [`–]", page, re.MULTILINE)) == len(load_failures())


def test_colours_prefixes_and_repetitions_do_not_hide_a_failure() -> None:
    error = "ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4)."
    log = (
        "\x1b[36m(vLLMHttpServer pid=41, ip=10.0.0.2)\x1b[0m (EngineCore pid=55) ERROR 11-21 05:53:01 [core.py:1433] "
        f"{error}\x1b[32m [repeated 3x across cluster]\x1b[0m\n"
    )
    (one,) = explain([log, log, log])
    assert (one.name, one.line) == ("heads_not_over_tp", error)
    by_rank = re.sub(r"^.*?\) ", "[rank0]: ", log_of("kl_type_unknown"), flags=re.MULTILINE)  # as torch prints it
    assert by_rank.startswith("[rank0]: Traceback")
    assert names(by_rank) == ["kl_type_unknown"]


def test_a_traceback_is_followed_while_other_workers_speak_between_its_lines() -> None:
    mine, other = log_of("kl_type_unknown").splitlines(), ["(WorkerDict pid=78) step time 3 s"] * 9
    mixed = [line for pair in zip(mine, other, strict=False) for line in pair]
    assert names("\n".join(mixed)) == ["kl_type_unknown"]
    alone = "(WorkerDict pid=78) NotImplementedError\n"  # of a worker whose traceback is another one
    assert names("\n".join([*mine[:-1], alone])) == [UNKNOWN]


@pytest.mark.parametrize("before", [True, False])
def test_a_mask_never_hides_the_cause(before: bool) -> None:
    mask, cause = log_of("weights_not_received"), log_of("weight_loader")
    assert names(mask + cause if before else cause + mask) == ["weight_loader", "weights_not_received"]


def test_the_failure_of_a_worker_counts_more_than_its_death() -> None:
    log = log_of("vllm_engine_died") + log_of("worker_died") + log_of("gpu_memory_taken")
    assert names(log) == ["gpu_memory_taken", "vllm_engine_died", "worker_died"]


def test_the_first_traceback_comes_before_later_ones() -> None:
    log = log_of("no_kernel_image") + log_of("port_in_use")
    assert names(log) == ["no_kernel_image", "port_in_use"]


def test_what_the_run_survived_is_told_only_where_nothing_else_went_wrong() -> None:
    survived = log_of("group_failed") + log_of("hub_rate_limit")
    step = "\x1b[36m(TaskRunner pid=612)\x1b[0m step:3 - actor/pg_loss:0.01 - critic/score/mean:0.5\n"
    assert names(survived + step + log_of("disk_full")) == ["disk_full"]
    assert names(survived + step) == ["hub_rate_limit", "group_failed"]
    assert names(log_of("disk_full") + step + "KeyError: 'odd'\n") == [UNKNOWN]
    twice = log_of("disk_full") + step + log_of("disk_full")
    assert [(one.name, one.kind) for one in explain(twice.splitlines())] == [("disk_full", "cause")]
    assert [one.kind for one in explain((survived + step).splitlines())] == ["hint", "hint"]


def test_a_message_in_the_source_code_that_a_traceback_quotes_is_no_message() -> None:
    frames = (
        '  File "/env/verl/single_controller/ray/base.py", line 240, in _check_resource_available\n'
        '    raise ValueError(f"{a} is less than total desired GPUs {b}") if not os.path.exists(x) else None\n'
        "TypeError: stat: path should be string\n"
    )
    assert names("Traceback (most recent call last):\n" + frames) == [UNKNOWN]
    driver = 'Traceback (most recent call last):\n  File "/env/ray/worker.py", line 9, in get\n    raise value\n'
    assert names(f"{driver}ray.exceptions.RayTaskError(TypeError): ray::TaskRunner.run()\n{frames}") == [UNKNOWN]


def test_the_parts_of_a_message_stand_in_their_order() -> None:
    assert names("ImportError: undefined symbol: x, which flash_attn does not need\n") == [UNKNOWN]


def test_a_warning_of_the_same_words_is_no_failure() -> None:
    """The first three stand in the log of every run on a CPU."""
    log = (
        "(WorkerDict pid=77) /env/verl/workers/engine/__init__.py:32: UserWarning: torchtitan engine is not available: "
        "ModuleNotFoundError(\"No module named 'torchtitan'\")\n"
        "(EngineCore pid=55) WARNING 11-21 06:31:01 [sparse.py:9] Failed to import the extension (vllm._x_C): "
        "No module named 'vllm._x_C'\n"
        "(WorkerDict pid=77) 2026-11-21 06:32:09,278 - WARNING - transfer_queue.utils.common - Address already in use\n"
        "(EngineCore pid=55) INFO 11-21 05:53:01 [utils.py:9] CUDA out of memory, trying again\n"
    )
    assert names(log) == []
    assert names(log + log_of("worker_died")) == ["worker_died"]


def test_a_hint_is_told_where_no_cause_is_known() -> None:
    hint = log_of("shared_memory_small")
    assert names(hint + log_of("disk_full")) == ["disk_full"]
    assert names(hint + log_of("worker_died")) == ["worker_died", "shared_memory_small"]
    assert names(hint + "KeyError: 'odd'\n") == [UNKNOWN, "shared_memory_small"]
    assert render(explain([hint]))[0].startswith("Hint: /dev/shm is small")


def test_an_exception_counts_more_than_what_was_merely_printed() -> None:
    printed = "the answer of the model: No space left on device\n"
    assert names(printed + log_of("wandb_key")) == ["wandb_key", "disk_full"]
    quiet = "step by step\n"
    assert names(quiet * 999 + "KeyError: 'odd'\n" + quiet * 1000 + printed) == [UNKNOWN, "disk_full"]


def test_an_unknown_failure_shows_the_last_exception_and_the_first_one() -> None:
    log = (
        "(WorkerDict pid=77) Traceback (most recent call last):\n"
        '(WorkerDict pid=77)   File "/env/a.py", line 1, in f\n'
        "(WorkerDict pid=77)     g()\n"
        "(WorkerDict pid=77) my_package.Strange: nobody knows\n"
        "(WorkerDict pid=77) ValueError: another one of the same worker\n"
        "ray.exceptions.RayTaskError(KeyError): ray::TaskRunner.run() (pid=612)\n"
        '  File "/env/b.py", line 2, in h\n'
        "KeyError: 'odd'\n"
        "Exception in thread, and so on\n"
    )
    (one,) = explain(log.splitlines())
    assert one.name == UNKNOWN
    assert one.line == "KeyError: 'odd' (the first one: my_package.Strange: nobody knows)"
    assert "not on our list" in one.cause
    around = "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, ray::W()\n"
    inner = '  File "/env/b.py", line 2, in h\n' + "KeyError: 'odd'\n"
    assert [one.line for one in explain((around + inner).splitlines())] == ["KeyError: 'odd'"]
    assert names(log + log_of("worker_died")) == [UNKNOWN, "worker_died"]
    assert names(log + log_of("disk_full")) == ["disk_full"]


def test_a_log_without_a_failure_has_no_explanation() -> None:
    log = [
        "(TaskRunner pid=612) {'actor_rollout_ref': {'rollout': {'gpu_memory_utilization': 0.5, 'name': 'vllm'}}}\n",
        "(EngineCore pid=55) INFO 11-21 05:53:01 [core.py:9] Traceback (most recent call last):\n",
        "(EngineCore pid=55) INFO 11-21 05:53:01 [core.py:9] ModuleError: optional part is not here\n",
        "(TaskRunner pid=612) step:1 - actor/pg_loss:0.0\n",
    ]
    assert explain(log) == []
    assert explain([]) == []
    assert render([]) == []


def test_no_more_than_three_explanations_are_given() -> None:
    log = "".join(log_of(name) for name in ("disk_full", "port_in_use", "no_gpu", "wandb_key", "worker_died"))
    assert names(log) == ["disk_full", "port_in_use", "no_gpu"]


@pytest.mark.slow
def test_a_long_log_is_read_in_one_pass_and_in_time_that_grows_with_its_length() -> None:
    quiet = "\x1b[36m(TaskRunner pid=612)\x1b[0m INFO 11-21 05:53:01 [loggers.py:7] 12.3 tokens/s\n"
    tempting = "You have set both '" * 200 + "\n"  # the beginning of a message, and never its end
    lines = iter([log_of("disk_full"), *[quiet] * 50_000, *[tempting] * 500, "x" * 5_000_000])
    began = time.process_time()
    assert [one.name for one in explain(lines)] == ["disk_full"]
    assert time.process_time() - began < 5  # it takes 0.6 s


def test_the_terminal_is_told_cause_fix_flag_and_line_in_the_language_asked_for() -> None:
    log = (log_of("gpus_too_few") + log_of("worker_died")).splitlines()
    english, chinese = render(explain(log)), render(explain(log, lang="zh"), "zh")
    assert english[0] == "Why: the run asks for more GPUs than Ray has free"
    assert english[1].startswith("  Do: lower the number to what `nvidia-smi`")
    assert english[2:4] == ["  Change: --n_gpus", f"  Log: {log_of('gpus_too_few').strip()}"]
    assert english[4].startswith("Also seen: a worker was ended from outside")
    assert [line.split("：")[0].strip() for line in chinese] == [
        *("原因", "办法", "修改", "日志"),
        *("另有", "办法", "修改", "日志"),
    ]
