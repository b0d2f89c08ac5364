"""Our answer checking beside math-verify alone, verl's graders, TRL's accuracy_reward: verdicts and answers a second.

    .venv/bin/python bench/rewards.py                       # 3 to 5 minutes
    .venv/bin/python bench/rewards.py --verl PATH/verl       # with verl's, from its package folder
    .venv/bin/python bench/rewards.py --fuzz 2000 --record   # fewer fuzzed strings; writes bench/results/rewards.md

Pairs: tests/reward_funcs/math_pairs.py, decided by hand by us, so that our own column says only that tests pass; the
peers' columns say what a training run would have been paid. TRL is measured where it is installed. verl's prime_math is
left out: it evaluates the answer as Python (CVE-2026-6878).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from machine import facts_lines, machine  # noqa: E402 - beside this file

from reward_funcs import Sample, compute_score, load_reward, score_batch, symbolic  # noqa: E402
from reward_funcs.math_answer import announced_answer  # noqa: E402
from reward_funcs.scoring import Scoring  # noqa: E402
from tests.reward_funcs.math_pairs import CASES  # noqa: E402
from tests.reward_funcs.test_fuzz import FRAGMENTS  # noqa: E402

Grader = Callable[[str, str], float]


def main() -> None:
    """Measure and print, and write it down when asked to."""
    given = options()
    logging.disable(logging.WARNING)  # peers log every failure
    lines = list(facts_lines(machine(1)))
    graders = {"ours": lambda response, truth: compute_score("math", response, truth)} | peers(given.verl)
    lines += ["", "| grader | wrong accepts | wrong rejects | exceptions | slowest pair | plain answers a second |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    compute_score("math", "x+1", "1+x")  # starts the process that compares
    for name, grader in graders.items():
        lines.append(f"| {name} | {' | '.join(verdicts(grader))} | {speed(grader):,.0f} |")
        print(lines[-1], flush=True)
    for part in (real_answers(graders), fuzz(given.fuzz), workers()):
        lines += ["", *part]
        print("\n".join(part), flush=True)
    if given.record:
        target = REPO / "bench" / "results" / "rewards.md"
        target.write_text("# Rewards, measured\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
        print(f"written: {target}")


def verdicts(grader: Grader) -> list[str]:
    """How a grader judges our pairs: cells of the table."""
    accepts = rejects = exceptions = count = 0
    slowest = 0.0
    for pairs in CASES.values():
        for response, truth, right in pairs:
            count += 1
            began = time.perf_counter()
            try:
                got = float(grader(response, truth) >= 1)
            except Exception:  # noqa: BLE001 - a peer's, counted
                exceptions, got = exceptions + 1, 0.0
            slowest = max(slowest, time.perf_counter() - began)
            accepts += got > right
            rejects += got < right
    return [f"{accepts} of {count}", str(rejects), str(exceptions), f"{slowest:.2f} s"]


def speed(grader: Grader) -> float:
    """Plain integers in a box, right and wrong: answers a second of processor time."""
    rng = random.Random(0)
    pairs = [(rf"So it is \boxed{{{rng.randint(1, 10**6)}}}.", str(rng.randint(1, 10**6))) for _ in range(20_000)]
    began, done = time.process_time(), 0
    for response, truth in pairs:
        grader(response, truth)
        done += 1
        if time.process_time() - began > 2:
            break
    return done / (time.process_time() - began)


def real_answers(graders: dict[str, Grader]) -> list[str]:
    """Agreement with the published verdicts on 2,400 answers of real models to GSM8K."""
    file = REPO.parent / "shared" / "data" / "gsm8k_model_answers.jsonl"
    if not file.is_file():
        return [f"no {file}: the 2,400 real answers are left out"]
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    answers = [
        (row[model]["solution"], announced_answer(row["ground_truth"]), float(row[model]["is_correct"]))
        for row in rows
        for model in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    ]
    lines = []
    for name, grader in graders.items():
        began = time.perf_counter()
        agreed = sum(float(grader(text, truth) >= 1) == right for text, truth, right in answers)
        took = time.perf_counter() - began
        lines.append(f"- {name}: agrees on {agreed:,} of {len(answers):,} real GSM8K answers, {took:.1f} s")
    return lines


def fuzz(count: int) -> list[str]:
    """Ours on strings made of what answers are made of: exceptions, and how long the slowest took."""
    rng = random.Random(1)
    seconds, failed = [], 0
    symbolic._verdicts.clear()
    for i in range(count):
        response = "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 40)))
        if i % 100 == 0:
            response = rng.choice(FRAGMENTS) * rng.randint(1, 5_000)
        truth = "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 8)))
        began = time.perf_counter()
        try:
            compute_score("math", response, truth)
        except Exception as error:  # noqa: BLE001 - there must be none
            failed += 1
            print(f"{error!r} on {response!r} and {truth!r}")
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    p99 = seconds[int(len(seconds) * 0.99)] * 1000
    return [f"- ours on {count:,} fuzzed strings: {failed} exceptions, p99 {p99:.1f} ms, slowest {seconds[-1]:.2f} s"]


def workers() -> list[str]:
    """What worker processes cost, and what hanging calls cost a step."""
    batch = [Sample("math", rf"\boxed{{{i}}}", str(i)) for i in range(1280)]
    with Scoring(load_reward(None), workers=2, timeout=60) as scoring:
        scoring.attempts(batch)
        began = time.perf_counter()
        scoring.attempts(batch)
        away = time.perf_counter() - began
    began = time.perf_counter()
    score_batch(load_reward(None), batch, max_errors=0)
    here = time.perf_counter() - began
    return [f"- 1,280 plain answers: {here * 1000:.0f} ms in this process, {away * 1000:.0f} ms in 2 worker processes"]


def peers(verl: Path | None) -> dict[str, Grader]:
    """The graders that are installed."""
    found: dict[str, Grader] = {}
    if symbolic.available():
        from math_verify import parse, verify

        found["math-verify alone, gold in a box"] = lambda response, truth: float(
            verify(
                parse(rf"\boxed{{{truth}}}", parsing_timeout=3), parse(response, parsing_timeout=3), timeout_seconds=3
            )
        )
    if verl is not None:
        found |= _verl(verl / "utils" / "reward_score")
    if importlib.util.find_spec("trl"):
        from trl.rewards import accuracy_reward

        found["TRL accuracy_reward"] = lambda response, truth: (
            accuracy_reward([[{"content": response}]], [rf"\boxed{{{truth}}}"])[0] or 0.0
        )
    return found


def _verl(folder: Path) -> dict[str, Grader]:
    gsm8k, math_reward, math_dapo = (_module(folder / f"{n}.py") for n in ("gsm8k", "math_reward", "math_dapo"))
    found: dict[str, Grader] = {
        "verl gsm8k, strict": lambda response, truth: gsm8k.compute_score(response, truth),
        "verl gsm8k, flexible": lambda response, truth: gsm8k.compute_score(response, truth, method="flexible"),
        "verl math_reward": lambda response, truth: math_reward.compute_score(response, truth),
        "verl math_dapo": lambda response, truth: float(math_dapo.compute_score(response, truth)["acc"]),
    }
    if symbolic.available():
        grade = _module(
            folder / "math_verify.py"
        )._verify_in_subprocess  # here in the main thread, where its alarm works
        found["verl math_verify"] = lambda response, truth: grade(rf"\boxed{{{truth}}}", response)
    return found


def _module(file: Path) -> Any:
    """One file of verl, without the imports of its package."""
    spec = importlib.util.spec_from_file_location(f"verl_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        sys.exit(f"{file}: no such file; --verl takes the folder of the package, .../site-packages/verl")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=Path, help="folder of an installed verl")
    parser.add_argument("--fuzz", type=int, default=100_000, help="strings [100,000]")
    parser.add_argument("--record", action="store_true", help="write bench/results/rewards.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
