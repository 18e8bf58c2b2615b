"""The distance matrix: a row loop against its rewrite and against libraries.

The loop is the one that a user writes: ``lax.scan`` over the rows, each step the
distances of one point to all points. Every contender runs in this one process,
interleaved in random order; errors are against float64 on a sample of rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from benchmarks import measure, optimiser
from benchmarks.progress import Progress
from benchmarks.table import interval, number, small, table, times

Floats = NDArray[np.floating[Any]]
Call = Callable[[], Any]

OURS = "ours: optimize(scan)"
HAND = "JAX by hand, gemm, unguarded"
_SAMPLED_ROWS = 200
_LADDER = (250, 500, 1000, 2000, 5000, 10000)


# ---- the program, and what it is measured against


def distances(points: jax.Array) -> jax.Array:
    """Return the distance matrix as a user writes it: one row a step."""

    def row(carry: None, point: jax.Array) -> tuple[None, jax.Array]:
        return carry, jnp.sqrt(jnp.sum((points - point) ** 2, axis=1))

    return lax.scan(row, None, points)[1]


def distances_by_hand(points: jax.Array) -> jax.Array:
    """Return |x|^2 + |y|^2 - 2 x.y by blocks of rows, cancellation unguarded."""
    count, features = points.shape
    block = max(b for b in range(1, min(count, 500) + 1) if count % b == 0)
    squares = jnp.sum(points * points, axis=1)

    def rows(carry: None, xs: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        some, theirs = xs
        squared = theirs[:, None] + squares[None] - 2 * some @ points.T
        return carry, jnp.sqrt(jnp.maximum(squared, 0))

    blocks = points.reshape(-1, block, features), squares.reshape(-1, block)
    return lax.scan(rows, None, blocks)[1].reshape(count, count)


def numpy_row_loop(points: Floats) -> Floats:
    """Return the distance matrix by a Python loop over rows."""
    out = np.empty((len(points), len(points)), points.dtype)
    for k, point in enumerate(points):
        out[k] = np.sqrt(((points - point) ** 2).sum(axis=1))
    return out


def _library_calls(points: Floats) -> Iterator[tuple[str, Call | None]]:
    """Give the peers; None for one that is not installed."""
    yield "NumPy row loop", lambda: numpy_row_loop(points)
    name = "scikit-learn pairwise_distances"
    if importlib.util.find_spec("sklearn"):
        from sklearn.metrics import pairwise_distances

        yield name, lambda: pairwise_distances(points)
    else:
        yield name, None
    name = "SciPy cdist (float64)"
    if importlib.util.find_spec("scipy"):
        from scipy.spatial.distance import cdist

        yield name, lambda: cdist(points, points)
    else:
        yield name, None
    name = "torch.cdist"
    if importlib.util.find_spec("torch"):
        import torch  # pyright: ignore[reportMissingImports]

        tensor = torch.from_numpy(points)
        yield name, lambda: torch.cdist(tensor, tensor)
    else:
        yield name, None


def contenders(points: Floats, optimise: optimiser.Optimiser) -> dict[str, Call | None]:
    """Return every contender as a call without arguments, ours first."""
    on_device = jax.device_put(points)
    forms = {
        OURS: optimise(distances),
        "jax.jit of the scan": jax.jit(distances),
        HAND: jax.jit(distances_by_hand),
    }
    calls: dict[str, Call | None] = {
        name: lambda form=form: form(on_device) for name, form in forms.items()
    }
    return calls | dict(_library_calls(points))


# ---- measuring one data set


@dataclass(frozen=True)
class Line:
    """One contender on one data set."""

    contender: str
    samples_ms: list[float]
    median_ms: float | None
    ratio_to_ours: float | None
    interval: tuple[float, float] | None
    max_error: float | None


def sample_of_rows(points: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Choose some rows and compute them in float64."""
    count = min(len(points), _SAMPLED_ROWS)
    rng = np.random.default_rng(1)
    chosen = np.sort(rng.choice(len(points), count, replace=False))
    wide = points.astype(np.float64)
    return chosen, np.stack(
        [np.sqrt(((wide - wide[k]) ** 2).sum(axis=1)) for k in chosen]
    )


def contest(
    points: Floats,
    optimise: optimiser.Optimiser,
    plan: measure.Plan,
    show: Callable[[str], None],
) -> list[Line]:
    """Measure all contenders on ``points``."""
    calls = contenders(points, optimise)
    present = {name: call for name, call in calls.items() if call is not None}
    chosen, truth = sample_of_rows(points)
    errors: dict[str, float] = {}
    for name, call in present.items():
        show(f"first call, {name}")
        rows = np.asarray(measure.ready(call()))[chosen].astype(np.float64)
        errors[name] = float(np.max(np.abs(rows - truth)))
    samples = measure.interleaved(present, plan, show)
    return [_line(name, samples, errors) for name in calls]


def _line(name: str, samples: dict[str, list[float]], errors: dict[str, float]) -> Line:
    if name not in samples:
        return Line(name, [], None, None, None, None)
    against = measure.ratio(samples[name], samples[OURS])
    median = statistics.median(samples[name])
    taken = samples[name]
    return Line(name, taken, median, against.value, against.interval, errors[name])


def lines_table(lines: list[Line]) -> str:
    """Print the contenders of one data set, fastest first, absent ones last."""
    ranked = sorted(lines, key=lambda line: line.median_ms or float("inf"))
    rows = [
        [
            line.contender + ("" if line.samples_ms else ": not installed"),
            number(line.median_ms),
            times(line.ratio_to_ours),
            interval(line.interval),
            small(line.max_error),
            str(len(line.samples_ms)),
        ]
        for line in ranked
    ]
    heads = ["contender", "median ms", "time / ours", "95 %", "max error", "rounds"]
    return table(heads, rows)


# ---- the subcommand


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


def run(options: argparse.Namespace) -> int:
    """Print report and tables; write the chart and the JSON."""
    if options.rows is None:
        options.rows = 2000 if options.quick else 10000
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
    sizes, results, curves = _sizes(options), {}, {}
    with Progress("edm", len(data) + len(sizes)) as progress:
        for title, some in data.items():
            lines = contest(some, optimise, _plan(options), progress.show)
            results[title] = [asdict(line) for line in lines]
            progress.note(f"\n{title}\n{lines_table(lines)}")
            progress.step()
            if some is points:
                curves[options.rows] = lines
        short = measure.Plan(_plan(options).rounds, budget_s=1.0)
        for n in sizes:
            some = random_points(n, options.features)
            curves[n] = contest(some, optimise, short, progress.show)
            progress.step(f"n = {n}")
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
    from benchmarks.chart import Curve, time_chart

    drawn = [
        Curve(name, [(n, m) for n in sorted(curves) if (m := _median(curves[n], name))])
        for name in (line.contender for line in curves[options.rows])
    ]
    path = options.out / "edm.png"
    title = f"Distance matrix of n points in {options.features} dimensions, float32"
    time_chart(path, title, [curve for curve in drawn if curve.points], OURS)
    print(f"wrote {path}")


def _median(lines: list[Line], name: str) -> float | None:
    return next(line.median_ms for line in lines if line.contender == name)
