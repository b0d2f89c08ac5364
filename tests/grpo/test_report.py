"""report.html: one offline page, whole or partial, safe with whatever a model wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo.metrics.changes import most_changed
from grpo.metrics.curves import POINTS, downsample
from grpo.metrics.log import MetricsLog
from grpo.metrics.names import TABLE
from grpo.report import write_report
from tests.grpo.run_folder import ATTACK, make_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 100 steps and its page."""
    folder = make_run(tmp_path_factory.mktemp("工作 目录") / "demo", 100, attack=f"{ATTACK % (9, 9)} \x1b[31m \udc80")
    write_report(folder)
    return folder


def page_of(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


class _Elements(HTMLParser):
    """Every element of a page with its attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_the_page_says_what_was_run_and_what_came_of_it(finished: Path) -> None:
    text = _Elements(page_of(finished)).text
    for expected in (
        "./train.sh --data prompts.json --lr 1e-4",  # the command
        "2.13.0",  # versions
        "sha256:" + "ab" * 32,  # hashes
        "请解答：15 + 27 = ?",
        "embedded",
    ):
        assert expected in text
    rows = re.findall(r'<td class="number">([^<]*)</td><td class="number">([^<]*)</td>', page_of(finished))
    assert rows == [("0.0 %", "0"), ("30.0 %", "0.31"), ("78.0 %", "0.79")]


@pytest.mark.slow
def test_every_measured_metric_of_the_table_has_a_curve(finished: Path) -> None:
    """S2-37 .. S2-41, S4-13: the table's metrics and each part of the reward."""
    elements = _Elements(page_of(finished)).found
    drawn = {(attrs.get("aria-label") or "").split(",")[0] for tag, attrs in elements if tag == "svg"}
    of_sft = {"loss", "val_loss"}
    assert drawn == {metric.name for metric in TABLE if metric.curve} - of_sft | {"reward/format"}


def test_only_changed_settings_are_listed_with_their_origin(finished: Path) -> None:
    page = page_of(finished)
    table = page[page.index("Settings that differ") :]
    rows = re.findall(r"<tr><td><code>(.*?)</code></td><td><code>(.*?)</code></td><td>(.*?)</td></tr>", table)
    assert rows == [
        ("data.train_files", "&#34;prompts.json#500&#34;", "flag --data"),
        ("data.train_batch_size", "32", "recipe demo"),
        ("actor_rollout_ref.actor.optim.lr", "0.0001", "flag --lr"),
        ("launcher.data.system", "&#34;say # 1: yes  # no&#34;", "environment SYSTEM_PROMPT"),
    ]


def test_what_a_model_wrote_is_text_and_its_control_characters_are_visible(finished: Path) -> None:
    elements = _Elements(page_of(finished))
    assert ATTACK % (9, 9) in elements.text
    assert "␛[31m <U+DC80>" in elements.text
    assert not {"script", "img", "link", "iframe", "object", "base"} & {tag for tag, _ in elements.found}


def test_nothing_in_the_page_points_outside_it(finished: Path) -> None:
    page = page_of(finished)
    for _, attrs in _Elements(page).found:
        assert not {"src", "srcset", "action", "data", "xlink:href"} & set(attrs)
        assert (attrs.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attrs)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in page


def test_ids_are_unique_in_the_page_and_all_references_are_met(finished: Path) -> None:
    page = page_of(finished)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:href=\"|url\()#([^\")]+)", page)) <= set(ids)


@pytest.mark.slow
def test_five_thousand_steps_stay_a_few_hundred_kilobytes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "long", 5000)
    assert write_report(folder).stat().st_size < 300_000


def test_a_spike_in_a_long_curve_is_still_seen() -> None:
    values = [1.0] * 4800  # 240 stretches of 20
    values[1234] = 41.0
    steps, mean, low, high = downsample(range(1, 4801), values)
    assert (len(steps), POINTS) == (240, 240)
    assert steps[0] == 10.5  # mean of 1 .. 20
    assert (mean[61], low[61], high[61]) == (3.0, 1.0, 41.0)  # (19 + 41) / 20


@pytest.mark.slow
def test_an_interrupted_run_says_so_and_shows_what_there_is(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "cut", 12, finished=False)
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 13, "reward_me')  # a kill in the middle of a line
    page = write_report(folder).read_text(encoding="utf-8")
    assert "not finished" in page
    assert "12 <span" in page  # steps, by metrics.jsonl
    assert re.findall(r'<td class="number">([^<]*)</td>', page) == ["30.0 %", "0.31"]  # the one evaluation


def test_an_empty_folder_gives_a_page_that_says_nothing_was_measured(tmp_path: Path) -> None:
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "No step has been measured yet" in page
    assert "<svg" not in page


def test_the_page_opens_in_the_readers_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2-44"""
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert 'id="zh" checked' in write_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="en" checked' in write_report(tmp_path, language="en").read_text(encoding="utf-8")


def test_a_secret_of_the_environment_is_not_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    record = {"command": "WANDB_API_KEY=0123456789abcdef ./train.sh --data https://me:pass@host/x.json"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "0123456789abcdef" not in page
    assert "WANDB_API_KEY=***WANDB_API_KEY*** ./train.sh --data https://***@host/x.json" in page


def test_a_failed_write_leaves_the_old_page_and_no_rest(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError):
        write_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def _row(step: int, prompt: str, response: str, reward: float | None, split: str) -> dict[str, object]:
    return {"step": step, "prompt": prompt, "response": response, "reward": reward, "split": split, "length": 3}


def test_evaluations_are_compared_first_with_last_gains_first_and_losses_kept(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        for step, right in ((0, "b"), (5, "x"), (10, "acd")):
            log.completions(step, [_row(step, p, f"{p}{step}", float(p in right), "val") for p in "abcd"])
        log.completions(1, [_row(1, "a", "trained", 1.0, "train")])
    split, changes = most_changed(tmp_path, limit=3)
    assert split == "val"
    assert [(c.prompt, c.first.response, c.last.response, c.gain) for c in changes] == [
        ("a", "a0", "a10", 1.0),
        ("c", "c0", "c10", 1.0),
        ("b", "b0", "b10", -1.0),  # it got worse: it has its place although "d" gained
    ]


def test_without_evaluations_groups_are_compared_by_their_mean(tmp_path: Path) -> None:
    """S4-14: what was sampled can be read again."""
    with MetricsLog(tmp_path) as log:
        log.completions(1, [_row(1, "p", f"r{i}", reward, "train") for i, reward in enumerate([0.0, 1.0, None])])
        log.completions(9, [_row(9, "p", f"s{i}", 1.0, "train") for i in range(3)])
    split, [change] = most_changed(tmp_path)
    assert (split, change.first.reward, change.first.count, change.last.reward) == ("train", 0.5, 2, 1.0)
    assert (change.first.response, change.last.response) == ("r0", "s0")


def test_an_evaluation_before_and_one_after_the_warm_up_are_not_mixed_though_both_are_step_zero(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        for step, response, reward in ((0, "start", 0.0), (0, "sft", 0.5), (9, "final", 1.0)):
            log.completions(step, [_row(step, prompt, response, reward, "val") for prompt in "ab"])
    _, changes = most_changed(tmp_path)
    assert [(c.first.response, c.first.reward, c.first.count) for c in changes] == [("start", 0.0, 1)] * 2


def test_of_a_huge_file_only_the_two_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsLog(tmp_path) as log:
        for step in range(1000):
            log.completions(step, [_row(step, "p", f"r{step}", step / 1000, "val")])
    monkeypatch.setattr("grpo.metrics.changes._HALF", 2000)
    _, [change] = most_changed(tmp_path)
    assert (change.first.response, change.last.response) == ("r0", "r999")


@pytest.mark.slow
def test_the_first_report_on_a_machine_prints_nothing(tmp_path: Path, repo: Path) -> None:
    """matplotlib builds its font cache then, and a home that cannot be written makes it talk too."""
    folder = make_run(tmp_path / "run", 20)
    (tmp_path / "home").touch()  # not a folder
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(repo)}
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    code = f"from grpo.report import write_report; write_report({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
