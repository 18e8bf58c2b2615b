"""Buffers filled row by row: writes and reads at indices known over the trip.

A *row* is one position along one axis of an array, the other axes whole. Out-of-range
rules come first: `dynamic_slice` clamps, a gather or scatter by its mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rewriter import jax_compat as jc
from rewriter.graph import Loop, Source, reads
from rewriter.indices import TABLE_LIMIT, Affine, Known, Table, constant, rows
from rewriter.orient import evaluate


@dataclass(frozen=True)
class Access:
    """A read or write of `window` consecutive rows of axis `axis` at `position`.

    `squeezed` tells that the axis is missing from the value (gather, scatter).
    """

    axis: int
    position: Known
    window: int
    squeezed: bool
    drops: bool = False  # out-of-range writes are dropped, not clamped
    fixed: tuple[tuple[int, Any], ...] = ()  # other axes: one row at this Source

    def table(self, length: int) -> np.ndarray:
        """Return all positions, one per storage index."""
        return rows(self.position, length).reshape(length)

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

    def without_axis(self) -> Access:
        """The same access to values that lack the axis."""
        return replace(self, squeezed=True)


def same_position(a: Access, b: Access, length: int) -> bool:
    """Whether two accesses touch the same rows at every step."""
    if (a.axis, a.window) != (b.axis, b.window) or a.fixed or b.fixed:
        return False
    if isinstance(a.position, Affine) and isinstance(b.position, Affine):
        return bool(
            (a.position.base == b.position.base).all()
            and (a.position.step == b.position.step).all()
        )
    return length <= TABLE_LIMIT and np.array_equal(a.table(length), b.table(length))


def clamped(position: Known, limit: int, length: int) -> Known | None:
    """Return positions clamped into [0, limit], or None if that is too long a table."""
    if isinstance(position, Affine):
        if all(0 <= int(e) <= limit for e in position.ends(length)):
            return position
        if length > TABLE_LIMIT:
            return None
    return Table(np.clip(rows(position, length).reshape(length), 0, limit))


class Indices:
    """Index atoms of a loop body: known over the trip, or the same at every step."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.length = loop, loop.length
        self.known = loop.known()
        self._made = {v: e for e in loop.eqns for v in e.outvars}
        self._consts = dict(loop.consts)

    def of(self, atom: Any) -> Known | None:
        """Return an atom's values over the trip."""
        if isinstance(atom, jc.Literal):
            return constant(atom.val)
        return self.known.get(atom)

    def fixed(self, atom: Any) -> Source | None:
        """Return an atom that does not change from step to step as a source."""
        if isinstance(atom, jc.Literal):
            return Source(lambda _: atom.val, constant(atom.val))
        eqns: list[Any] = []
        if not self._collect(atom, eqns, set()):
            return None
        order = {id(e): i for i, e in enumerate(self.loop.eqns)}
        eqns.sort(key=lambda e: order[id(e)])

        def get(args: Sequence[Any]) -> Any:
            env = {v: self._consts[v].get(args) for v in self._leaves(atom, eqns)}
            evaluate(eqns, env, set())
            return env[atom]

        return Source(get)

    def _leaves(self, atom: Any, eqns: Sequence[Any]) -> list[Any]:
        wanted = [atom, *(v for e in eqns for v in reads(e))]
        return [v for v in dict.fromkeys(wanted) if v in self._consts]

    def _collect(self, atom: Any, eqns: list[Any], seen: set[int]) -> bool:
        if isinstance(atom, jc.Literal) or atom in self._consts:
            return True
        eqn = self._made.get(atom)
        if eqn is None or eqn.effects or len(eqns) > 64:
            return False
        if id(eqn) not in seen:
            seen.add(id(eqn))
            eqns.append(eqn)
        return all(self._collect(v, eqns, seen) for v in eqn.invars)

    def parts(self, atom: Any) -> list[Any] | None:
        """Split an index vector of shape (k,) into k scalar atoms of the body."""
        if jc.shape_of(atom) == (1,):
            known = self.of(atom)
            if isinstance(known, Affine):
                return [
                    Affine(known.base.reshape(()), known.step.reshape(()), known.dtype)
                ]
            if known is not None:
                return [Table(known.rows.reshape(-1))]
        eqn = None if isinstance(atom, jc.Literal) else self._made.get(atom)
        if eqn is None:
            return None
        if eqn.primitive.name == "concatenate":
            found = [self.parts(v) for v in eqn.invars]
            if any(f is None for f in found):
                return None
            return [a for f in found if f is not None for a in f]
        if eqn.primitive.name == "stack" and len(jc.shape_of(atom)) == 1:
            return list(eqn.invars)
        if eqn.primitive.name in ("broadcast_in_dim", "reshape") and (
            jc.shape_of(atom) == (1,) and not getattr(eqn.invars[0].aval, "shape", (1,))
        ):
            return [eqn.invars[0]]
        return None

    def place(
        self,
        starts: Sequence[Any],
        sizes: Sequence[int],
        shape: Sequence[int],
    ) -> tuple[int, Known, tuple[tuple[int, Any], ...]] | None:
        """Return the axis that changes, its positions, and the other axes' starts.

        Positions are not clamped yet; an axis taken whole needs no start.
        """
        axes = [k for k in range(len(shape)) if sizes[k] != shape[k]]
        axes = axes or [k for k in range(len(shape)) if shape[k] == 1][:1] or [0]
        moving: list[tuple[int, Known]] = []
        fixed: list[tuple[int, Any]] = []
        for k in axes:
            known = (
                starts[k]
                if isinstance(starts[k], (Affine, Table))
                else (self.of(starts[k]))
            )
            if known is not None and not _is_scalar(known):
                return None
            if known is not None and not (
                isinstance(known, Affine) and known.is_constant
            ):
                moving.append((k, known))
                continue
            source = (
                Source(lambda _, v=int(known.base): v, known)
                if isinstance(known, Affine)
                else self.fixed(starts[k])
            )
            if source is None:
                return None
            fixed.append((k, source))
        if not moving and len(axes) == 1 and isinstance(fixed[0][1].known, Affine):
            return fixed[0][0], fixed[0][1].known, ()
        if len(moving) != 1:
            return None
        return moving[0][0], moving[0][1], tuple(fixed)


def _is_scalar(known: Known) -> bool:
    if isinstance(known, Affine):
        return known.base.ndim == 0 and known.step.ndim == 0
    return known.rows.ndim == 1


def read_access(eqn: Any, indices: Indices) -> Access | None:
    """Return how a `dynamic_slice` or `gather` reads its operand, if it reads rows."""
    shape, length = eqn.invars[0].aval.shape, indices.length
    if not shape:
        return None
    if eqn.primitive.name == "dynamic_slice":
        sizes = eqn.params["slice_sizes"]
        found = indices.place(eqn.invars[1 : 1 + len(shape)], sizes, shape)
        if found is None:
            return None
        axis, position, fixed = found
        inside = clamped(position, shape[axis] - sizes[axis], length)
        if inside is None or any(sizes[k] != 1 for k, _ in fixed):
            return None
        return Access(axis, inside, sizes[axis], squeezed=False, fixed=fixed)
    if eqn.primitive.name != "gather":
        return None
    return _gather_access(eqn, indices)


def _gather_access(eqn: Any, indices: Indices) -> Access | None:
    p, shape, length = eqn.params, eqn.invars[0].aval.shape, indices.length
    numbers, sizes = p["dimension_numbers"], p["slice_sizes"]
    if numbers.operand_batching_dims or len(numbers.start_index_map) != 1:
        return None
    axis = numbers.start_index_map[0]
    parts = indices.parts(eqn.invars[1])
    if parts is None or tuple(numbers.collapsed_slice_dims) not in ((axis,), ()):
        return None
    position = (
        parts[0] if isinstance(parts[0], (Affine, Table)) else indices.of(parts[0])
    )
    if position is None or not _is_scalar(position):
        return None
    if any(sizes[k] != shape[k] for k in range(len(shape)) if k != axis):
        return None
    window, squeezed = sizes[axis], bool(numbers.collapsed_slice_dims)
    if tuple(numbers.offset_dims) != tuple(range(len(shape) - squeezed)):
        return None
    inside = clamped(position, shape[axis] - window, length)
    if inside is None:
        return None
    if (
        "FILL" in str(p["mode"])
        and inside is not position
        and not np.array_equal(
            rows(inside, length).reshape(-1), rows(position, length).reshape(-1)
        )
    ):
        return None
    return Access(axis, inside, window, squeezed)


_COMBINE = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter_add": "add",
    "scatter-mul": "mul",
    "scatter_mul": "mul",
    "scatter-min": "min",
    "scatter_min": "min",
    "scatter-max": "max",
    "scatter_max": "max",
}


def write_access(eqn: Any, indices: Indices) -> tuple[Access, str, Any] | None:
    """Return how an equation writes rows: access, combination, update atom."""
    if not eqn.invars or not getattr(eqn.invars[0].aval, "shape", ()):
        return None
    if eqn.primitive.name == "dynamic_update_slice":
        access = _update_slice_access(eqn, indices)
        return None if access is None else (access, "set", eqn.invars[1])
    how = _COMBINE.get(eqn.primitive.name)
    access = None if how is None else _scatter_access(eqn, indices, how)
    return None if access is None or how is None else (access, how, eqn.invars[2])


def _update_slice_access(eqn: Any, indices: Indices) -> Access | None:
    shape, sizes = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    found = indices.place(eqn.invars[2 : 2 + len(shape)], sizes, shape)
    if found is None or any(sizes[k] != 1 for k, _ in found[2]):
        return None
    axis, position, fixed = found
    inside = clamped(position, shape[axis] - sizes[axis], indices.length)
    if inside is None:
        return None
    return Access(axis, inside, sizes[axis], False, fixed=fixed)


def _scatter_access(eqn: Any, indices: Indices, how: str) -> Access | None:
    shape = eqn.invars[0].aval.shape
    numbers, update = eqn.params["dimension_numbers"], eqn.invars[2]
    axes = tuple(numbers.scatter_dims_to_operand_dims)
    parts = indices.parts(eqn.invars[1])
    if parts is None or numbers.operand_batching_dims or len(parts) != len(axes):
        return None
    whole = tuple(s for k, s in enumerate(shape) if k not in axes)
    if (
        tuple(numbers.inserted_window_dims) != tuple(sorted(axes))
        or update.aval.shape != whole
        or tuple(numbers.update_window_dims) != tuple(range(len(whole)))
    ):
        return None
    starts: list[Any] = [None] * len(shape)
    for k, part in zip(axes, parts, strict=True):
        starts[k] = part
    found = indices.place(
        starts, [1 if k in axes else s for k, s in enumerate(shape)], shape
    )
    if found is None:
        return None
    axis, position, fixed = found
    if {axis, *(k for k, _ in fixed)} != set(axes):
        return None
    access = _by_mode(eqn, axis, position, shape, indices.length)
    if access is None or not fixed:
        return access
    mode = str(eqn.params["mode"])
    if access.drops or "CLIP" in mode or how != "set":
        return None
    guarded = tuple((k, Guarded(s, shape[k], "PROMISE" not in mode)) for k, s in fixed)
    return replace(access, fixed=guarded)


@dataclass(frozen=True)
class Guarded:
    """A fixed start with the size of its axis: writes outside are dropped."""

    source: Source
    size: int
    drops: bool


def _by_mode(
    eqn: Any, axis: int, position: Known, shape: Sequence[int], length: int
) -> Access | None:
    mode = str(eqn.params["mode"])
    inside = clamped(position, shape[axis] - 1, length)
    if inside is position:
        return Access(axis, position, 1, True)
    if "CLIP" in mode and inside is not None:
        return Access(axis, inside, 1, True)
    if length > TABLE_LIMIT:
        return None
    table = rows(position, length).reshape(length)
    if ((table >= 0) & (table < shape[axis])).all():
        return Access(axis, Table(table), 1, True)
    if "DROP" in mode or "FILL" in mode:
        return Access(axis, Table(table), 1, True, drops=True)
    return None


def distinct(access: Access, length: int) -> bool:
    """Whether no row is written twice."""
    if isinstance(access.position, Affine):
        return length == 1 or abs(access.step) >= access.window
    if access.window != 1:
        return False
    table = access.table(length)
    return len(np.unique(table)) == length
