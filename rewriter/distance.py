"""Squared distances between all pairs of rows by a matrix product, with a guard.

`|x|^2 + |y|^2 - 2 x.y` costs one product, but cancels where x is close to y. Entries
that could have lost digits are found by one comparison per block and recomputed from
the differences afterwards, tile by tile: every entry is as accurate as the direct
form's (relative error at most max(2 times the direct form's, 32 roundings)) and zeros,
NaN and infinities stand where the direct form has them. Data on a grid (integers, 1/16,
1/256) are exact either way, so nothing fires. See ALGORITHMS.md, 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from rewriter.distance_rows import centre_of, on_grids, usual_norms
from rewriter.emit import emitted

TAU = 0.2  # a distance below this part of the norms may have cancelled
ROWS, COLUMNS = 100, 50  # of a block, and of the tiles that are recomputed
DENSE = 0.25  # part of a block's tiles above which the direct form is cheaper
FEW = 128  # features that are added a few at a time
PROBE = 16  # blocks between two looks at dense data

# epilogue(distances, first row, first column, rows, columns) -> outputs
Epilogue = Callable[[Any, Any, Any, int, int], list[Any]]


@dataclass(frozen=True)
class Points:
    """Centred rows with their squared norms, NaN where a norm is out of range."""

    raw: Any
    centred: Any
    norms: Any


@dataclass(frozen=True)
class Weighting:
    """How differences are weighed: `terms(difference, *factors)`, factors (d,) each.

    `weights` (d,) say the same as one product, NaN where they can not.
    """

    terms: Callable[..., Any] = lambda difference: difference * difference
    factors: tuple[Any, ...] = ()
    weights: Any = None

    def weighed(self, values: Any) -> Any:
        """Multiply features by their weights, if they have any."""
        return values if self.weights is None else values * self.weights


def _points(
    rows: Any, centre: Any, guarded: bool, exact: Any, weighting: Weighting
) -> Points:
    centred = rows - centre
    norms = jnp.sum(weighting.weighed(centred * centred), axis=1)
    if not guarded:
        return Points(rows, centred, norms)
    low, high = usual_norms(rows.dtype)
    inside = ((norms > low) & (norms < high)) | exact
    return Points(rows, centred, jnp.where(inside, norms, jnp.nan))


def direct(left: Any, right: Any, weighting: Weighting) -> Any:
    """Return squared distances from the differences: `(b, d), (g, d) -> (b, g)`.

    A few features are added four at a time, each to a sum of its own, (b, g) elements
    at once, which fills vector units; many are summed in pairs of rows.
    """
    if left.shape[1] > FEW:
        difference = left[:, None, :] - right[None, :, :]
        return jnp.sum(weighting.terms(difference, *weighting.factors), axis=-1)

    def fours(columns: Any, fill: float) -> Any:
        pad = [(0, -columns.shape[0] % 4)] + [(0, 0)] * (columns.ndim - 1)
        padded = jnp.pad(columns, pad, constant_values=fill)
        return padded.reshape(-1, 4, *columns.shape[1:])

    def add(total: Any, columns: Any) -> Any:
        one, other, factors = columns
        difference = one[:, :, None] - other[:, None, :]
        spread = [f[:, None, None] for f in factors]
        return total + weighting.terms(difference, *spread), None

    zero = jnp.zeros((4, left.shape[0], right.shape[0]), left.dtype)
    factors = tuple(fours(f, 1.0) for f in weighting.factors)
    columns = fours(left.T, 0.0), fours(right.T, 0.0), factors
    return jnp.sum(lax.scan(emitted(add), zero, columns)[0], axis=0)


def pairwise(
    left: Any,
    right: Any,
    epilogue: Epilogue,
    shapes: list[Any],
    guarded: bool,
    weighting: Weighting | None = None,
) -> list[Any]:
    """Return the epilogue of all squared distances, one row per row of `left`.

    Args:
        left: rows of shape (n, d).
        right: rows of shape (m, d).
        epilogue: elementwise on a block of distances.
        shapes: dtypes of its outputs, each of shape (n, m).
        guarded: recompute what may have cancelled; else only clip at zero.
        weighting: of the features; negative and NaN weights are not expanded.
    """
    weighting = weighting or Weighting()
    n, m = left.shape[0], right.shape[0]
    b, g = min(ROWS, n), min(COLUMNS, m)
    exact: Any = True
    if guarded:
        exact = jnp.any(on_grids(left) & on_grids(right)) & (weighting.weights is None)
    tau = jnp.where(exact, -1.0, TAU).astype(right.dtype)
    zero = jnp.zeros((), right.dtype)
    centre = jnp.where(exact, zero, centre_of(right)) if guarded else zero
    x = _points(left, centre, guarded, exact, weighting)
    y = _points(right, centre, guarded, exact, weighting)
    doubled = -2 * weighting.weighed(x.centred)
    tiles = -(-m // g)
    first = jnp.minimum(jnp.arange(tiles) * g, m - g)
    out: list[Any] = [lax.empty((n, m), dtype) for dtype in shapes]

    def product(start: Any) -> tuple[Any, Any]:
        """Return `-2 x.y` of a block, and which of its tiles may have cancelled."""
        cross = lax.dot_general(
            lax.dynamic_slice_in_dim(doubled, start, b),
            y.centred,
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
        )
        if not guarded:
            return cross, jnp.zeros(tiles, bool)
        norms = (1 - tau) * lax.dynamic_slice_in_dim(x.norms, start, b)
        least = jnp.min((norms[:, None] + y.norms[None]) + cross, axis=0)
        # negated, so that NaN, infinities and zeros count as bad
        bad = ~(least >= tau * y.norms)
        return cross, jnp.any(jnp.pad(bad, (0, tiles * g - m)).reshape(-1, g), axis=1)

    def differences(start: Any) -> tuple[Any, Any]:
        rows = lax.dynamic_slice_in_dim(x.raw, start, b)
        terms, factors = weighting.terms, weighting.factors
        one = lambda p: jnp.sum(terms(y.raw - p, *factors), axis=-1)  # noqa: E731
        squared = lax.map(emitted(one), rows)
        return squared, jnp.zeros(tiles, bool)

    blocks = -(-n // b)
    starts = jnp.minimum(jnp.arange(blocks) * b, n - b)

    def step(carry: Any, item: Any) -> Any:
        dense, out = carry
        number, start = item
        norms = lax.dynamic_slice_in_dim(x.norms, start, b)
        total = norms[:, None] + y.norms[None]
        if guarded:
            skip = dense & (number % PROBE != 0)
            part, flags = lax.cond(skip, differences, product, start)
            squared = jnp.where(skip, zero, total) + part
            dense = jnp.where(skip, dense, jnp.sum(flags) > DENSE * tiles)
        else:
            part, flags = product(start)
            squared = jnp.maximum(total + part, 0)
        values = epilogue(squared, start, 0, b, m)
        out = [
            lax.dynamic_update_slice(o, v, (start, 0))
            for o, v in zip(out, values, strict=True)
        ]
        return (dense, out), flags

    carry = (jnp.zeros((), bool), out)
    items = (jnp.arange(blocks), starts)
    (_, out), flags = lax.scan(emitted(step), carry, items)
    return (
        _repaired(x, y, weighting, epilogue, out, flags, starts, first)
        if guarded
        else out
    )


def _repaired(
    x: Points,
    y: Points,
    weighting: Weighting,
    epilogue: Epilogue,
    out: list[Any],
    flags: Any,
    starts: Any,
    first: Any,
) -> list[Any]:
    """Recompute the flagged tiles from the differences, in place."""
    b, g = min(ROWS, x.raw.shape[0]), min(COLUMNS, y.raw.shape[0])
    count = jnp.sum(flags)
    tiles = flags.shape[1]
    listed = jnp.nonzero(flags.reshape(-1), size=flags.size)[0]

    def fix(state: Any) -> Any:
        k, out = state
        i, j = starts[listed[k] // tiles], first[listed[k] % tiles]
        squared = direct(
            lax.dynamic_slice_in_dim(x.raw, i, b),
            lax.dynamic_slice_in_dim(y.raw, j, g),
            weighting,
        )
        values = epilogue(squared, i, j, b, g)
        return k + 1, [
            lax.dynamic_update_slice(o, v, (i, j))
            for o, v in zip(out, values, strict=True)
        ]

    return lax.while_loop(
        lambda s: s[0] < count, fix, (jnp.zeros((), count.dtype), out)
    )[1]
