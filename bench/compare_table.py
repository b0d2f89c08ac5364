"""The tables and the plot of bench/compare.py, from what it recorded."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from machine import facts_lines

# Shape -> what a step of a peer should take at least, as a multiple of ours; sampling: the same of vLLM's alone.
AIMS: dict[str, dict[str, float]] = {
    "small": {"trl": 2.2, "verl": 2.0, "vllm": 1.5},
    "ragged": {"trl": 5.0},
    "half-b": {"trl": 2.4},
    "long": {"trl": 2.0},
}
SHARES = {"small": 0.80, "ragged": 0.60, "half-b": 0.75, "long": 0.45}  # of the roofline
MEMORY = 0.6  # peak memory, of TRL's
BUSY = 0.05  # share of the machine that others may use before the numbers are called disturbed
DRIVEN = ("verl",)  # sides whose work is done by other processes than the one that is watched


def summary(runs: list[dict[str, Any]], warmup: int) -> dict[str, Any]:
    """What one side took, over the measured steps of all its processes."""
    seconds = [value for run in runs for value in run["seconds"][warmup:]]
    tokens = [value for run in runs for value in run["response_tokens"][warmup:]]
    cpu = [value for run in runs for value in run.get("cycle_cpu_seconds", [])[max(0, warmup - 1) :]]
    return {
        "seconds": median(seconds),
        "fastest": min(seconds),
        "per_thousand": 1000 * sum(seconds) / sum(tokens),
        "cpu": median(cpu) if cpu else None,
        "peak": median(run["peak_mib"] for run in runs),
        "prompt_tokens": {value for run in runs for value in run["prompt_tokens"][warmup:]},
        "response_tokens": set(tokens),
        "others": max(run["others"] or 0.0 for run in runs),
    }


def _sides(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The summary of every side that took whole steps; some only sample."""
    warmup = part["shape"]["warmup"]
    return {side: summary(runs, warmup) for side, runs in part["runs"].items() if "prompt_tokens" in runs[0]}


def table(name: str, part: dict[str, Any]) -> str:
    """Markdown: every side's numbers, the ratios to each peer, and the share of the machine."""
    fixed, sides = part["shape"]["shortest"] is None, _sides(part)
    ours, peers = sides["ours"], [side for side in sides if side != "ours"]
    rows: list[tuple[str, str, str]] = [("seconds per step", "seconds", "{:.2f}"), ("  fastest", "fastest", "{:.2f}")]
    rows += [("seconds per 1,000 response tokens", "per_thousand", "{:.3f}"), ("CPU seconds per step", "cpu", "{:.2f}")]
    rows = [row for row in rows if all(side[row[1]] is not None for side in sides.values())]
    rows += [("peak memory of the process, MiB", "peak", "{:,.0f}")]
    lines = [[f"**{name}**", "ours", *peers, *(f"{peer} / ours" for peer in peers)]]
    lines.append(["---", *("---:" for _ in lines[0][1:])])
    for title, key, form in rows:
        shown = [
            "" if side[key] is None or (key == "peak" and peer in DRIVEN) else form.format(side[key])
            for peer, side in sides.items()
        ]
        times = [f"{sides[peer][key] / ours[key]:.2f}" if shown[i + 1] else "" for i, peer in enumerate(peers)]
        lines.append([title, *shown, *times])
    for key in ("prompt_tokens", "response_tokens") if fixed else ():
        counts = [", ".join(f"{count:,}" for count in sorted(side[key])) for side in sides.values()]
        same = ["equal" if sides[peer][key] == ours[key] else "DIFFERENT" for peer in peers]
        lines.append([f"{key.replace('_', ' ')} per step", *counts, *same])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    said = [_roofline(name, part, ours["seconds"]), *_aims(name, part, sides), *_update(part), *_disturbed(sides)]
    return "\n\n".join([text, *said])


def _roofline(name: str, part: dict[str, Any], seconds: float) -> str:
    work, here, least = (part["roofline"][key] for key in ("work", "machine", "seconds"))
    flops = sum(work[phase] for phase in ("sample", "reference", "update"))
    share = least["step"] / seconds
    return (
        f"Roofline: {flops / 1e9:,.0f} GFLOP and {work['decode_bytes'] / 1e9:,.1f} GB read in decoding; this machine "
        f"makes {here['gemm'] / 1e9:,.0f} GFLOP/s in products of these sizes ({here['large'] / 1e9:,.0f} in large "
        f"ones) and reads {here['bandwidth'] / 1e9:,.1f} GB/s, so a step takes "
        f"{least['step']:.2f} s at least (sampling {least['sample']:.2f}, reference {least['reference']:.2f}, update "
        f"{least['update']:.2f}). Ours is at {share:.0%} of that{_aim(share, SHARES.get(name), '{:.0%}')}."
    )


def _aims(name: str, part: dict[str, Any], sides: dict[str, dict[str, Any]]) -> list[str]:
    said, aims, ours = [], AIMS.get(name, {}), sides["ours"]
    for peer, side in sides.items():
        kind = peer.partition("-")[0]
        if peer != "ours":
            times = side["per_thousand"] / ours["per_thousand"]
            said.append(
                f"{peer} takes {times:.2f} times as long for as many tokens{_aim(times, aims.get(kind), '{}')}."
            )
        if kind == "trl":
            memory = ours["peak"] / side["peak"]
            met = "met" if memory <= MEMORY else "NOT met"
            said.append(f"Ours holds {memory:.2f} of {peer}'s memory at its peak (aim {MEMORY}: {met}).")
    if "vllm" in part["runs"]:
        mine, theirs = (_tokens_per_second(part, side) for side in ("our sampling", "vllm"))
        said.append(
            f"Sampling alone: ours {mine:,.0f} tokens/s, vLLM {theirs:,.0f}: {mine / theirs:.2f} times"
            f"{_aim(mine / theirs, aims.get('vllm'), '{}')}."
        )
    return said


def _update(part: dict[str, Any]) -> list[str]:
    if "update" not in part:
        return []
    cosine, difference = part["update"]["cosine"], part["update"]["difference"]
    same = "the same" if cosine > 0.9999 and difference < 1e-3 else "NOT the same"
    return [
        f"One update from equal weights, prompts, responses and rewards is {same} in ours and TRL: the changes of the "
        f"weights have cosine {cosine:.7f} and differ by {difference:.1e} of their size."
    ]


def _aim(value: float, aim: float | None, form: str) -> str:
    return "" if aim is None else f" (aim {form.format(aim)}: {'met' if value >= aim else 'NOT met'})"


def _disturbed(sides: dict[str, dict[str, Any]]) -> list[str]:
    watched = {side: values["others"] for side, values in sides.items() if side not in DRIVEN}
    if max(watched.values()) <= BUSY:
        return []
    said = ", ".join(f"{side} {share:.0%}" for side, share in watched.items())
    return [f"DISTURBED: others used so much of the machine during the worst process of each side: {said}."]


def write(record: Path) -> None:
    """compare.md and compare.svg beside compare.json."""
    shapes = json.loads(record.read_text(encoding="utf-8"))["shapes"]
    pages = ["# bench/compare.py"]
    for name, part in shapes.items():
        pages += [f"## {name}", *facts_lines(part["machine"]), table(name, part)]
    if "gpu" not in shapes:
        pages += ["## gpu", "Not measured: no GPU was at hand."]
    record.with_suffix(".md").write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    _plot(shapes, record.with_suffix(".svg"))


PEERS = ("trl-plain", "trl-fast", "verl")
HEADS = {
    "en": ("shape", "ours", "TRL", "TRL, its fastest on a CPU", "verl on a CPU", "sampling alone, vLLM"),
    "zh": ("形状", "本项目", "TRL", "TRL 最快的 CPU 设置", "verl（CPU）", "仅采样，vLLM"),
}


def readme_table(record: Path, lang: str) -> str:
    """Markdown for the READMEs: seconds of ours for 1,000 response tokens, and how many times as long peers take."""
    rows = [list(HEADS[lang]), ["---", *["---:"] * 5]]
    for name, part in json.loads(record.read_text(encoding="utf-8"))["shapes"].items():
        sides = _sides(part)
        ours = sides["ours"]["per_thousand"]
        times = [f"{sides[peer]['per_thousand'] / ours:.1f}x" if peer in sides else "" for peer in PEERS]
        sampling = ""
        if "vllm" in part["runs"]:
            sampling = f"{_tokens_per_second(part, 'our sampling') / _tokens_per_second(part, 'vllm'):.1f}x"
        rows.append([name, f"{ours:.2f} s", *times, sampling])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _tokens_per_second(part: dict[str, Any], side: str) -> float:
    """Of a side that only samples."""
    return median(t / s for run in part["runs"][side] for t, s in zip(run["tokens"], run["seconds"], strict=True))


def _plot(shapes: dict[str, Any], target: Path) -> None:
    """A bar for each peer and shape: how many times as long as ours it takes for as many response tokens."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    bars = {}
    for name, part in shapes.items():
        sides = _sides(part)
        ours = sides.pop("ours")["per_thousand"]
        bars |= {f"{name}: {peer}": side["per_thousand"] / ours for peer, side in sides.items()}
    figure, axes = pyplot.subplots(figsize=(7, 0.5 + 0.4 * len(bars)), layout="constrained")
    drawn = axes.barh(list(bars), list(bars.values()), color="#4c78a8")
    axes.bar_label(drawn, fmt="%.1f", padding=3)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("time for as many response tokens, ours = 1")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None})
