"""A metric's curve as a small SVG that takes its colours from the page it stands in. Leaves out captions and the page.

matplotlib is imported on the first curve, without its windows and without its remarks about fonts.
"""

from __future__ import annotations

import html
import io
import itertools
import logging
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo.metrics.history import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 240  # a longer curve is drawn through the means of so many stretches, within a band from lowest to highest
_WIDTH, _HEIGHT = 4.4, 1.9  # inches; the page stretches it

# Colours that stand for the page's: matplotlib writes a number, the page wants a name.
_INK, _GRID, _LINE, _BAND, _HEALTHY, _BAD = "#010201", "#010202", "#010203", "#010204", "#010205", "#010206"
_PAGE = {
    _INK: "currentColor",
    _GRID: "var(--grid)",
    _LINE: "var(--line)",
    _BAND: "var(--line)",
    _HEALTHY: "var(--good)",
    _BAD: "var(--bad)",
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "grpo",  # the same curve, the same file
    "axes.edgecolor": _INK,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "font.size": 8,
}


def downsample(
    steps: Sequence[int], values: Sequence[float]
) -> tuple[list[float], list[float], list[float], list[float]]:
    """(step, mean, lowest, highest) of at most POINTS equal stretches; the values themselves when they are fewer."""
    count = len(steps)
    if count <= POINTS:
        return [float(s) for s in steps], list(values), list(values), list(values)
    edges = [count * i // POINTS for i in range(POINTS + 1)]
    cuts = [slice(start, end) for start, end in itertools.pairwise(edges)]
    means = [math.fsum(values[cut]) / len(values[cut]) for cut in cuts]
    middles = [sum(steps[cut]) / len(steps[cut]) for cut in cuts]
    return middles, means, [min(values[cut]) for cut in cuts], [max(values[cut]) for cut in cuts]


def curve(
    ident: str,
    label: str,
    series: Series,
    *,
    spread: Series | None = None,
    healthy: tuple[float, float] | None = None,
    logarithmic: bool = False,
) -> str:
    """One <svg> of a series.

    ident: unique in the page, ids begin with it. label: what it shows, for those who hear the page. spread: drawn as a
    band of one above and below, instead of the band from lowest to highest. healthy: shaded. logarithmic: for values
    over several decades, 0 and below included.
    """
    for logger in ("matplotlib", "matplotlib.font_manager"):
        logging.getLogger(logger).setLevel(logging.ERROR)  # "building the font cache" is no news to a user
    import matplotlib
    from matplotlib import ticker
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        if logarithmic:
            axes.set_yscale("symlog", linthresh=1e-4)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_major_locator(ticker.FixedLocator([-1, -0.01, 0, 0.001, 0.01, 0.1, 1, 10]))
        _draw(axes, series, spread, healthy)
        axes.grid(axis="y", color=_GRID, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
        page = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(page, format="svg", transparent=True, metadata=nothing)
    return _for_page(page.getvalue(), ident, label)


def _draw(axes: Axes, series: Series, spread: Series | None, healthy: tuple[float, float] | None) -> None:
    steps, mean, low, high = downsample(series.steps, series.values)
    around = dict(zip(spread.steps, spread.values, strict=True)) if spread else {}
    if around and all(step in around for step in series.steps):
        _, half, _, _ = downsample(series.steps, [around[step] for step in series.steps])
        low, high = [m - h for m, h in zip(mean, half, strict=True)], [m + h for m, h in zip(mean, half, strict=True)]
    if low != high:
        axes.fill_between(steps, low, high, color=_BAND, alpha=0.18, linewidth=0)
    few = len(steps) <= 30  # evaluations are few and far between: show where they were
    axes.plot(steps, mean, color=_LINE, linewidth=1.2, marker="o" if few else None, markersize=2.5)
    for step in series.bad[:POINTS]:
        axes.axvline(step, color=_BAD, linewidth=0.8)
    bottom, top = axes.get_ylim()
    if healthy and healthy[0] < healthy[1]:
        bottom, top = min(bottom, healthy[0]), max(top, min(healthy[1] * 1.1, healthy[1] + (top - bottom) * 3))
        axes.axhspan(*healthy, color=_HEALTHY, alpha=0.12, linewidth=0)
    axes.set_ylim(bottom, top)


def _for_page(svg: str, ident: str, label: str) -> str:
    """The <svg> element alone: the page's colours and type, ids of its own, no more digits than a screen has pixels."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    for nothing in ("<style.*?</style>", "<!--.*?-->", "<metadata>.*?</metadata>", r' transform="rotate\(-0 [^"]*"'):
        body = re.sub(nothing, "", body, flags=re.DOTALL)
    for stand_in, colour in _PAGE.items():
        body = body.replace(stand_in, colour)
    body = re.sub(r" ?font-family: [^;\"]*;?", "", body)
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), body)
    used = set(re.findall(r"#([\w.-]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda found: f' id="{ident}-{found[1]}"' if found[1] in used else "", body)
    body = body.replace('xlink:href="#', f'href="#{ident}-').replace("url(#", f"url(#{ident}-")
    width, height = _WIDTH * 72, _HEIGHT * 72
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{html.escape(label)}">'
    return opening + re.sub(r"\s*\n\s*", "\n", body).strip()
