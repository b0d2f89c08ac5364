"""`./train.sh eval --model A --model B --data test.json -k 8`: models beside each other on the same prompts.

Accuracy, pass@k, maj@k, reward and its parts, lengths, each with an interval, and the differences to the first model.
Takes the words of a training command beside its own. Leaves out the models (grpo/embedded/answers.py).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo import rules
from grpo.commands.eval_folder import Folder, fingerprint
from grpo.commands.training_words import Asked, read
from grpo.config import ConfigError, Settings
from grpo.engine import Interrupted
from grpo.help import language
from grpo.launch import REWARD, REWARDS, columns_of
from grpo.metrics.safe_text import visible
from grpo.start_from import weights_in

if TYPE_CHECKING:
    from data_prep.record import Record
    from grpo.metrics.live import Progress
    from reward_funcs import Combined, Reward
    from reward_funcs.scoring import Scoring

NAME = "./train.sh eval"
ABOUT = "Compare models on the same prompts."
FOLDER = "outputs_eval"
LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
RESPONSE = "data.max_response_length"
# What a run's config.yaml says about its training; the models of an evaluation are named by --model.
NO_TRAINING = (
    *("launcher.sft.steps=0", "launcher.init_from=null", "launcher.qlora=null"),
    *("actor_rollout_ref.model.lora_rank=0", "actor_rollout_ref.model.lora_adapter_path=null"),
)


def main(argv: list[str]) -> int:
    """Run the command. Raises the rooms' errors."""
    from grpo.commands.eval_page import write_page
    from grpo.commands.eval_table import as_json, as_text
    from grpo.embedded.engine import EmbeddedEngine

    began = time.perf_counter()
    asked = read("eval", _overrides_first(argv), ABOUT, _flags, also=_train_words)
    own, settings = asked.own, asked.settings
    models = _models(own)
    _check(own, asked)
    files = {name: _records(name, asked) for name in own.data}
    temperature, reward = _temperature(own), asked.reward()
    folder = Folder(own.to, fingerprint(asked, models, temperature), list(models), own.k)
    with folder, _progress(sum(map(len, files.values())), own.json) as progress:
        for note in folder.notes:
            progress.note(note)
        try:
            EmbeddedEngine().answer(
                _exam(asked, models, files, temperature),
                open_scoring=_scoring(reward, settings),
                known=folder.known,
                take=folder.take,
                progress=progress,
            )
        except Interrupted as stop:
            raise Interrupted(
                f"{stop}: {folder.count:,} responses stay in {folder.place}; the same command goes on"
            ) from None
    from grpo.commands.eval_numbers import groups_of

    groups = groups_of(folder.lines, list(models), k=own.k, pass_at=own.pass_at, seed=settings["launcher.seed"])
    told = {
        "command": shlex.join(["./train.sh", "eval", *argv]),
        "models": models,
        "k": own.k,
        "temperature": temperature,
        "pass_at": own.pass_at,
        "seed": settings["launcher.seed"],
        "reward": reward.place,
        "seconds": round(time.perf_counter() - began, 1),
    }
    page = write_page(folder.folder, told, groups, folder.lines, language=language(os.environ))
    results = as_json(told, groups)
    folder.finish(results)
    print(results if own.json else visible(as_text(told, groups)))
    if not own.json:
        print(f"\nresponses side by side  {page}\nresponses  {folder.folder / 'completions.jsonl'}")
    return 0


def _train_words(own: argparse.Namespace) -> list[str]:
    """One file named as data: without any, the demo's settings would be taken."""
    if not own.data:
        raise ConfigError(f"{NAME}: --data FILE names the prompts to answer; see {NAME} --help")
    return [f"--data={own.data[0]}", *NO_TRAINING]


def _overrides_first(argv: list[str]) -> list[str]:
    """`--data a.json b.json key=value`: an override is no file. Their order among flags means nothing."""
    overrides = [word for word in argv if not word.startswith("-") and "=" in word and not Path(word).exists()]
    return [*overrides, *(word for word in argv if word not in overrides)]


def _models(own: argparse.Namespace) -> dict[str, str]:
    """Label -> folder or Hub id."""
    named = own.model or [os.path.join(".", os.environ.get("OUTPUT_DIR", "").strip() or "outputs")]  # no Hub id
    if len(named) > len(LABELS):
        raise ConfigError(f"{NAME}: {len(named)} models; at most {len(LABELS)} are compared at once")
    return {label: str(weights_in(name, f"--model {name}")) for label, name in zip(LABELS, named, strict=False)}


def _check(own: argparse.Namespace, asked: Asked) -> None:
    """Refuse what cannot be asked. Raises ConfigError."""
    if own.k < 1:
        raise ConfigError(f"{NAME}: -k {own.k} must be at least 1: responses to each prompt")
    if own.temperature is not None and own.temperature < 0:
        raise ConfigError(f"{NAME}: --temperature {own.temperature:g} must be 0 or more; 0 takes the likeliest token")
    if own.k > 1 and own.temperature == 0:
        raise ConfigError(
            f"{NAME}: -k {own.k} responses at --temperature 0 would all be the same; leave out one of them"
        )
    twice = {name for name in own.data if own.data.count(name) > 1}
    if twice:
        raise ConfigError(f"{NAME}: --data {min(twice)} is named twice")
    if asked.settings["launcher.engine"] == "verl":
        raise ConfigError(f"{asked.settings.said('launcher.engine')}: eval runs on the embedded engine; leave it out")
    rules.check(asked.settings)


def _temperature(own: argparse.Namespace) -> float:
    return float(own.temperature if own.temperature is not None else own.k > 1)


def _records(name: str, asked: Asked) -> list[Record]:
    """The prompts of a file; raises DataError, for a data_source without a reward too."""
    from data_prep.records import check_sources, read_records
    from reward_funcs import KNOWN_SOURCES

    records = read_records(name, **columns_of(asked.settings))
    named = [reward.partition(":")[0] for reward in asked.settings[REWARDS]]
    if asked.settings[REWARD] is None and (not named or "accuracy" in named):
        check_sources(records, KNOWN_SOURCES, name=name)
    return records


def _exam(asked: Asked, models: dict[str, str], files: dict[str, list[Record]], temperature: float) -> dict[str, Any]:
    """The fields of grpo.embedded.answers.Exam."""
    settings, rollout = asked.settings, "actor_rollout_ref.rollout"
    return {
        "models": models,
        "files": files,
        "sampling": {
            "n": asked.own.k,
            "max_length": settings[RESPONSE],
            "temperature": temperature,
            "top_p": settings[f"{rollout}.top_p"],
            "top_k": settings[f"{rollout}.top_k"],
            "repetition_penalty": settings["launcher.repetition_penalty"],
            "min_length": settings["launcher.min_response_length"],
        },
        "max_prompt_length": settings["data.max_prompt_length"],
        "truncation": "filter" if settings["data.filter_overlong_prompts"] else settings["data.truncation"],
        "fixed_length": settings.by_user(RESPONSE),
        "seed": settings["launcher.seed"],
        "template": settings["actor_rollout_ref.model.custom_chat_template"],
        "device": settings["trainer.device"],
        "dtype": settings["launcher.dtype"],
        "trust": settings["actor_rollout_ref.model.trust_remote_code"],
        "max_rows": max(asked.own.k, settings[f"{rollout}.max_num_seqs"]),
        "max_errors": settings["launcher.max_reward_errors"],
    }


def _scoring(reward: Reward | Combined, settings: Settings) -> Callable[[Callable[[], None]], Scoring]:
    """Opens the reward as training calls it, given what to call while it waits."""
    from reward_funcs.scoring import Scoring

    workers = min(settings["reward.num_workers"], os.cpu_count() or 1)
    timeout = settings["launcher.reward.timeout"]
    return lambda wait: Scoring(reward, workers=workers, timeout=timeout, ours_here=True, on_wait=wait)


def _progress(total: int, as_json: bool) -> Progress:
    """On standard error where the results go to standard output as JSON."""
    from grpo.metrics.live import Progress

    if not as_json:
        return Progress(total)
    from rich.console import Console

    return Progress(total, Console(file=sys.stderr))


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", action="append", metavar="PATH",
        help="a run's folder, checkpoint, model, adapter or Hub id; again for each more, all compared with the first",
    )  # fmt: skip
    parser.add_argument(
        "--data",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="prompts to answer; FILE#500 = the first 500",
    )
    parser.add_argument("-k", type=int, default=1, metavar="N", help="[1] responses to each prompt")
    parser.add_argument("--temperature", type=float, metavar="T", help="[0 for one response, 1 for several]")
    parser.add_argument(
        "--pass_at", type=float, default=1.0, metavar="REWARD", help="[1] from which reward on a response is right"
    )
    parser.add_argument("--to", type=Path, default=Path(FOLDER), metavar="DIR", help=f"where results go [{FOLDER}]")
    parser.add_argument("--json", action="store_true", help="the results as one JSON object")
