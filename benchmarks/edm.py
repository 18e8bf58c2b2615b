"""The distance matrix: a row loop against its rewrite and against libraries.

The loop is the one that a user writes: ``lax.scan`` over the rows, each step the
distances of one point to all points. Every contender runs in this one process,
interleaved in random order; errors are against float64 on a sample of rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from benchmarks import accuracy, measure, optimiser, peers
from benchmarks.contest import Workload, normal
from benchmarks.edm_contenders import (
    OURS,
    Floats,
    Line,
    contest,
    distances,
    distances_by_hand,
    lines_table,
)
from benchmarks.progress import Progress

Points = list[tuple[int, float]]
_LADDER = (250, 500, 1000, 2000, 5000, 10000)


def random_points(count: int, features: int) -> Floats:
    """Return normal points, float32."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, features)).astype(np.float32)


def digits() -> Floats | None:
    """Return scikit-learn's digits (1797 x 64), if it is installed."""
    if importlib.util.find_spec("sklearn") is None:
        return None
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)[0].astype(np.float32)


def _sizes(options: argparse.Namespace) -> list[int]:
    """Return the numbers of points of the chart, without the largest."""
    if options.no_chart:
        return []
    return [n for n in _LADDER if n < options.rows]


def _plan(options: argparse.Namespace) -> measure.Plan:
    if options.quick:
        return measure.Plan(min(options.rounds, 5), budget_s=0.5)
    return measure.Plan(options.rounds, budget_s=3.0)


def workloads(quick: bool) -> list[Workload]:
    """Return the program, for peers that run in their own environment."""
    shape = (2000 if quick else 10000, 40)
    make = normal(shape)
    return [Workload("distances, scan", "", distances, distances_by_hand, make)]


def peer_lines(
    points: Floats, median: float, options: argparse.Namespace
) -> tuple[list[Line], str]:
    """Measure the peers that run in their own environment on ``points``."""
    asked = peers.asked(options.peer)
    workload = dataclasses.replace(
        workloads(options.quick)[0], make=lambda: (jax.device_put(points),)
    )
    lines, found = [], {}
    for peer in asked:
        result = peers.measured(peer, __name__, workload, options)
        found[peer.name] = result
        title = peer.heading.split(" ms")[0] + ", in its own process"
        if result["trouble"]:
            title += f" (failed: {result['trouble'][:60]})"
        own = result.get("median_ms")
        if own is None:
            lines.append(Line(title, [], None, None, None, None))
        else:
            lines.append(Line(title, [own], own, own / median, None, None))
    return lines, peers.remark(asked, [found])


def run(options: argparse.Namespace) -> int:
    """Print report and tables; write the chart and the JSON."""
    if options.accuracy:
        return accuracy.run(options)
    if options.rows is None:
        options.rows = 2000 if options.quick else 10000
    peers.asked(options.peer)  # complain now about those that are not there
    optimise = optimiser.resolve(options.optimiser, options.numerics)
    points = random_points(options.rows, options.features)
    print(optimiser.report_text(optimise(distances), points))
    print()
    print(measure.machine_line())
    print("max error: largest |d - float64| on a sample of rows")
    data = {f"random {points.shape[0]} x {points.shape[1]} float32": points}
    pictures = digits()
    if pictures is None:
        print("digits: left out, scikit-learn is not installed")
    else:
        data[f"digits {pictures.shape[0]} x {pictures.shape[1]} float32"] = pictures
    sizes, results, curves, remark = _sizes(options), {}, {}, ""
    with Progress("edm", len(data) + len(sizes)) as progress:
        for title, some in data.items():
            lines = contest(some, optimise, _plan(options), progress.show)
            if some is points:
                curves[options.rows] = lines
                more, remark = peer_lines(some, _median(lines, OURS) or 1.0, options)
                lines = lines + more
            results[title] = [asdict(line) for line in lines]
            progress.note(f"\n{title}\n{lines_table(lines)}")
            progress.step()
        short = measure.Plan(_plan(options).rounds, budget_s=1.0)
        for n in sizes:
            some = random_points(n, options.features)
            curves[n] = contest(some, optimise, short, progress.show)
            progress.step(f"n = {n}")
    print("\n" + remark)
    _write(options, results, curves)
    return 0


def _write(
    options: argparse.Namespace,
    results: dict[str, Any],
    curves: dict[int, list[Line]],
) -> None:
    """Write JSON and chart, and say where they are."""
    by_size = {n: [asdict(line) for line in curves[n]] for n in sorted(curves)}
    record = {"data": results, "by_size": by_size}
    print(f"\nwrote {measure.write_json(options.out, 'edm', record)}")
    if options.no_chart:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print("no chart: matplotlib is not installed")
        return
    from benchmarks.chart import Curve, time_and_error_chart

    names = [line.contender for line in curves[options.rows]]
    drawn = [Curve(name, *_points(name, curves)) for name in names]
    path = options.out / "edm.png"
    title = f"Distance matrix of n points in {options.features} dimensions, float32"
    present = [curve for curve in drawn if curve.milliseconds]
    time_and_error_chart(path, title, present, OURS)
    print(f"wrote {path}")


def _points(name: str, lines: dict[int, list[Line]]) -> tuple[Points, Points]:
    """Return times and errors of one contender by size, as far as they are known."""
    by_size = {n: _line(lines[n], name) for n in sorted(lines)}
    times = [(n, line.median_ms) for n, line in by_size.items() if line.median_ms]
    known = [(n, e) for n, line in by_size.items() if (e := line.max_error) is not None]
    return times, known


def _line(lines: list[Line], name: str) -> Line:
    return next(line for line in lines if line.contender == name)


def _median(lines: list[Line], name: str) -> float | None:
    return _line(lines, name).median_ms
