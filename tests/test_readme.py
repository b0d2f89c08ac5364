"""What the READMEs and docs/ say is tried: each command, each file shown, each table, link, flag and key.

Commands that train are taken through --dry_run. `./train.sh` and `make test` themselves are for other tests and CI.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from data_prep.records import read_records
from grpo import final
from grpo.__main__ import main
from grpo.batches import arithmetic
from grpo.config import read_recipe
from grpo.engine import Result, Run
from grpo.flags import by_spelling, parse
from grpo.resolve import resolve
from grpo.run_dir import open_run
from grpo.values import defaults, flatten, groups
from grpo.verl_backend.settings.keys import verl_keys
from reward_funcs import Sample, compute_score, load_reward
from reward_funcs.rehearsal import short_check
from tests import coming_from_page, readme_tables
from tests.documents import PAGES, REPO, anchors, blocks, code_spans, commands, links, prose, shown_files, text_of

# Of sub-commands (data, export, setup, explain-log), and --logdir of TensorBoard.
OTHER_FLAGS = {
    "base", "check", "clean", "counts", "flash_attn", "from", "gpu", "gpus", "host", "json", "lang", "logdir", "lora",
    "mean_prompt", "mean_response", "memory", "no_probe", "page", "pass_at", "port", "prompt", "responses", "step",
    "to", "write",
}  # fmt: skip
# A Chinese page holds the commands of its English one, as a test below says.
ALL_COMMANDS = list(dict.fromkeys((page, text) for page in PAGES if ".zh" not in page for text in commands(page)))


@pytest.fixture
def page_files(in_folder: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with the files that the page shows."""
    for name, text in shown_files(request.node.callspec.params["page"]).items():
        Path(name).write_text(text, encoding="utf-8")
    return in_folder


def leave_an_unfinished_run(folder: Path) -> None:
    """What a run that was killed after its first step leaves in its folder."""
    resolved = resolve(parse(["--data", "prompts.json"]), {})
    settings = resolved.settings()
    with open_run(folder, config=settings.config(), origins=settings.origins, fingerprint={}, command="./train.sh"):
        (folder / "metrics.jsonl").write_text('{"step": 1}\n')


def leave_the_log_of_a_failed_run(folder: Path) -> None:
    """What verl says when it is asked for more GPUs than Ray has."""
    folder.mkdir()
    (folder / "verl.log").write_text("ValueError: Total available GPUs 4.0 is less than total desired GPUs 8\n")


def make_a_model_folder(folder: Path) -> None:
    """As far as a plan looks at it."""
    folder.mkdir()
    model = {"architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 2, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))


@pytest.mark.slow  # a quarter of a second each, and there are many
@pytest.mark.parametrize(("page", "command"), ALL_COMMANDS, ids=[f"{page}: {text}" for page, text in ALL_COMMANDS])
def test_every_command_works(
    page: str,
    command: str,
    page_files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S2-04 to S2-10, S2-30 to S2-36, S1-27, S3-21: as they stand there, or up to what would be trained."""
    words = shlex.split(command)
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (REPO / "Makefile").read_text(), re.MULTILINE)
        return
    if words[0] in ("python3", ".venv/bin/python"):
        subprocess.run([sys.executable, *words[1:]], cwd=REPO, check=True)
        return
    assert words[0] == "./train.sh", f"{page}: nobody tries the command {words[0]}"
    if "--resume" in words and "disable" not in words:
        leave_an_unfinished_run(Path("outputs"))
    if words[1:2] == ["explain-log"]:
        leave_the_log_of_a_failed_run(Path("outputs"))
    if words[1:2] == ["setup"]:  # installs gigabytes, which make test-verl does
        with contextlib.suppress(SystemExit):
            assert main([*words[1:], "--check"]) in (0, 2)
        assert re.search(r"is not there yet|no NVIDIA GPU|all there", "".join(capsys.readouterr()))
        return
    if words[1:2] == ["plan"]:  # tests/grpo/test_plan_command.py has one with its probe
        assert main([*words[1:], "--no_probe"]) == 0
        return
    if words[1:2] == ["serve-reward"]:  # answers until it is stopped; tests/reward_funcs/test_server.py runs it
        return
    if words[1:2] in (["chat"], ["eval"]):  # tests/embedded/test_sft.py and tests/grpo/test_eval_command.py have models
        assert main(words[1:]) == 2
        assert "no such folder" in capsys.readouterr().err
        return
    if words[1:2] == ["export"]:  # make test-verl exports a real checkpoint
        assert main(words[1:]) == 2
        assert "global_step_20: no such checkpoint" in capsys.readouterr().err
        return
    if "reward_funcs/prompts/think_answer.txt" in words:  # as seen from the checkout
        words = [str(REPO / word) if word.startswith("reward_funcs/") else word for word in words]
    if "--nnodes" in words:  # enough for a step on all machines
        rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": f"{n + 1}", "data_source": "math"} for n in range(640)]
        Path("prompts.json").write_text(json.dumps(rows))
    if "./tiny-model" in words:
        make_a_model_folder(Path("tiny-model"))
    if "--n_gpus" in words and "--engine" not in words:
        words += ["--engine", "verl"]  # what auto takes where there are GPUs
    before = sorted(os.listdir())
    at_once = words[1:2] in (["data"], ["check"], ["score"], ["explain-log"], ["convert-config"])
    answers_at_once = at_once or "--help" in words or "list" in words or "--dry_run" in words
    assert main([*words[1:], *([] if answers_at_once else ["--dry_run"])]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    if "verl" in words:
        assert Path("outputs/launch.sh").is_file()
    elif words[1:2] != ["data"] and "--write" not in words and "--clean" not in words:
        assert sorted(os.listdir()) == before  # nothing is left behind
    if "verl" not in words and "my.yaml" not in words:
        unused = out.partition("No effect on the embedded engine\n")[2].partition("\n\n")[0]
        assert (
            re.findall(r"^.*(?:flag --\w+|override|env \w+)$", unused, re.MULTILINE) == []
        )  # advice that does nothing


@pytest.mark.parametrize(("english", "chinese"), [(p, p.replace(".md", ".zh.md")) for p in PAGES if ".zh" not in p])
def test_the_chinese_page_holds_the_same_commands_and_data_in_the_same_order(english: str, chinese: str) -> None:
    """S2-44"""
    if chinese not in PAGES:
        # Its Chinese readers are told that it is English only.
        assert f"]({english})" in text_of("README.zh.md")
        return
    assert commands(chinese) == commands(english)
    as_they_are = ("json", "yaml", "csv")  # and Python that is no file; the files may have Chinese docstrings
    data = [
        [b for b in blocks(page) if b.language in as_they_are or (b.language, b.name) == ("python", None)]
        for page in (english, chinese)
    ]
    assert data[0] == data[1]
    assert f"]({Path(chinese).name})" in text_of(english)
    assert f"]({Path(english).name})" in text_of(chinese)
    assert chinese == "README.zh.md" or f"]({chinese})" in text_of("README.zh.md")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_parameter_tables_are_those_of_the_configuration(lang: str) -> None:
    page = readme_tables.PAGES[lang].read_text(encoding="utf-8")
    assert readme_tables.filled(page, lang) == page, "write them again: python -m tests.readme_tables"


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("ROLLOUT_N", "5"),  # S2-12
        ("NORM_ADV_BY_STD", "true"),  # S2-13
        ("USE_KL_LOSS", "true"),  # S2-14
        ("KL_LOSS_COEF", "0.001"),  # S2-15
        ("KL_LOSS_TYPE", "low_var_kl"),  # S2-16
        ("TRAIN_BATCH_SIZE", "256"),  # S2-17
        ("LEARNING_RATE", "1e-6"),  # S2-18
        ("TOTAL_EPOCHS", "15"),  # S2-19
        ("MAX_RESPONSE_LENGTH", "1024"),  # S2-20
    ],
)
def test_the_first_table_shows_the_nine_parameters_under_their_names_with_their_defaults(
    name: str, default: str
) -> None:
    for lang in ("en", "zh"):
        rows = [row.split(" | ") for row in readme_tables.table("main", lang).splitlines()]
        assert [row[2].split()[0] for row in rows if row[0] == f"| `{name}`"] == [f"`{default}`"]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    """S2-43: and DrGRPO's to its own paper"""
    for text, target in links(page):
        if "DrGRPO" in text or "2503.20783" in text:
            assert target in (
                "https://arxiv.org/abs/2503.20783",
                *("docs/algorithms.md#drgrpo", "docs/algorithms.zh.md#drgrpo"),
            )
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (REPO / page).parent / path if path else REPO / page
        assert found.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(found.resolve().relative_to(REPO).as_posix()), f"{page}: {target}"
        if found.suffix == ".py" and text.startswith("`"):
            assert re.search(rf"^ *(def|class) {text.strip('`')}\b", found.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_flag_and_key_that_is_named_exists(page: str) -> None:
    rooms = {entry.name for entry in REPO.iterdir() if not entry.name.startswith("outputs")}
    spans = code_spans(page) + [line for block in blocks(page) if block.language == "bash" for line in [block.text]]
    known_keys = {*defaults(), *groups(), *verl_keys(), *coming_from_page.foreign_names()}
    known_keys |= {key[: dot.start()] for key in verl_keys() for dot in re.finditer(r"\.", key)}
    for span in spans:
        for path in re.findall(r"(?<![\w./-])(?:\./)?([\w.-]+/[\w./-]*|[\w-]+\.sh)(?![\w*])", span):
            if path.split("/")[0] in rooms:
                assert (REPO / path).exists(), f"{page}: {path}"
        for flag in re.findall(r"(?<![\w-])--([a-z][a-z_]+)", span):
            assert flag in by_spelling() or flag in OTHER_FLAGS, f"{page}: --{flag}"
        for key in re.findall(  # `+key` is one that verl does not list
            r"(?<![\w./+-])(?:data|actor_rollout_ref|algorithm|reward|trainer|launcher)\.[\w.]+", span
        ):
            if not key.endswith((".md", ".py", ".json", ".csv", ".parquet")):
                assert key in known_keys, f"{page}: {key}"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_reward_of_the_readme_passes_its_rehearsal_on_the_data_of_the_readme(page: str, page_files: Path) -> None:
    """S2-02, S2-06, S2-22: no right answer scores less than 1, and an empty one scores nothing"""
    records = read_records("prompts.json")
    samples = [Sample(record.data_source, record.ground_truth, record.ground_truth, {}) for record in records]
    assert short_check(load_reward("./my_reward.py"), samples) == []
    assert short_check(load_reward(None), samples) == []
    long_way = "thinking " * 30 + "\n42"
    got = load_reward("./my_reward.py")("math_reasoning", long_way, "42", {})
    assert (got.score, got.parts) == (0.8, {"right": 1.0, "short": 0.0})


@pytest.mark.parametrize("page", ["docs/rewards.md", "docs/data.md", "docs/data.zh.md"])
def test_the_rewards_of_the_pages_score_as_the_pages_say(page: str, page_files: Path) -> None:
    if page == "docs/rewards.md":
        reward, brief = load_reward("my_reward.py"), load_reward("./my_reward.py:brief")
        assert [reward("math", text, "42").score for text in (r"\boxed{42}", r"\boxed{7}", "42")] == [1.0, 0.2, 0.0]
        assert brief("math", " 42\n", "42").score == 1.0
        warned = short_check(reward, [Sample("math", "42", "42", {})])
        assert ["gives a bare right answer 0, and 1 to \\boxed{42}" in note for note in warned] == [True]
    else:
        reward = load_reward("short_reward.py")
        assert [reward("style", "x" * n, "").score for n in (0, 50, 200)] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(("page", "most"), [("docs/rewards.md", 17), ("docs/rewards.zh.md", 10)])
def test_the_scores_in_the_table_of_rewards_are_those_of_the_shipped_reward(page: str, most: int) -> None:
    """S2-23, S2-24, S2-26, S2-27"""
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| `(.+?)` \| ([01]\.0) \|$", prose(page), re.MULTILINE)
    assert len(rows) == most
    assert [(row, compute_score(*row[:3])) for row in rows] == [(row, float(row[3])) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/batches.md", "docs/batches.zh.md"])
def test_the_batches_page_shows_what_its_command_prints(
    page: str, page_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = next(block.text for block in blocks(page) if block.language == "text")
    assert main(shlex.split(commands(page)[0])[1:]) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(("batch", "steps"), [("4", 1868), ("8", 934)])
def test_an_epoch_of_gsm8k_has_the_steps_that_the_batches_page_says(batch: str, steps: int) -> None:
    """S4-02, S4-03, S4-04: 7473 / 4 = 1868.25 and 7473 / 8 = 934.1"""
    line = parse(["--recipe", "gsm8k", "--data", "x", "--rollout_n", "8", "--epochs", "1", "--train_batch_size", batch])
    numbers = arithmetic(resolve(line, {}).settings(), 7473)
    assert (numbers.steps, numbers.responses) == (steps, int(batch) * 8)
    english, chinese = prose("docs/batches.md"), prose("docs/batches.zh.md")
    assert f"{steps:,}" in english
    assert "| 8 prompts, 64 responses | 1 prompt, 8 responses |" in english  # 1 x 8 and n = 8
    assert "| 32 prompts, 256 responses | 4 prompts, 32 responses |" in english  # 8 x 4 and n = 8
    assert f"{steps:,}" in chinese
    assert "| 8 个提示、64 条回答 | 1 个提示、8 条回答 |" in chinese
    assert "| 32 个提示、256 条回答 | 4 个提示、32 条回答 |" in chinese


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_expected_output_has_the_form_of_the_table_at_the_end_of_a_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2-04"""
    monkeypatch.chdir(tmp_path)
    shown = next(block.text for block in blocks(page) if block.language == "text")
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines() if len(line.split(maxsplit=1)) == 2)
    example = {key: lines[word] for key, word in final.EXAMPLE_ROWS}
    Path(lines["state"]).mkdir(parents=True)
    numbers = {"start": 0.0, "sft": 0.4, "final": 0.8}
    summary = {"accuracy": numbers, "reward_mean": numbers, "example": example}
    summary["steps"] = int(lines["state"].rpartition("_")[2])
    result = Result(summary, Path("outputs/checkpoints/final").absolute(), Path("outputs/report.html").absolute())
    config = resolve(parse([]), {}).settings().config()
    run = Run(config=config, origins={}, output_dir=tmp_path, train=None, val=tmp_path, recipe="demo")
    printed = io.StringIO()
    final.show(result, run, Console(file=printed, width=100, soft_wrap=True))

    def without_numbers(text: str) -> list[list[str]]:
        text = re.sub(r"\d\.\d+|@@\w+@@", "#", text)
        return [line.split() for line in text.splitlines() if line.strip()]

    assert without_numbers(shown) == without_numbers(printed.getvalue())


def test_the_algorithm_page_names_all_that_the_drgrpo_recipe_sets() -> None:
    """S2-30, S2-36, S2-43"""
    page = text_of("docs/algorithms.md")
    section = page[page.index("## DrGRPO") : page.index("## Dynamic sampling")]
    assert "2503.20783" in section
    assert [key for key, _ in flatten(read_recipe("drgrpo")) if key not in section] == []


def test_the_pages_answer_the_questions_of_the_requirements() -> None:
    readme, algorithm = text_of("README.md"), text_of("docs/algorithms.md")
    for row in ("| a quick look | 3 |", "| standard | 5 |", "| high quality | 8 |", "| large runs | 10 or more |"):
        assert row in readme  # S2-21
    assert "Liu et al., *Understanding R1-Zero-Like Training: A Critical Perspective*, [arXiv 2503.20783]" in readme
    for word in ("critic", "memory", "samples", "advantage", "suits"):
        assert f"\n| {word} |" in algorithm  # S2-42
    for word in ("Policy gradient", "TRPO", "PPO", "On-policy", "off-policy"):
        assert word in algorithm  # S4-01
    assert "8 / 2 = 4 copies of vLLM" in text_of("docs/gpus.md")  # S2-33
    for word in ("DDP", "ZeRO-2", "ZeRO-3", "FSDP"):
        assert word in text_of("docs/batches.md")  # S4-05


@pytest.mark.slow
def test_the_python_example_trains_on_prompts_made_meanwhile(in_folder: Path) -> None:
    """S1-28"""
    (example,) = (b.text for b in blocks("docs/data.md") if (b.language, b.name) == ("python", None))
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", example], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"2 {Path('api_run').absolute() / 'checkpoints' / 'final'}"
