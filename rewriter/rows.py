"""Taking and putting rows: all steps' reads or writes of an array at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter.buffers import Access, Guarded
from rewriter.indices import Affine


def take_rows(operand: Any, access: Access, length: int, args: Sequence[Any]) -> Any:
    """Return the rows read at every step, stacked: `(length, *value shape)`."""
    axis, window = access.axis, access.window
    for k, source in access.fixed:
        index = jnp.clip(jnp.asarray(source.get(args)), 0, operand.shape[k] - 1)
        operand = lax.dynamic_slice_in_dim(operand, index, 1, k)
    if isinstance(access.position, Affine):
        picked = _affine_rows(operand, access, length)
    else:
        table = access.table(length)
        index = (
            table if window == 1 else (table[:, None] + np.arange(window)).reshape(-1)
        )
        picked = jnp.take(
            operand, jnp.asarray(index.astype(np.int32)), axis=axis, mode="clip"
        )
    if access.squeezed and window == 1:
        return jnp.moveaxis(picked, axis, 0)
    shape = picked.shape
    split = picked.reshape(*shape[:axis], length, window, *shape[axis + 1 :])
    stacked = jnp.moveaxis(split, axis, 0)
    return jnp.squeeze(stacked, axis + 1) if access.squeezed else stacked


def _affine_rows(operand: Any, access: Access, length: int) -> Any:
    axis, window, step, base = access.axis, access.window, access.step, access.base
    if length == 0:
        return lax.slice_in_dim(operand, 0, 0, axis=axis)
    if step == 0:
        row = lax.slice_in_dim(operand, base, base + window, axis=axis)
        tiled = jnp.broadcast_to(
            jnp.expand_dims(row, axis), (*row.shape[:axis], length, *row.shape[axis:])
        )
        return tiled.reshape(*row.shape[:axis], length * window, *row.shape[axis + 1 :])
    low = min(base, base + step * (length - 1))
    if window == 1:
        last = low + abs(step) * (length - 1) + 1
        whole = low == 0 and last == operand.shape[axis] == length
        picked = (
            operand if whole else lax.slice_in_dim(operand, low, last, abs(step), axis)
        )
        return picked if step > 0 else lax.rev(picked, (axis,))
    assert abs(step) == window
    picked = lax.slice_in_dim(operand, low, low + length * window, axis=axis)
    if step > 0:
        return picked
    shape = picked.shape
    blocks = picked.reshape(*shape[:axis], length, window, *shape[axis + 1 :])
    return lax.rev(blocks, (axis,)).reshape(shape)


def is_whole(access: Access, length: int) -> bool:
    """Whether the rows are those of the array's first axis from the first on."""
    if not isinstance(access.position, Affine) or access.fixed or access.axis != 0:
        return False
    return access.window == 1 and access.base == 0 and (access.step == 1 or length == 1)


def put_rows(
    buffer: Any,
    stacked: Any,
    access: Access,
    how: str,
    length: int,
    args: Sequence[Any],
) -> Any:
    """Return the buffer with all steps' rows written at once."""
    if access.fixed:
        return _put_line(buffer, stacked, access, length, args)
    axis, window = access.axis, access.window
    values = jnp.expand_dims(stacked, axis + 1) if access.squeezed else stacked
    moved = jnp.moveaxis(values, 0, axis)
    shape = moved.shape
    flat = moved.reshape(*shape[:axis], length * window, *shape[axis + 2 :])
    if (
        how == "set"
        and isinstance(access.position, Affine)
        and (abs(access.step) == window or length == 1)
    ):
        return _contiguous(buffer, flat, access, length)
    if isinstance(access.position, Affine):
        index: Any = access.base + access.step * jnp.arange(length, dtype=jnp.int32)
        if window != 1:
            index = (index[:, None] + jnp.arange(window, dtype=jnp.int32)).reshape(-1)
    else:
        index = jnp.asarray(access.table(length).astype(np.int32))
        if access.drops:
            size = buffer.shape[axis]
            index = jnp.where((index >= 0) & (index < size), index, size)
    at = buffer.at[(slice(None),) * axis + (index,)]
    put = {
        "set": at.set,
        "add": at.add,
        "mul": at.multiply,
        "min": at.min,
        "max": at.max,
    }[how]
    return put(
        flat,
        mode="drop" if access.drops else "promise_in_bounds",
        unique_indices=not access.drops,
    )


def _put_line(
    buffer: Any, stacked: Any, access: Access, length: int, args: Sequence[Any]
) -> Any:
    """Write rows along one axis while other axes stay at one place each."""
    starts: list[Any] = [0] * buffer.ndim
    sizes = list(buffer.shape)
    inside: Any = True
    for k, start in access.fixed:
        source = start.source if isinstance(start, Guarded) else start
        index = jnp.asarray(source.get(args), jnp.int32)
        if isinstance(start, Guarded) and start.drops:
            inside = inside & (index >= 0) & (index < start.size)
        starts[k], sizes[k] = jnp.clip(index, 0, buffer.shape[k] - 1), 1
    old = lax.dynamic_slice(buffer, starts, sizes)
    missing = [k for k, _ in access.fixed] if access.squeezed else []
    lead = 1 if access.squeezed else 0
    for k in sorted(missing):
        at = k + 1 - (lead if k > access.axis else 0)
        stacked = jnp.expand_dims(stacked, at)
    new = put_rows(old, stacked, replace(access, fixed=()), "set", length, args)
    if inside is not True:
        new = jnp.where(inside, new, old)
    return lax.dynamic_update_slice(buffer, new, starts)


def _contiguous(buffer: Any, flat: Any, access: Access, length: int) -> Any:
    axis, window = access.axis, access.window
    low = access.base
    if length > 1 and access.step < 0:
        low = access.base + access.step * (length - 1)
        shape = flat.shape
        blocks = flat.reshape(*shape[:axis], length, window, *shape[axis + 1 :])
        flat = lax.rev(blocks, (axis,)).reshape(shape)
    if flat.shape == buffer.shape:
        return flat
    return lax.dynamic_update_slice_in_dim(buffer, flat, low, axis)
