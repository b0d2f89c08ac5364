"""Where a step of the embedded engine spends its time on this CPU: phase by phase, by kind of operation.

    python bench/step_profile.py                        # the shapes small and ragged: two minutes on two cores
    python bench/step_profile.py --shapes half-b --record      # adds it to bench/results/profile.md

A shape (bench/shapes.py) is trained for a few steps by a child of this script. The last step is run under torch's
profiler, whose own cost is what the profiled phase takes beyond the fastest of the steps before; the shares are those
of operations' own CPU time on the main thread, so an operation that uses all threads counts once; so that it is the
main thread which works, groups are not shared out among threads (grpo/embedded/lanes.py).
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shapes
from machine import facts_lines, machine, processors
from memory import command, environment

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent))
RECORD = BENCH / "results" / "profile.json"
PHASES = ("sampling", "reference", "update")
# The first kind whose word is in an operation's name has it.
KINDS = {
    "products with weights": ("addmm", "linear_pointwise", "::mm", "mkl_linear"),
    "attention": ("attention", "bmm"),
    "optimizer": ("_fused_adam", "_foreach", "norm_except"),
    "choosing tokens, softmax": ("softmax", "cumsum", "searchsorted", "logsumexp"),
    "copies and indices": ("copy", "index", "::cat", "gather", "scatter", "embedding", "fill_", "zero_", "clone"),
    "elementwise": ("::mul", "::add", "silu", "::pow", "::mean", "rsqrt", "::neg", "::sub", "::div", "::sum", "exp",
                    "lerp", "sigmoid", "::where", "norm"),
}  # fmt: skip


def main() -> None:
    """Profile, print, and write it down when asked to."""
    given = options()
    facts = machine(given.threads)
    print("\n".join(facts_lines(facts)), flush=True)
    found = {}
    for name in given.shapes.split(","):
        with tempfile.TemporaryDirectory(prefix="grpo-profile-") as folder:
            shapes.write(Path(folder), shapes.SHAPES[name], steps=given.steps, seed=1)
            words = command(shapes.SHAPES[name], Path(folder), given.steps)
            result = Path(folder) / "profile.json"
            child = [sys.executable, __file__, "--child", str(result), str(given.steps), *words]
            done = subprocess.run(child, env=environment(given.threads), capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{(done.stdout + done.stderr)[-3000:]}\nexit {done.returncode}")
            found[name] = {"machine": facts, "phases": json.loads(result.read_text(encoding="utf-8"))}
        print(f"\n{table(name, found[name]['phases'])}", flush=True)
    if given.record:
        before = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
        record = before | found
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        pages = [
            "\n\n".join([*facts_lines(one["machine"]), table(name, one["phases"])]) for name, one in record.items()
        ]
        RECORD.with_suffix(".md").write_text("\n\n".join(["# bench/step_profile.py", *pages]) + "\n", encoding="utf-8")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="small,ragged", help=", ".join(shapes.SHAPES))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


def kind_of(operation: str) -> str:
    """Which of KINDS an operation of torch belongs to; `the rest` for none."""
    return next((kind for kind, words in KINDS.items() if any(word in operation for word in words)), "the rest")


def table(name: str, phases: dict[str, Any]) -> str:
    """Seconds of each phase, and the share of each kind of operation in it, as Markdown."""
    heads = [f"{phase}, {phases[phase]['fastest']:.2f} s" for phase in PHASES]
    lines = [[f"**{name}**", *heads], ["---", *["---:"] * len(PHASES)]]
    for kind in (*KINDS, "the rest"):
        shares = [phases[phase]["kinds"].get(kind, 0.0) / sum(phases[phase]["kinds"].values()) for phase in PHASES]
        lines.append([kind, *(f"{share:.0%}" for share in shares)])
    costs = [f"{phases[phase]['profiled'] / phases[phase]['fastest'] - 1:.0%}" for phase in PHASES]
    lines.append(["the profiler's own cost, on top", *costs])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    longest = [
        f"- {phase}: " + ", ".join(f"`{name}` {share:.0%}" for name, share in phases[phase]["operations"])
        for phase in PHASES
    ]
    return "\n\n".join([text, "The operations that take longest:", "\n".join(longest)])


def child(result: Path, steps: int, words: list[str]) -> int:
    """Train as `words` say and profile the last step's phases; writes them to `result`."""
    from torch.profiler import ProfilerActivity, profile

    from grpo.__main__ import main as run
    from grpo.embedded import loop, policy
    from grpo.embedded.session import Session

    phases: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in PHASES}

    def watched(phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def call(*args: Any, **kwargs: Any) -> Any:
            mine = phases[phase]
            began = time.perf_counter()
            if len(mine["seconds"]) < steps - 1:
                done = work(*args, **kwargs)
                mine["seconds"].append(time.perf_counter() - began)
                return done
            with profile(activities=[ProfilerActivity.CPU]) as watch:
                done = work(*args, **kwargs)
                mine["profiled"] = time.perf_counter() - began
            own = {event.key: event.self_cpu_time_total / 1e6 for event in watch.key_averages()}
            whole = sum(own.values())
            mine["kinds"] = {}
            for name, seconds in own.items():
                mine["kinds"][kind_of(name)] = mine["kinds"].get(kind_of(name), 0.0) + seconds
            longest = sorted(own.items(), key=lambda one: -one[1])[:8]
            mine["operations"] = [(name.removeprefix("aten::"), seconds / whole) for name, seconds in longest]
            return done

        return call

    policy.lanes_of = lambda policy: 1
    Session.sample = watched("sampling", Session.sample)
    Session.reference_log_probs = watched("reference", Session.reference_log_probs)
    loop.update_policy = watched("update", loop.update_policy)
    code = run(words)
    for mine in phases.values():
        mine["fastest"] = min(mine.pop("seconds")[1:])
    result.write_text(json.dumps(phases), encoding="utf-8")
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
    main()
