"""States of a linear recurrence, all at once (Blelloch, 1990)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter.emit import emitted


def block_states(a: float, b: Any, start: Any, block: int, back: bool) -> Any:
    """Return the states of `h = a * h + b` after each step, block by block.

    The loop runs instead where a zero power may have met what is not finite. `b` and
    the states: (T, ...); `start`: (...); inside, the trip is the last axis.
    """
    length, dtype = b.shape[0], b.dtype
    lanes = jnp.moveaxis(b.reshape(length, -1), 0, 1)
    rest = -length % block
    pad = (rest, 0, 0) if back else (0, rest, 0)
    blocks = lax.pad(lanes, jnp.zeros((), dtype), [(0, 0, 0), pad])
    blocks = blocks.reshape(blocks.shape[0], -1, block)
    at = np.arange(block)
    gap = at[:, None] - at if not back else at - at[:, None]
    powers = np.where(gap >= 0, float(a) ** np.maximum(gap, 0), 0.0)
    own = jnp.matmul(blocks, jnp.asarray(powers.T, dtype), precision="highest")
    ends = own[:, :, 0 if back else -1]
    step = emitted(lambda h, end: (end + dtype.type(float(a) ** block) * h, h))
    _, entries = lax.scan(step, start.reshape(-1), ends.T, reverse=back)
    since = (block - at if back else at + 1).astype(float)
    safe = jnp.finfo(dtype).max / 4

    def joined() -> Any:
        found = own + entries.T[:, :, None] * jnp.asarray(float(a) ** since, dtype)
        found = found.reshape(found.shape[0], -1)
        return found[:, rest:] if back else found[:, :length]

    def in_order() -> Any:  # in the same layout: XLA would move a transpose out
        def step(state: Any, at: Any) -> Any:
            found, h = state
            h = dtype.type(a) * h + lax.dynamic_index_in_dim(found, at, 1)
            return (lax.dynamic_update_slice_in_dim(found, h, at, 1), h), None

        init = lanes, start.reshape(-1, 1)
        steps = jnp.arange(length)
        return lax.scan(emitted(step), init, steps, reverse=back)[0][0]

    ok = (jnp.max(jnp.abs(own)) < safe) & (jnp.max(jnp.abs(entries)) < safe)
    return jnp.moveaxis(lax.cond(ok, joined, in_order), 1, 0).reshape(b.shape)


def prefix_states(a: Any, b: Any, start: Any, back: bool) -> Any:
    """Return the states of `h = a * h + b` after each step by an associative scan.

    The loop runs instead where that is not finite. `a`, `b`: (T, ...); `start`: (...).
    """

    def join(one: Any, two: Any) -> Any:
        return one[0] * two[0], two[0] * one[1] + two[1]

    scale, shift = lax.associative_scan(join, (a, b), reverse=back)
    found = scale * start + shift
    ok = jnp.all(jnp.isfinite(found))
    return lax.cond(ok, lambda: found, lambda: _in_order(a, b, start, back))


def _in_order(a: Any, b: Any, start: Any, back: bool) -> Any:
    """Return the states after each step, step by step."""
    a = jnp.broadcast_to(a, b.shape)

    def step(h: Any, row: Any) -> Any:
        h = row[0] * h + row[1]
        return h, h

    return lax.scan(emitted(step), start, (a, b), reverse=back)[1]
