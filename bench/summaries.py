"""What each stage of recipes/summarize_t5.yaml is worth: ORI, SFT, GRPO, SFT + GRPO on train, validation and test.

    .venv/bin/python bench/summaries.py            # 5 to 15 minutes on two cores
    .venv/bin/python bench/summaries.py --record    # and writes bench/results/summaries.md
    .venv/bin/python bench/summaries.py --seed 1 --set trainer.total_training_steps=20

The recipe trains once as it is, which gives SFT (its reference, checkpoints/sft) and SFT + GRPO; once more from the
same random weights without the warm-up, which gives GRPO alone; ORI is those weights. Each answers greedily the first
256 notes of every file. The scores are ROUGE-L, the mean of ROUGE-1, -2 and -L, and the share of summaries that are the
reference word for word; intervals are 95 % bootstraps over notes, and the gain of GRPO over SFT is paired by note.
Beside them: repeating the note, and its first two sentences.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import torch  # noqa: E402 - after the path
from machine import facts_lines, machine, processors  # noqa: E402 - beside this file
from omegaconf import OmegaConf  # noqa: E402

from data_prep.record import Record  # noqa: E402
from grpo.embedded.checkpoint import write_model  # noqa: E402
from grpo.embedded.choosing import Sampling  # noqa: E402
from grpo.embedded.evaluate import responses_text  # noqa: E402
from grpo.embedded.models import make_policy, open_model, read_tokenizer  # noqa: E402
from grpo.embedded.prompts import as_row  # noqa: E402
from grpo.embedded.rollout import sample  # noqa: E402
from grpo.embedded.talk import open_voice  # noqa: E402
from reward_funcs import Sample  # noqa: E402
from reward_funcs.text_overlap import rouge  # noqa: E402

SPLITS = ("train", "val", "test")
MOST = 32  # tokens of a summary, as in the recipe
Scores = dict[str, list[float]]  # name of a score -> one number for each note


def main() -> None:
    """Train, answer, print, and write it down when asked to."""
    given = options()
    lines = list(facts_lines(machine(given.threads)))
    print("\n".join(lines), flush=True)
    rows = {split: read(split)[: given.notes] for split in SPLITS}
    with tempfile.TemporaryDirectory(prefix="grpo-summaries-") as name:
        folder = Path(given.folder or name)
        said = [train(folder, "SFT + GRPO", [], given)]
        original(folder, given)
        said.append(train(folder, "GRPO", [f"--model={folder / 'ORI'}", "--sft_warmup=0"], given))
        models = {
            "ORI": folder / "ORI",
            "SFT": folder / "SFT + GRPO" / "checkpoints" / "sft",
            "GRPO": folder / "GRPO" / "checkpoints" / "final",
            "SFT + GRPO": folder / "SFT + GRPO" / "checkpoints" / "final",
        }
        found = {name: {split: answers(path, rows[split]) for split in SPLITS} for name, path in models.items()}
    text = [*said, "", *table(found, rows), "", *gains(found, rows["test"])]
    print("\n".join(text))
    if given.record:
        target = REPO / "bench" / "results" / "summaries.md"
        target.write_text("\n".join(["# bench/summaries.py", "", *lines, "", *text, ""]), encoding="utf-8")
        print(f"written: {target}")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--folder", help="where the runs go and stay; those that are finished there are taken")
    parser.add_argument("--notes", type=int, default=256, help="of each file")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the recipe")
    parser.add_argument("--record", action="store_true", help="write bench/results/summaries.md")
    return parser.parse_args()


def read(split: str) -> list[dict[str, str]]:
    """The notes of a shipped file."""
    return json.loads((REPO / "data_prep" / f"meetings_{split}.json").read_text(encoding="utf-8"))


def train(folder: Path, name: str, more: Sequence[str], given: argparse.Namespace) -> str:
    """A run of the recipe as a user starts it; what it took."""
    if (folder / name / "summary.json").is_file():
        summary = json.loads((folder / name / "summary.json").read_text(encoding="utf-8"))
        return f"{name}: {summary['seconds']:.0f} s, trained before"
    words = ["--recipe=summarize_t5", f"--seed={given.seed}", "--device=cpu", "--dtype=float32", *more, *given.set]
    command = [sys.executable, "-m", "grpo", *words, f"--output_dir={folder / name}"]
    environment = os.environ | {"OMP_NUM_THREADS": str(given.threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(REPO)}
    began, before = time.monotonic(), _child_seconds()
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-2000:]}{done.stderr[-4000:]}\n{' '.join(command)}: exit {done.returncode}")
    said = f"{name}: {time.monotonic() - began:.0f} s, {_child_seconds() - before:.0f} s of CPU time"
    print(said, flush=True)
    return said


def _child_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def original(folder: Path, given: argparse.Namespace) -> None:
    """The random weights that the recipe began with, as a model folder: ORI."""
    run = folder / "SFT + GRPO"
    if (folder / "ORI" / "config.json").is_file():
        return
    config = OmegaConf.load(run / "config.yaml")
    tokenizer = read_tokenizer(str(run / "checkpoints" / "sft"))
    model = open_model(config, tokenizer, "scratch")  # type: ignore[arg-type]
    write_model(folder / "ORI", make_policy(model, tokenizer, torch.device("cpu"), torch.float32))


def answers(path: Path, rows: Sequence[dict[str, str]]) -> Scores:
    """How a model's greedy summaries score."""
    voice = open_voice(str(path), template=None, device="cpu", dtype="float32")
    asked = [as_row(Record([{"role": "user", "content": row["prompt"]}], "summary", "", {}), 0) for row in rows]
    prompts = [prompt.ids for row in asked if (prompt := voice.encoder(row)) is not None]
    rollouts = sample(voice.policy, prompts, Sampling(n=1, max_length=MOST, temperature=0.0), seed=0)
    return scores(responses_text(voice.policy, rollouts), rows)


def scores(texts: Sequence[str], rows: Sequence[dict[str, str]]) -> Scores:
    """ROUGE-L, the mean of the three, and whether it is the reference."""
    parts = [rouge(Sample("summary", text, row["ground_truth"], {})) for text, row in zip(texts, rows, strict=True)]
    exact = [float(text.strip() == row["ground_truth"]) for text, row in zip(texts, rows, strict=True)]
    return {"ROUGE-L": [part["rougeL"] for part in parts], "mean": [part["score"] for part in parts], "exact": exact}


def table(found: dict[str, dict[str, Scores]], rows: dict[str, list[dict[str, str]]]) -> list[str]:
    """Markdown: ROUGE-L of every stage on every file, and what needs no model."""
    plain = {
        "the note itself": lambda row: row["prompt"],
        "its first two sentences": lambda row: ". ".join(row["prompt"].split(". ")[:2]),
    }
    for name, text_of in plain.items():
        found = found | {name: {split: scores([text_of(row) for row in rows[split]], rows[split]) for split in SPLITS}}
    lines = ["| ROUGE-L | train | validation | test | test, mean of ROUGE-1, -2, -L | test, word for word |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, by_split in found.items():
        cells = [shown(by_split[split]["ROUGE-L"]) for split in SPLITS]
        cells += [f"{fmean(by_split['test'][score]):.3f}" for score in ("mean", "exact")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def gains(found: dict[str, dict[str, Scores]], rows: list[dict[str, str]]) -> list[str]:
    """ROUGE-L on test notes, SFT + GRPO less another, paired by note."""
    best = found["SFT + GRPO"]["test"]["ROUGE-L"]
    others: dict[str, Any] = {name: found[name]["test"]["ROUGE-L"] for name in ("ORI", "SFT", "GRPO")}
    others["the note itself"] = scores([row["prompt"] for row in rows], rows)["ROUGE-L"]
    return [
        f"SFT + GRPO less {name}: {shown([a - b for a, b in zip(best, other, strict=True)])}"
        for name, other in others.items()
    ]


def shown(values: Sequence[float]) -> str:
    """The mean and its 95 % bootstrap interval."""
    rng = random.Random(0)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(2000))
    return f"{fmean(values):.3f} ({means[49]:.3f} to {means[1949]:.3f})"


if __name__ == "__main__":
    main()
