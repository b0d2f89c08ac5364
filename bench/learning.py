"""Does each algorithm learn? Two-digit sums, one small model, one supervised start, as many responses for each.

    .venv/bin/python bench/learning.py                             # everything but verl, three seeds: 57 runs
    .venv/bin/python bench/learning.py --only grpo,trl,verl        # GRPO by our engine, by TRL and by verl on the CPU
    .venv/bin/python bench/learning.py --only grpo --seeds 1 --dry_run   # the commands
    .venv/bin/python bench/learning.py --kept --record             # the runs so far, to bench/results/learning.*

The teacher of the start mostly forgets to carry; GRPO finds out that it should not. Accuracy is that of greedy answers
to held-out prompts. Intervals are 95 % by bootstrap over prompts and seeds. Runs that are done are kept in a folder
named by the settings and not done again: --folder says where, remove it to start over. `dapo` samples more in a step,
so what counts is its last look before the others' number of responses. verl's part wants its environment, which
`./train.sh setup --engine verl --device cpu` makes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import learning_result as result
from learning_runs import PEERS, RECIPES, REPO, RunFailed, Shape, command_text, kept_of, prepare, run, task_of
from machine import facts_lines, machine

RESULTS = REPO / "bench" / "results"
ENGINES = {"grpo": "ours", "trl": "TRL", "verl": "verl"}  # the sides that are GRPO, for the curves

NOTES = """\
An algorithm is what `--algorithm NAME` sets, with one optimizer step on each batch; `gspo`, `cispo` and `sapo` make
four, `gdpo` compares accuracy and repetition, `dapo` samples two batches at most for a step and is judged by what it
had at the others' number of responses. Of the recipes below them, `gsm8k`, `swift_r1` and `trl_gsm8k` are run on the
same sums and start, without their system prompt; `deepseek_r1_zero_format` on sums whose start reasons in the asked
form half the time, `paddle_kk` on knights and knaves, two to a puzzle. All with this learning rate and number of
responses."""


def main() -> int:
    """Run what is missing, print the tables, and write them down when asked to. 1 when one fails or does not learn."""
    sys.path.insert(0, str(REPO))
    from grpo.presets import algorithms

    given = options(known := (*algorithms(), *RECIPES, *PEERS))
    shape = Shape(**{name: getattr(given, name) for name in asdict(Shape()) if hasattr(given, name)})
    folder = (given.folder or _cache() / f"learning-{shape.key()}").absolute()
    pairs = [(side, seed) for seed in given.seeds for side in given.only]
    if given.kept:
        pairs = [pair for pair in pairs if kept_of(*pair, folder).exists()]
    if given.dry_run:
        print("\n".join(command_text(side, seed, folder, shape) for side, seed in pairs))
        return 0
    for task in dict.fromkeys(task_of(side) for side, _ in pairs):
        prepare(task, folder, shape)

    def attempt(pair: tuple[str, int]) -> dict[str, Any] | None:
        try:
            return run(*pair, folder, shape)
        except RunFailed as error:
            print(f"{error}\nFAILED: {pair[0]}, seed {pair[1]}; the others go on", flush=True)
            return None

    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [done for done in pool.map(attempt, pairs) if done is not None]
    sides = _by_side(runs, known)
    record = record_of(sides, shape)
    text = page(record)
    print(text)
    if given.record:
        from learning_plot import draw

        RESULTS.mkdir(exist_ok=True)
        ours = [row for row in record["outcomes"] if row["side"] not in PEERS]
        engines = {name: sides[side] for side, name in ENGINES.items() if side in sides}
        draw(RESULTS / "learning.svg", ours, engines, shape.budget)
        (RESULTS / "learning.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "learning.md").write_text(f"# bench/learning.py\n\n{text}\n", encoding="utf-8")
    return int(len(runs) < len(pairs) or not all(row["learns"] for row in record["outcomes"]))


def options(known: tuple[str, ...]) -> argparse.Namespace:
    """The command line. known: the sides that may be named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_names(known), help=f"of {', '.join(known)}; by default all but verl")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, of one thread each")
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--steps", type=int, default=Shape.steps)
    parser.add_argument("--sft_steps", type=int, default=Shape.sft_steps, help="of the start")
    parser.add_argument("--lr", type=float, default=Shape.lr)
    parser.add_argument("--kept", action="store_true", help="run nothing: what is there already, verl's too")
    parser.add_argument("--dry_run", action="store_true", help="print the commands")
    parser.add_argument("--record", action="store_true", help="write bench/results/learning.{json,md,svg}")
    given = parser.parse_args()
    given.only = given.only or [side for side in known if given.kept or side != "verl"]
    return given


def _names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if strange := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(strange)}; there are {', '.join(known)}")
        return names

    return read


def _cache() -> Path:
    return Path(os.environ.get("GRPO_BENCH_CACHE") or "~/.cache/grpo-bench").expanduser()


def _by_side(runs: list[dict[str, Any]], order: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each side, the sides in this order."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in runs:
        found[one["side"]].append(one)
    return {side: sorted(found[side], key=lambda one: one["seed"]) for side in order if side in found}


def record_of(sides: dict[str, list[dict[str, Any]]], shape: Shape) -> dict[str, Any]:
    """Everything that is written down; of the single answers only those before and after."""
    engines = {name: sides[side] for side, name in ENGINES.items() if len(sides.get(side, ())) > 1}
    curves = [
        {name: one[name] for name in ("side", "seed", "commit")}
        | {"responses": [point["responses"] for point in one["points"]]}
        | {"accuracy": [round(point["correct"].count("1") / len(point["correct"]), 4) for point in one["points"]]}
        for runs in sides.values()
        for one in runs
    ]
    return {
        "shape": asdict(shape) | {"budget": shape.budget},
        "machine": machine(int(os.environ.get("OMP_NUM_THREADS", "1"))),
        "outcomes": result.outcomes(sides, shape.budget),
        "agreement": result.agreements(engines, shape.budget),
        "curves": curves,
    }


def page(record: dict[str, Any]) -> str:
    """The same as Markdown."""
    shape, parts = record["shape"], [*facts_lines(record["machine"])[:1]]
    parts.append(
        f"Two-digit sums, {shape['steps']} steps of {shape['prompts']} prompts x {shape['n']} responses "
        f"({shape['budget']:,} in all), learning rate {shape['lr']:g}; greedy accuracy on {shape['val']} held-out "
        "prompts, 95 % intervals over prompts and seeds. It learns when the whole interval of its gain is over "
        f"{result.CLEARLY:g}."
    )
    parts.append(NOTES)
    parts.append(result.table(record["outcomes"]))
    if record["agreement"]:
        parts.append(
            "GRPO by engine, accuracy at the end and mean of the curve, 95 % t-intervals over seeds:\n\n"
            + result.pairs_text(record["agreement"])
        )
    commits = ", ".join(sorted({curve["commit"] for curve in record["curves"]}))
    return "\n\n".join([*parts, f"Commits of the runs: {commits}."])


if __name__ == "__main__":
    sys.exit(main())
