"""How the embedded engine's step grows: response tokens/s over batch, response length and processes, 1x to 16x each.

    .venv/bin/python bench/scaling.py              # a few minutes
    .venv/bin/python bench/scaling.py --record     # and writes bench/results/scaling.{json,md,svg}
    .venv/bin/python bench/scaling.py --device cuda --steps 8

Each point is a run of the product by itself: the model of the shape small (3.2M weights), fp32, KL on, prompts of 64
characters, responses that may not end early; the seconds are those of whole steps (sampling, reward, reference
log-probs, update), as metrics.jsonl has them. Cost is linear where seconds per response token do not rise from 1x to
16x. Processes share one batch and the same number of threads; as many are tried as the machine has places for. What
one machine's processors are shared by cannot become faster by more processes: there the line shows what they cost.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from machine import facts_lines, machine, processors
from shapes import SHAPES, Shape, write
from sides import Job, ours

BENCH = Path(__file__).resolve().parent
TIMES = (1, 2, 4, 8, 16)
BUSY = 0.05  # share of the machine that others may use before the numbers are called disturbed
# Sweep -> what one point is called, and its shape: prompts x responses x tokens, times the factor.
SWEEPS = {
    "batch": ("prompts a step", lambda times: (2 * times, 8, 16)),
    "length": ("tokens of a response", lambda times: (4, 8, 16 * times)),
    "processes": ("processes", lambda times: (16, 8, 32)),
}


def main() -> None:
    """Measure, print the table, and write it down when asked to."""
    given = options()
    sys.path.insert(0, str(BENCH.parent))
    from grpo.embedded.processes import places

    most, of_what = places(given.device)
    facts = machine(given.threads) | {"device": given.device, "places": f"{most} {of_what}"}
    for line in facts_lines(facts):
        print(line, flush=True)
    points = {name: measure(given, name, most) for name in given.only}
    record = {"machine": facts, "steps": given.steps, "warmup": 1, "points": points}
    text = table(record)
    print("\n" + text)
    if given.record:
        results = BENCH / "results"
        results.mkdir(exist_ok=True)
        (results / "scaling.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        lines = ["# bench/scaling.py", "", *facts_lines(facts), "", "![scaling](scaling.svg)", "", text, ""]
        (results / "scaling.md").write_text("\n".join(lines), encoding="utf-8")
        draw(results / "scaling.svg", points)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write bench/results/scaling.{json,md,svg}")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each point, after one that warms up")
    parser.add_argument("--most", type=int, default=TIMES[-1], help="the largest factor")
    parser.add_argument("--only", nargs="+", default=list(SWEEPS), choices=list(SWEEPS))
    parser.add_argument("--threads", type=int, default=processors(), help="of all processes together")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def measure(given: argparse.Namespace, sweep: str, most: int) -> list[dict[str, Any]]:
    """The points of one sweep."""
    found = []
    for times in TIMES:
        count = times if sweep == "processes" else 1
        if times > given.most or count > most:
            break
        prompts, n, tokens = SWEEPS[sweep][1](times)
        shape = replace(SHAPES["small"], prompts=prompts, n=n, tokens=tokens)
        run = _run(given, shape, count)
        seconds = median(run["seconds"][1:])
        point = {"times": times, "processes": count, "prompts": prompts, "n": n, "tokens": tokens, "seconds": seconds}
        point |= {"response_tokens": median(run["response_tokens"]), "all_seconds": run["seconds"]}
        point |= {"tokens_per_second": point["response_tokens"] / seconds, "others": run["others"]}
        found.append(point)
        print(
            f"{sweep} {times}x: {seconds:.3f} s a step, {point['tokens_per_second']:,.0f} response tokens/s", flush=True
        )
    return found


def _run(given: argparse.Namespace, shape: Shape, count: int) -> dict[str, Any]:
    steps = 1 + given.steps
    overrides = (f"trainer.n_gpus_per_node={count}", f"trainer.device={given.device}")
    with tempfile.TemporaryDirectory(prefix="grpo-scaling-") as name:
        folder = Path(name)
        write(folder, shape, steps=steps, seed=given.seed)
        scratch = folder / "run"
        scratch.mkdir()
        threads = max(1, given.threads // count)
        return ours(Job(folder, shape, steps, threads, given.seed, overrides, "float32"), scratch)


def growth(points: list[dict[str, Any]]) -> str:
    """What a response token costs at the last point, as a multiple of the first one's."""
    first, last = points[0], points[-1]
    return f"{first['tokens_per_second'] / last['tokens_per_second']:.2f}"


def table(record: dict[str, Any]) -> str:
    """Markdown: every point, and what the sweeps say."""
    lines = [
        "| sweep | | shape | seconds a step | response tokens/s | to 1x |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for sweep, points in record["points"].items():
        for point in points:
            speed = point["tokens_per_second"]
            shape = f"{point['prompts']} x {point['n']} x {point['tokens']}, {point['processes']} process(es)"
            row = (sweep, f"{point['times']}x", shape, f"{point['seconds']:.3f}", f"{speed:,.0f}")
            lines.append("| " + " | ".join((*row, f"{speed / points[0]['tokens_per_second']:.2f}")) + " |")
    said = [
        f"A response token costs {growth(points)} times as much at {points[-1]['times']}x the {what} as at 1x."
        for sweep, (what, _) in SWEEPS.items()
        if sweep != "processes" and len(points := record["points"].get(sweep, [])) > 1
    ]
    shared = record["points"].get("processes", [])
    if len(shared) > 1:
        times = shared[-1]["tokens_per_second"] / shared[0]["tokens_per_second"]
        said.append(
            f"{shared[-1]['processes']} processes with {record['machine']['threads']} threads together make "
            f"{times:.2f} times the tokens/s of one process with as many."
        )
    busiest = max((p["others"] or 0.0 for points in record["points"].values() for p in points), default=0.0)
    if busiest > BUSY:
        said.append(f"DISTURBED: others used up to {busiest:.0%} of the machine.")
    return "\n".join(lines) + "\n\n" + "\n\n".join(said)


def draw(path: Path, points: dict[str, list[dict[str, Any]]]) -> None:
    """Write the SVG: response tokens/s over each sweep's factor; level lines mean linear cost."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "grpo", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (sweep, found) in zip(figure.subplots(1, len(points), squeeze=False)[0], points.items(), strict=True):
            what, shape = SWEEPS[sweep]
            prompts, n, tokens = shape(1)
            places = range(len(found))
            axes.plot(places, [point["tokens_per_second"] for point in found], "o-", color="#1f5fa8")
            axes.set_xticks(places, [f"{point['times']}x" for point in found])
            axes.set(title=f"{what}; 1x = {prompts} x {n} x {tokens}", ylim=(0, None))
            axes.grid(color="#dddddd", linewidth=0.5)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("response tokens per second")
        figure.savefig(path, format="svg", metadata=dict.fromkeys(("Date", "Creator")))
    text = path.read_text(encoding="utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
