"""Charts against size: time, and beside it accuracy."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks import measure

Points = list[tuple[int, float]]

# Distinct also to the colour-blind (Okabe and Ito); ours is the first.
_OURS = "#D55E00"
_COLOURS = ("#0072B2", "#56B4E9", "#000000", "#009E73", "#CC79A7", "#8C6D00", "#999999")
_MARKERS = ("s", "D", "^", "v", "P", "X", "*")
_GREY = "#555555"
_FLOOR = 1e-8  # smaller errors than float32 can have are drawn here


@dataclass(frozen=True)
class Curve:
    """Milliseconds, and largest error, by size of one contender."""

    name: str
    milliseconds: Points
    errors: Points


def time_and_error_chart(
    path: Path, title: str, curves: list[Curve], ours: str
) -> None:
    """Draw all ``curves`` into a PNG file: time on the left, error on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 7.4))
    figure.subplots_adjust(left=0.07, right=0.985, top=0.83, bottom=0.27, wspace=0.2)
    others = iter(zip(_COLOURS, _MARKERS, strict=True))
    for curve in sorted(curves, key=lambda c: -c.milliseconds[-1][1]):
        is_ours = curve.name == ours
        colour, marker = (_OURS, "o") if is_ours else next(others)
        label = f"{curve.name}: {_time(curve.milliseconds[-1][1])}, error "
        label += _error(curve.errors[-1][1])
        for axes, points in ((left, curve.milliseconds), (right, curve.errors)):
            axes.plot(
                [n for n, _ in points],
                [y if axes is left else max(y, _FLOOR) for _, y in points],
                label=label,
                color=colour,
                marker=marker,
                markersize=8 if is_ours else 5.5,
                linewidth=3.2 if is_ours else 1.7,
                zorder=3 if is_ours else 2,
            )
    sizes = sorted({n for curve in curves for n, _ in curve.milliseconds})
    _dress(left, sizes, "Median time of one call", _time)
    _dress(right, sizes, "Largest error of a distance, against float64", _error)
    right.yaxis.set_major_locator(LogLocator(numticks=20))
    right.set_ylim(bottom=_FLOOR / 1.6)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        title=f"slowest first; time and error at n = {sizes[-1]}",
        loc="lower left",
        bbox_to_anchor=(0.062, 0.008),
        ncols=2,
        columnspacing=3,
        alignment="left",
        frameon=False,
        fontsize=11,
        title_fontsize=11,
    )
    figure.text(0.07, 0.955, title, fontsize=16, fontweight="bold", va="center")
    machine = textwrap.shorten(measure.machine_line(), 160)
    figure.text(0.07, 0.914, machine, fontsize=10.5, color=_GREY, va="center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _dress(
    axes: Axes, sizes: list[int], title: str, show: Callable[[float], str]
) -> None:
    """Label the axes with plain numbers and draw a light grid."""
    axes.set_title(title, loc="left", fontsize=12.5, pad=10)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{n}" for n in sizes])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axes.set_xlabel("number of points n", fontsize=11)
    axes.tick_params(labelsize=10.5)
    axes.grid(which="major", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _time(milliseconds: float) -> str:
    """Print a time with a fitting unit."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    if milliseconds >= 1:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds * 1000:.3g} µs"


def _error(error: float) -> str:
    """Print an error as 1.6e-6; the floor stands for all below it."""
    at_floor = error <= _FLOOR * 1.001
    digits, _, power = f"{_FLOOR if at_floor else error:.1e}".partition("e")
    text = f"{digits.removesuffix('.0')}e{int(power)}"
    return f"≤ {text}" if at_floor else text
