"""Errors of squared distances over kinds of data, where they are hard to get right.

The error of an entry is relative to the squared distance in float64, in units of
2^-24, which is half a unit in the last place of float32. Entries that are not finite in
float64, or not above 2^-120, do not count: float32 does not hold them in full.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import measure, optimiser
from benchmarks.edm_contenders import Floats
from benchmarks.progress import Progress
from benchmarks.table import markdown, number

_UNIT = 2.0**-24
_SMALLEST = 2.0**-120
_COUNT, _FEATURES = 1500, 40
_DIRECT = "direct loop"
Contender = Callable[[Floats], Any]


# ---- kinds of data


def kinds(count: int = _COUNT, features: int = _FEATURES) -> dict[str, Floats]:
    """Return points that differ in what makes distances hard."""
    rng = np.random.default_rng(0)
    shape = count, features
    normal = rng.standard_normal(shape)
    centres = rng.standard_normal((20, features))[rng.integers(0, 20, count)]
    bad = normal.copy()
    bad[rng.choice(count, 5, replace=False), 3] = np.nan
    bad[rng.choice(count, 5, replace=False), 7] = np.inf
    found = {
        "standard normal": normal,
        "offset 1e4": normal + 1e4,
        "clusters of near duplicates (1e-6)": centres * (1 + 1e-6 * normal),
        "exact duplicates": centres,
        "tiny, 1e-17": normal * 1e-17,
        "tiny, 1e-20 (all below 2^-120)": normal * 1e-20,
        "huge, 1e18": normal * 1e18,
        "rows of mixed scale, 1e-4 to 1e4": normal
        * 10 ** rng.uniform(-4, 4, (count, 1)),
        "features of mixed scale, 1e-4 to 1e4": normal * np.logspace(-4, 4, features),
        "digits (integers 0 to 16)": rng.integers(0, 17, shape),
        "rows with NaN and infinity": bad,
    }
    return {name: points.astype(np.float32) for name, points in found.items()}


# ---- contenders: all return squared distances


def squared(points: jax.Array) -> jax.Array:
    """Return the squared distances as a user writes them: one row a step."""

    def row(carry: None, point: jax.Array) -> tuple[None, jax.Array]:
        return carry, jnp.sum((points - point) ** 2, axis=1)

    return lax.scan(row, None, points)[1]


def squared_by_hand(points: jax.Array) -> jax.Array:
    """Return |x|^2 + |y|^2 - 2 x.y, cancellation unguarded."""
    norms = jnp.sum(points * points, axis=1)
    return jnp.maximum(norms[:, None] + norms[None] - 2 * points @ points.T, 0)


def _libraries() -> Iterator[tuple[str, Contender | None]]:
    """Give the peers; None for one that is not installed."""
    name = "scikit-learn"
    if importlib.util.find_spec("sklearn"):
        from sklearn.metrics.pairwise import euclidean_distances

        yield name, lambda points: euclidean_distances(points, squared=True)
    else:
        yield name, None
    name = "torch.cdist"
    if importlib.util.find_spec("torch"):
        import torch  # pyright: ignore[reportMissingImports]

        def cdist(points: Floats) -> Floats:
            tensor = torch.from_numpy(points)
            return torch.cdist(tensor, tensor).numpy().astype(np.float64) ** 2

        yield name, cdist
    else:
        yield name, None


def contenders(optimise: optimiser.Optimiser) -> dict[str, Contender | None]:
    """Return every contender, ours first."""
    return {
        "ours": optimise(squared),
        _DIRECT: jax.jit(squared),
        **dict(_libraries()),
        "unguarded product": jax.jit(squared_by_hand),
    }


# ---- errors


@dataclass(frozen=True)
class Errors:
    """Errors of one contender on one kind of data, in units of 2^-24."""

    largest: float | None
    median: float | None
    remark: str = ""

    def __str__(self) -> str:
        if self.largest is None:
            return self.remark or "-"
        text = number(self.largest) if self.largest < 1e5 else f"{self.largest:.0e}"
        return f"{text}, {self.remark}" if self.remark else text


def truth(points: Floats) -> Floats:
    """Return the squared distances of the same points in float64."""
    wide = points.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.stack([((wide - row) ** 2).sum(axis=1) for row in wide])


def errors(right: Floats, direct: Floats, got: Floats) -> Errors:
    """Compare ``got`` where the truth is in range; ``direct`` says what must be NaN."""
    with np.errstate(all="ignore"):
        counts = np.isfinite(right) & (right > _SMALLEST)
        lost = np.isfinite(direct) & ~np.isfinite(got)
        relative = np.abs(got - right) / right / _UNIT
    remark = "NaN" if lost.any() else ""
    kept = relative[counts & np.isfinite(direct) & ~lost]
    if kept.size == 0:
        return Errors(None, None, remark)
    return Errors(float(kept.max()), float(np.median(kept)), remark)


def measured(points: Floats, todo: Mapping[str, Contender | None]) -> dict[str, Errors]:
    """Return the errors of all contenders on ``points``."""
    right = truth(points)
    direct = np.asarray(jax.jit(squared)(points), np.float64)
    found = {}
    for name, contender in todo.items():
        if contender is None:
            found[name] = Errors(None, None, "not installed")
            continue
        try:
            got = np.asarray(measure.ready(contender(points)), np.float64)
        except ValueError as error:
            found[name] = Errors(None, None, "refused")
            if "NaN" not in str(error) and "inf" not in str(error):
                raise
            continue
        found[name] = errors(right, direct, got)
    return found


def run(options: argparse.Namespace) -> int:
    """Print the table as Markdown and write the JSON."""
    optimise = optimiser.resolve(options.optimiser, options.numerics)
    todo, data = contenders(optimise), kinds()
    results: dict[str, dict[str, Errors]] = {}
    with Progress("accuracy", len(data)) as progress:
        for name, points in data.items():
            results[name] = measured(points, todo)
            progress.step(name)
    print(f"{measure.machine_line()}\n")
    print(
        f"Largest relative error of a squared distance against float64, in units of "
        f"2^-24, {_COUNT} points, {_FEATURES} features, float32:\n"
    )
    lines = [[name, *map(str, found.values())] for name, found in results.items()]
    print(markdown(["data", *todo], lines))
    record = {
        kind: {name: asdict(one) for name, one in found.items()}
        for kind, found in results.items()
    }
    print(f"\nwrote {measure.write_json(options.out, 'edm-accuracy', record)}")
    return 0
