"""Our embedded engine beside TRL, verl and vLLM on this machine, and all of them beside what the machine could do.

    .venv/bin/python bench/compare.py                                  # small and ragged: some 10 minutes on two cores
    .venv/bin/python bench/compare.py --shapes small,ragged,half-b,long --record     # writes bench/results/compare.*
    .venv/bin/python bench/compare.py --shapes small --peers trl-compile,trl-static

The shapes are in bench/shapes.py. Every side gets the same weights, prompts, reward function, threads and number of
steps, in a process and an environment of its own, in turns; the tokens that each read and wrote are counted and
compared, and so is what one update does from equal weights and responses (bench/same_update.py). Where a policy ends
its responses as it likes, no two sides write equally many, and seconds are given for 1,000 response tokens. The
roofline (bench/roofline.py) is measured in the same run. Linux and macOS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare_table
import same_update
import sides
from machine import facts_lines, machine, processors
from shapes import SHAPES, Shape

BENCH = Path(__file__).resolve().parent
PEERS = "trl-plain,trl-fast,verl,vllm"
ONCE = {"half-b": ("verl", "vllm", "trl-plain"), "long": ("trl-plain",)}  # sides that take many minutes of these shapes


def main() -> None:
    """Measure, print the tables, and write them down when asked to."""
    given = options()
    facts = machine(given.threads)
    for line in facts_lines(facts):
        print(line, flush=True)
    record: dict[str, Any] = {"machine": facts, "set": given.set, "shapes": {}}
    for name in given.shapes:
        record["shapes"][name] = measure(name, SHAPES[name], given)
        print("\n" + compare_table.table(name, record["shapes"][name]) + "\n", flush=True)
    if given.record:
        target = BENCH / "results" / "compare.json"
        target.parent.mkdir(exist_ok=True)
        old = json.loads(target.read_text(encoding="utf-8"))["shapes"] if target.exists() and given.add else {}
        record["shapes"] = old | {name: part | {"machine": facts} for name, part in record["shapes"].items()}
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        compare_table.write(target)


def measure(name: str, shape: Shape, given: argparse.Namespace) -> dict[str, Any]:
    """All sides of a shape, in turns."""
    steps = shape.warmup + shape.steps
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as place:
        folder = Path(place)
        made = [sys.executable, str(BENCH / "shapes.py"), str(folder), name, str(steps), str(given.seed)]
        model = json.loads(subprocess.run(made, check=True, stdout=subprocess.PIPE, text=True).stdout)
        job = sides.Job(folder, shape, steps, given.threads, given.seed, tuple(given.set), given.dtype)
        runs: dict[str, list[dict[str, Any]]] = {}
        for number in range(given.rounds):
            for side, run in wanted(name, given).items():
                print(f"{name}, round {number + 1} of {given.rounds}: {side} ...", end=" ", flush=True)
                scratch = folder / f"{side}-{number}"
                scratch.mkdir()
                found = run(job, scratch)
                runs.setdefault(side, []).append(found)
                print(f"{sides.seconds_said(found, shape.warmup)}", flush=True)
        roof = roofline(shape, runs["ours"][0], model["vocabulary"], given.threads)
    found = {"shape": vars(shape), "model": model, "runs": runs, "roofline": roof, "rounds": given.rounds}
    if any(peer.startswith("trl-") for peer in runs):
        print(f"{name}: one update by both ...", end=" ", flush=True)
        found["update"] = same_update.compare(name, given.threads)
        print(f"cosine {found['update']['cosine']:.7f}", flush=True)
    return found


def wanted(name: str, given: argparse.Namespace) -> dict[str, Callable[[sides.Job, Path], dict[str, Any]]]:
    """Which sides to run: ours, the peers asked for, and our sampling alone beside vLLM's."""
    peers = [peer for peer in given.peers if given.all or peer not in ONCE.get(name, ())]
    found: dict[str, Callable[[sides.Job, Path], dict[str, Any]]] = {"ours": sides.ours}
    for peer in peers:
        if peer.startswith("trl-"):
            found[peer] = lambda job, scratch, peer=peer: sides.trl(job, scratch, peer.removeprefix("trl-"))
        elif peer == "verl":
            found[peer] = sides.verl
        elif peer == "vllm":
            found |= {"our sampling": sides.our_sampling, "vllm": sides.vllm}
    return found


def roofline(shape: Shape, run: dict[str, Any], vocabulary: int, threads: int) -> dict[str, Any]:
    """Least work of our last step, and the least time that it can take here; in a process with nothing else in it."""
    code = (
        "import json, sys; from dataclasses import asdict; from roofline import *; from shapes import SHAPES, Shape\n"
        "given = json.load(sys.stdin); shape = Shape(**given['shape'])\n"
        "work = work_of(shape, given['prompts'], given['responses'], given['vocabulary'])\n"
        "tokens = sum(given['prompts']) + sum(given['responses'])\n"
        "here = measured(given['threads'], shape, tokens, given['vocabulary'])\n"
        "print(json.dumps({'work': asdict(work), 'machine': asdict(here), 'seconds': least_seconds(work, here)}))"
    )
    given = {"shape": vars(shape), "vocabulary": vocabulary, "threads": threads} | run["last_step"]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=BENCH,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="small,ragged", help=f"of {', '.join(SHAPES)}")
    parser.add_argument(
        "--peers", default=PEERS, help="trl-NAME of SETTINGS in bench/peer_trl.py, verl, vllm; '' = none"
    )
    parser.add_argument("--all", action="store_true", help="the peers that take many minutes of a large shape too")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each side, in turns")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--dtype", default="float32", help="of our side; TRL and verl compute in fp32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for our engine")
    parser.add_argument("--record", action="store_true", help="write bench/results/compare.{json,md,svg}")
    parser.add_argument("--add", action="store_true", help="keep what is recorded of other shapes")
    given = parser.parse_args()
    given.shapes = given.shapes.split(",")
    given.peers = given.peers.split(",") if given.peers else []
    if unknown := set(given.shapes) - set(SHAPES):
        parser.error(f"--shapes: no {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    if given.rounds < 1:
        parser.error("--rounds from 1")
    return given


if __name__ == "__main__":
    main()
