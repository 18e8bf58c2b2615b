"""Contenders for the distance matrix, and one contest between them."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from benchmarks import measure, optimiser
from benchmarks.table import interval, number, small, table, times

Floats = NDArray[np.floating[Any]]
Call = Callable[[], Any]

OURS = "ours: optimize(scan)"
SCAN = "jax.jit of the scan"
HAND = "JAX by hand, gemm, unguarded"
_SAMPLED_ROWS = 200


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
        SCAN: jax.jit(distances),
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
