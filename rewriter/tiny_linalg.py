"""Linear algebra of tiny matrices written out on components (see `rewriter.planes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


def together(values: Sequence[Any]) -> list[Any]:
    """Broadcast scalars to the rows of the others."""
    values = [jnp.asarray(v) for v in values]
    shape = max((v.shape for v in values), key=len)
    return [v if v.shape == shape else jnp.broadcast_to(v, shape) for v in values]


def _times(a: Any, b: Any) -> Any:
    return lax.mul(*together([a, b]))


def _minus(a: Any, b: Any) -> Any:
    return lax.sub(*together([a, b]))


def lu(matrix: np.ndarray) -> list[np.ndarray]:
    """LU with partial pivoting; a column of zeros is skipped, as LAPACK does."""
    a = matrix.copy()
    rows, cols = a.shape
    permutation: list[Any] = [jnp.int32(i) for i in range(rows)]
    pivots: list[Any] = []
    for k in range(min(rows, cols)):
        size = [lax.abs(a[i, k]) for i in range(k, rows)]
        best, pivot = size[0], jnp.int32(k)
        for i, candidate in enumerate(size[1:], k + 1):
            larger = lax.gt(*together([candidate, best]))
            best = lax.select_n(*together([larger, best, candidate]))
            pivot = lax.select_n(*together([larger, pivot, jnp.int32(i)]))
        pivots.append(pivot)
        for i in range(k + 1, rows):
            swap = lax.eq(*together([pivot, jnp.int32(i)]))
            for line in (a[:, j] for j in range(cols)):
                line[k], line[i] = _swapped(swap, line[k], line[i])
            permutation[k], permutation[i] = _swapped(
                swap, permutation[k], permutation[i]
            )
        _eliminate(a, k)
    return [a, _vector(pivots), _vector(permutation)]


def _vector(items: Sequence[Any]) -> np.ndarray:
    out = np.empty(len(items), object)
    for i, item in enumerate(items):
        out[i] = item
    return out


def _eliminate(a: np.ndarray, k: int) -> None:
    rows, cols = a.shape
    zero = jnp.zeros((), a[k, k].dtype)
    singular = lax.eq(*together([a[k, k], zero]))
    for i in range(k + 1, rows):
        ratio = lax.div(*together([a[i, k], a[k, k]]))
        factor = lax.select_n(*together([singular, ratio, a[i, k]]))
        a[i, k] = factor
        for j in range(k + 1, cols):
            a[i, j] = _minus(a[i, j], _times(factor, a[k, j]))


def _swapped(swap: Any, x: Any, y: Any) -> tuple[Any, Any]:
    return (
        lax.select_n(*together([swap, x, y])),
        lax.select_n(*together([swap, y, x])),
    )


def triangular_solve(
    params: Mapping[str, Any], a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Substitution, row by row, for `op(a) x = b`."""
    lower = params["lower"]
    if params["transpose_a"]:
        a, lower = a.T, not lower
    n = a.shape[0]
    x = b.copy()
    for i in range(n) if lower else reversed(range(n)):
        others = range(i) if lower else range(i + 1, n)
        for j in range(x.shape[1]):
            value = x[i, j]
            for k in others:
                value = _minus(value, _times(a[i, k], x[k, j]))
            if not params["unit_diagonal"]:
                value = lax.div(*together([value, a[i, i]]))
            x[i, j] = value
    return x
