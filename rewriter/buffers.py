"""Buffers filled row by row: writes and reads at indices known over the trip.

A *row* is one position along one axis of an array, the other axes whole. Out-of-range
rules come first: `dynamic_slice` clamps, a gather or scatter by its mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.indices import TABLE_LIMIT, Affine, Known, Table, constant, rows


@dataclass(frozen=True)
class Access:
    """A read or write of `window` consecutive rows of axis `axis` at `position`.

    `squeezed` tells that the axis is missing from the value (gather, scatter).
    """

    axis: int
    position: Known
    window: int
    squeezed: bool
    drops: bool = False         # out-of-range writes are dropped, not clamped

    def table(self, length: int) -> np.ndarray:
        """Return all positions, one per storage index."""
        return rows(self.position, length).reshape(length)

    def is_affine(self) -> bool:
        """Whether positions are `base + step * j` with a step."""
        return isinstance(self.position, Affine) and not self.position.is_constant

    @property
    def step(self) -> int:
        """Distance between the positions of neighbouring storage indices."""
        assert isinstance(self.position, Affine)
        return int(self.position.step)

    @property
    def base(self) -> int:
        """Position at storage index 0."""
        assert isinstance(self.position, Affine)
        return int(self.position.base)


def same_position(a: Access, b: Access, length: int) -> bool:
    """Whether two accesses touch the same rows at every step."""
    if (a.axis, a.window) != (b.axis, b.window):
        return False
    if isinstance(a.position, Affine) and isinstance(b.position, Affine):
        return bool((a.position.base == b.position.base).all()
                    and (a.position.step == b.position.step).all())
    return length <= TABLE_LIMIT and np.array_equal(a.table(length), b.table(length))


def _lookup(known: Mapping[Any, Known], atom: Any) -> Known | None:
    return constant(atom.val) if isinstance(atom, jc.Literal) else known.get(atom)


def _is_zero(known: Known) -> bool:
    return isinstance(known, Affine) and known.is_constant and not known.base.any()


def clamped(position: Known, limit: int, length: int) -> Known | None:
    """Return positions clamped into [0, limit], or None if that is too long a table."""
    if isinstance(position, Affine):
        if all(0 <= int(e) <= limit for e in position.ends(length)):
            return position
        if length > TABLE_LIMIT:
            return None
    return Table(np.clip(rows(position, length).reshape(length), 0, limit))


def _one_axis(
    starts: Sequence[Known | None], sizes: Sequence[int], shape: Sequence[int],
    length: int, clamps: bool,
) -> tuple[int, Known] | None:
    """Return the axis that is not whole and its positions, by the clamping rule."""
    axes = [k for k in range(len(shape)) if sizes[k] != shape[k]]
    if not axes:
        axes = [k for k in range(len(shape)) if shape[k] == 1][:1] or [0]
    if len(axes) != 1:
        return None
    axis = axes[0]
    position = starts[axis]
    if position is None or np.asarray(
            position.base if isinstance(position, Affine) else position.rows[0]).ndim:
        return None
    if clamps:
        position = clamped(position, shape[axis] - sizes[axis], length)
        return None if position is None else (axis, position)
    return axis, position


def read_access(eqn: Any, known: Mapping[Any, Known], length: int) -> Access | None:
    """Return how a `dynamic_slice` or `gather` reads its operand, if it reads rows."""
    shape = eqn.invars[0].aval.shape
    if not shape:
        return None
    if eqn.primitive.name == "dynamic_slice":
        sizes = eqn.params["slice_sizes"]
        found = _one_axis([_lookup(known, v) for v in eqn.invars[1:1 + len(shape)]],
                          sizes, shape, length, clamps=True)
        if found is None:
            return None
        axis, position = found
        return Access(axis, position, sizes[axis], squeezed=False)
    if eqn.primitive.name != "gather":
        return None
    return _gather_access(eqn, known, length)


def _gather_access(eqn: Any, known: Mapping[Any, Known], length: int) -> Access | None:
    p, shape = eqn.params, eqn.invars[0].aval.shape
    numbers, sizes = p["dimension_numbers"], p["slice_sizes"]
    if numbers.operand_batching_dims or len(numbers.start_index_map) != 1:
        return None
    axis = numbers.start_index_map[0]
    position = _index_of(eqn.invars[1], known)
    if position is None or tuple(numbers.collapsed_slice_dims) not in ((axis,), ()):
        return None
    if any(sizes[k] != shape[k] for k in range(len(shape)) if k != axis):
        return None
    window, squeezed = sizes[axis], bool(numbers.collapsed_slice_dims)
    if tuple(numbers.offset_dims) != tuple(range(len(shape) - squeezed)):
        return None
    limit = shape[axis] - window
    inside = clamped(position, limit, length)
    if inside is None:
        return None
    if "FILL" in str(p["mode"]) and inside is not position and not np.array_equal(
            rows(inside, length).reshape(-1), rows(position, length).reshape(-1)):
        return None
    return Access(axis, inside, window, squeezed)


def _index_of(atom: Any, known: Mapping[Any, Known]) -> Known | None:
    """Return the single index inside an index vector of shape (1,)."""
    if atom.aval.shape != (1,):
        return None
    value = _lookup(known, atom)
    if isinstance(value, Affine):
        return Affine(value.base.reshape(()), value.step.reshape(()), value.dtype)
    return None if value is None else Table(value.rows.reshape(-1))


_COMBINE = {"scatter": "set", "scatter-add": "add", "scatter_add": "add",
            "scatter-mul": "mul", "scatter_mul": "mul", "scatter-min": "min",
            "scatter_min": "min", "scatter-max": "max", "scatter_max": "max"}


def write_access(
    eqn: Any, known: Mapping[Any, Known], length: int
) -> tuple[Access, str, Any] | None:
    """Return how an equation writes rows: access, combination, update atom."""
    shape = eqn.invars[0].aval.shape
    if not shape:
        return None
    if eqn.primitive.name == "dynamic_update_slice":
        update = eqn.invars[1]
        found = _one_axis([_lookup(known, v) for v in eqn.invars[2:2 + len(shape)]],
                          update.aval.shape, shape, length, clamps=True)
        if found is None:
            return None
        axis, position = found
        return Access(axis, position, update.aval.shape[axis], False), "set", update
    how = _COMBINE.get(eqn.primitive.name)
    if how is None:
        return None
    numbers = eqn.params["dimension_numbers"]
    position = _index_of(eqn.invars[1], known)
    update = eqn.invars[2]
    if position is None or numbers.operand_batching_dims or (
            len(numbers.scatter_dims_to_operand_dims) != 1):
        return None
    axis = numbers.scatter_dims_to_operand_dims[0]
    if tuple(numbers.inserted_window_dims) != (axis,):
        return None
    whole = tuple(s for k, s in enumerate(shape) if k != axis)
    if update.aval.shape != whole or (
            tuple(numbers.update_window_dims) != tuple(range(len(whole)))):
        return None
    return _by_mode(eqn, axis, position, shape, length, how, update)


def _by_mode(eqn: Any, axis: int, position: Known, shape: Sequence[int], length: int,
             how: str, update: Any) -> tuple[Access, str, Any] | None:
    mode = str(eqn.params["mode"])
    inside = clamped(position, shape[axis] - 1, length)
    if inside is position:
        return Access(axis, position, 1, True), how, update
    if "CLIP" in mode and inside is not None:
        return Access(axis, inside, 1, True), how, update
    if length > TABLE_LIMIT:
        return None
    table = rows(position, length).reshape(length)
    if ((table >= 0) & (table < shape[axis])).all():
        return Access(axis, Table(table), 1, True), how, update
    if "DROP" in mode or "FILL" in mode:
        return Access(axis, Table(table), 1, True, drops=True), how, update
    return None


def distinct(access: Access, length: int) -> bool:
    """Whether no row is written twice."""
    if isinstance(access.position, Affine):
        return length == 1 or abs(access.step) >= access.window
    if access.window != 1:
        return False
    table = access.table(length)
    return len(np.unique(table)) == length


# ------------------------------------------------------------ taking and putting rows


def take_rows(operand: Any, access: Access, length: int) -> Any:
    """Return the rows read at every step, stacked: `(length, *value shape)`."""
    axis, window = access.axis, access.window
    if isinstance(access.position, Affine):
        picked = _affine_rows(operand, access, length)
    else:
        table = access.table(length)
        index = table if window == 1 else (table[:, None] + np.arange(window)).reshape(-1)
        picked = jnp.take(operand, jnp.asarray(index.astype(np.int32)), axis=axis,
                          mode="clip")
    shape = picked.shape
    split = picked.reshape(*shape[:axis], length, window, *shape[axis + 1:])
    stacked = jnp.moveaxis(split, axis, 0)
    return jnp.squeeze(stacked, axis + 1) if access.squeezed else stacked


def _affine_rows(operand: Any, access: Access, length: int) -> Any:
    axis, window, step, base = access.axis, access.window, access.step, access.base
    if step == 0:
        row = lax.slice_in_dim(operand, base, base + window, axis=axis)
        tiled = jnp.broadcast_to(jnp.expand_dims(row, axis),
                                 (*row.shape[:axis], length, *row.shape[axis:]))
        return tiled.reshape(*row.shape[:axis], length * window, *row.shape[axis + 1:])
    low = min(base, base + step * (length - 1))
    if window == 1:
        picked = lax.slice_in_dim(operand, low, low + abs(step) * (length - 1) + 1,
                                  abs(step), axis)
        return picked if step > 0 else lax.rev(picked, (axis,))
    assert abs(step) == window
    picked = lax.slice_in_dim(operand, low, low + length * window, axis=axis)
    if step > 0:
        return picked
    shape = picked.shape
    blocks = picked.reshape(*shape[:axis], length, window, *shape[axis + 1:])
    return lax.rev(blocks, (axis,)).reshape(shape)


def put_rows(buffer: Any, stacked: Any, access: Access, how: str, length: int) -> Any:
    """Return the buffer with all steps' rows written at once."""
    axis, window = access.axis, access.window
    values = jnp.expand_dims(stacked, axis + 1) if access.squeezed else stacked
    moved = jnp.moveaxis(values, 0, axis)
    shape = moved.shape
    flat = moved.reshape(*shape[:axis], length * window, *shape[axis + 2:])
    if how == "set" and isinstance(access.position, Affine) and (
            abs(access.step) == window or length == 1):
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
    put = {"set": at.set, "add": at.add, "mul": at.multiply, "min": at.min,
           "max": at.max}[how]
    return put(flat, mode="drop" if access.drops else "promise_in_bounds",
               unique_indices=not access.drops)


def _contiguous(buffer: Any, flat: Any, access: Access, length: int) -> Any:
    axis, window = access.axis, access.window
    low = access.base
    if length > 1 and access.step < 0:
        low = access.base + access.step * (length - 1)
        shape = flat.shape
        blocks = flat.reshape(*shape[:axis], length, window, *shape[axis + 1:])
        flat = lax.rev(blocks, (axis,)).reshape(shape)
    if flat.shape == buffer.shape:
        return flat
    return lax.dynamic_update_slice_in_dim(buffer, flat, low, axis)
