"""Charts of time against size."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks import measure

# Distinct also to the colour-blind (Okabe and Ito); ours is the first.
_OURS = "#D55E00"
_COLOURS = ("#0072B2", "#56B4E9", "#000000", "#009E73", "#CC79A7", "#8C6D00")
_MARKERS = ("s", "D", "^", "v", "P", "X")


@dataclass(frozen=True)
class Curve:
    """Milliseconds by size of one contender."""

    name: str
    points: list[tuple[int, float]]


def time_chart(path: Path, title: str, curves: list[Curve], ours: str) -> None:
    """Draw all ``curves`` on logarithmic axes into a PNG file."""
    figure, axes = plt.subplots(figsize=(9.6, 6.4), layout="constrained")
    others = iter(zip(_COLOURS, _MARKERS, strict=True))
    for curve in sorted(curves, key=lambda c: -c.points[-1][1]):
        is_ours = curve.name == ours
        colour, marker = (_OURS, "o") if is_ours else next(others)
        axes.plot(
            *zip(*curve.points, strict=True),
            label=f"{curve.name}  ({_time(curve.points[-1][1])})",
            color=colour,
            marker=marker,
            markersize=7 if is_ours else 5,
            linewidth=3 if is_ours else 1.6,
            zorder=3 if is_ours else 2,
        )
    _dress(axes, sorted({n for curve in curves for n, _ in curve.points}))
    axes.set_title(title, loc="left", fontsize=14, fontweight="bold", pad=34)
    subtitle = textwrap.fill(measure.machine_line(), 110)
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize=9.5, color="#555")
    largest = max(n for curve in curves for n, _ in curve.points)
    axes.legend(
        title=f"slowest first (median at n = {largest})",
        alignment="left",
        edgecolor="none",
        framealpha=0.9,
        fontsize=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _dress(axes: Axes, sizes: list[int]) -> None:
    """Label the axes with plain numbers and draw a light grid."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{n}" for n in sizes])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: _time(ms)))
    axes.set_xlabel("number of points n", fontsize=11)
    axes.set_ylabel("median time of one call", fontsize=11)
    axes.grid(which="major", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _time(milliseconds: float) -> str:
    """Print a time with a fitting unit."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    if milliseconds >= 1:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds * 1000:.3g} µs"
