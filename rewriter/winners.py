"""The best of many values, the best k, and counts, in passes that fill vector units.

XLA's CPU backend compares one pair at a time in `argmin` and in `top_k` (1.3 and 3.4 ns
an element on the machine of the constants); a masked sum or a maximum over values in
cache takes 0.2. Written for one row, to be batched by `jax.vmap`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

GROUP = 16  # columns of which one maximum is kept
SHORT = 512  # columns that `top_k` itself is left with
MOST = 1 << 22  # columns that a float32 counts


def only(able: Any, axis: int) -> tuple[Any, Any]:
    """Return the index of the one that is able, and whether there are several.

    One sum of `size + index` says both: it is at least `2 * size` for several, whatever
    it is rounded to.
    """
    size = able.shape[axis]
    column = lax.broadcasted_iota(jnp.int32, able.shape, axis)
    both = jnp.sum(jnp.where(able, (size + column).astype(jnp.float32), 0), axis=axis)
    index = both.astype(jnp.int32) - size
    if size > MOST:
        index = jnp.sum(jnp.where(able, column, 0), axis=axis)
    return jnp.clip(index, 0, size - 1), both >= 2 * size


def count(sure: Any, doubtful: Any) -> tuple[Any, Any]:
    """Return how many are sure, if none is doubtful, and whether any is."""
    size = sure.size
    if size > MOST:
        return jnp.sum(sure.astype(jnp.int32)), jnp.any(doubtful)
    marks = jnp.where(doubtful, size + 1, sure.astype(jnp.int32)).astype(jnp.float32)
    both = jnp.sum(marks)
    return both.astype(jnp.int32), both > size


def best(values: Any, k: int) -> tuple[Any, Any]:
    """Return `lax.top_k` of a vector, NaN, zeros of both signs and ties included.

    The best k lie in the k groups of neighbouring columns with the best maxima; groups
    keep their order, so that of equal values the first are taken.
    """
    groups = values.shape[0] // GROUP
    if not is_grouped(values.shape[0], k, values.dtype):
        out, index = lax.top_k(values, k)
        return out, index
    cut = groups * GROUP
    table = values[:cut].reshape(groups, GROUP)
    _, chosen = best(_turned(jnp.max(_turned(table), axis=1), values.dtype), k)
    chosen = jnp.sort(chosen)
    kept = jnp.concatenate([_rows(table, chosen).reshape(-1), values[cut:]])
    out, place = lax.top_k(kept, k)
    inside = _rows(chosen, jnp.minimum(place // GROUP, k - 1)) * GROUP + place % GROUP
    return out, jnp.where(place < k * GROUP, inside, cut + place - k * GROUP)


def is_grouped(size: int, k: int, dtype: Any) -> bool:
    """Whether the best k of so many are found by groups."""
    return size > SHORT and 4 * k * GROUP <= size and dtype in _INTEGERS


def _rows(table: Any, index: Any) -> Any:
    return table.at[index].get(mode="promise_in_bounds")


_INTEGERS = {jnp.dtype("float32"): jnp.int32, jnp.dtype("float64"): jnp.int64}


def _turned(values: Any, back: Any = None) -> Any:
    """Return integers in the total order of floats: -NaN first, NaN last; or back."""
    bits = values
    if back is None:
        bits = lax.bitcast_convert_type(values, _INTEGERS[values.dtype])
    most = jnp.iinfo(bits.dtype).max
    bits = bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & most)
    return bits if back is None else lax.bitcast_convert_type(bits, back)
