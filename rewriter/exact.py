"""Exact integers over a trip: sums and ends of known values that do not wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rewriter.indices import Affine, Known


def total(known: Known, length: int) -> np.ndarray:
    """Return the sum of the values at all steps, as Python integers."""
    if isinstance(known, Affine):
        pairs = length * (length - 1) // 2
        return integers(lambda b, s: b * length + s * pairs, known.base, known.step)
    return integers(int, known.rows.astype(object).sum(axis=0))


def largest(known: Known, length: int) -> np.ndarray:
    """Return the largest magnitude at any step, as floats."""
    rows = known.ends(length) if isinstance(known, Affine) else known.rows
    return np.max(np.abs(np.asarray(rows, np.float64)), axis=0)


def integers(fun: Callable[..., int], *arrays: Any) -> np.ndarray:
    """Apply a function of Python integers, which do not wrap, elementwise."""
    arrays = np.broadcast_arrays(*arrays)
    flat = [
        fun(*map(int, values)) for values in zip(*(a.flat for a in arrays), strict=True)
    ]
    out = np.empty(len(flat), object)
    out[:] = flat
    return out.reshape(arrays[0].shape)


def wrapped(value: np.ndarray, aval: Any) -> np.ndarray:
    """Return Python integers wrapped to an integer type."""
    bits = 8 * aval.dtype.itemsize
    wrapped = integers(lambda v: v % (1 << bits), np.broadcast_to(value, aval.shape))
    return wrapped.astype(f"u{aval.dtype.itemsize}").view(aval.dtype)
