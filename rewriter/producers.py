"""Producers: what makes an operand of a loop, row by row, from smaller arrays.

`exp(delta[:, :, None] * A)` is read row by row; row t needs row t of `delta` and all of
`A`. `producer` follows an operand back through elementwise work, broadcasts and outer
products to its *leaves*, and can evaluate one row from rows of the leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from rewriter import jax_compat as jc
from rewriter.planes import ELEMENTWISE

_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})
MOST = 24  # equations of one producer


@dataclass(frozen=True)
class Producer:
    """The equations that make an array, and its leaves with the axis of the rows."""

    out: Any
    eqns: tuple[Any, ...]
    leaves: tuple[tuple[Any, int | None], ...]
    inner: tuple[Any, ...] = ()  # the leaves as the equations name them

    def row(self, values: Sequence[Any]) -> Any:
        """Return one row, given a row of each leaf (or the leaf, if it has none)."""
        env: dict[Any, Any] = {}
        axes = _axes(self.out, self.eqns)
        names = self.inner or tuple(v for v, _ in self.leaves)
        for name, (_, axis), value in zip(names, self.leaves, values, strict=True):
            env[name] = value if axis is None else lax.expand_dims(value, (axis,))
        for eqn in self.eqns:
            ins = [v.val if isinstance(v, jc.Literal) else env[v] for v in eqn.invars]
            env[eqn.outvars[0]] = unit_equation(eqn, ins, axes[eqn.outvars[0]])[0]
        return lax.squeeze(env[self.out], (0,))


def producer(
    out: Any, made: Mapping[Any, Any], available: Mapping[Any, Any]
) -> Producer | None:
    """Return what makes an array with rows along its first axis.

    Args:
        out: the variable.
        made: the equation that makes each variable, plain jits inlined.
        available: variables that the loop may read.
    """
    eqns: dict[int, Any] = {}
    leaves: dict[Any, int | None] = {}
    axes: dict[Any, int] = {out: 0}

    def visit(var: Any, axis: int | None, top: bool) -> bool:
        eqn = made.get(var)
        if axis is not None and eqn is not None and len(eqns) < MOST:
            sources = _sources(eqn, axis)
            if sources is not None:
                if axes.setdefault(var, axis) != axis:
                    return False
                for source, own in sources:
                    if not visit(source, own, False):
                        return False
                eqns[id(eqn)] = eqn
                return True
        if top or var not in available:
            return False
        return leaves.setdefault(var, axis) == axis

    if not visit(out, 0, True):
        return None
    order = {id(e): i for i, e in enumerate(made.values())}
    ordered = sorted(eqns.values(), key=lambda e: order[id(e)])
    return Producer(out, tuple(ordered), tuple(leaves.items()))


def _sources(eqn: Any, axis: int) -> list[tuple[Any, int | None]] | None:
    """Return the operands with the axis of their rows, or None if rows do not part."""
    if len(eqn.outvars) != 1 or eqn.effects:
        return None
    out = eqn.outvars[0].aval.shape
    name = eqn.primitive.name
    found: list[tuple[Any, int | None]] = []
    for k, v in enumerate(eqn.invars):
        if isinstance(v, jc.Literal):
            continue
        shape = v.aval.shape
        if name in ELEMENTWISE or name == "select_n":
            own = axis if len(shape) == len(out) and shape[axis] == out[axis] else None
            if (
                shape
                and own is None
                and not (len(shape) == len(out) and shape[axis] == 1)
            ):
                return None
        elif name == "broadcast_in_dim":
            dims = tuple(eqn.params["broadcast_dimensions"])
            at = dims.index(axis) if axis in dims else None
            own = at if at is not None and shape[at] == out[axis] else None
        elif name == "transpose":
            own = int(eqn.params["permutation"][axis])
        elif name in _RESHAPES:
            own = _reshaped(shape, out, axis)
            if own is None:
                return None
        elif name == "dot_general":
            if len(eqn.params["dimension_numbers"][0][0]):
                return None  # a contraction is a matrix product: better at once
            own = _dot_axis(eqn, k, axis)
        else:
            return None
        found.append((v, own))
    return found if any(own is not None for _, own in found) else None


def _reshaped(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Return where an axis was before axes of size one came or went."""
    old = [k for k, n in enumerate(before) if n != 1]
    new = [k for k, n in enumerate(after) if n != 1]
    if [before[k] for k in old] != [after[k] for k in new] or axis not in new:
        return None
    return old[new.index(axis)]


def _dot_axis(eqn: Any, operand: int, axis: int) -> int | None:
    """Return the operand's axis that is an axis of an outer product."""
    _, batch = eqn.params["dimension_numbers"]
    mine = batch[operand]
    if axis < len(mine):
        return int(mine[axis])
    left = len(eqn.invars[0].aval.shape) - len(batch[0])
    at = axis - len(mine)
    if (at < left) != (operand == 0):
        return None
    free = [k for k in range(len(eqn.invars[operand].aval.shape)) if k not in mine]
    return free[at if operand == 0 else at - left]


def _axes(out: Any, eqns: Sequence[Any]) -> dict[Any, int]:
    """Return the axis of the rows of every value that an equation makes."""
    axes: dict[Any, int] = {out: 0}
    for eqn in reversed(eqns):
        for v, own in _sources(eqn, axes[eqn.outvars[0]]) or ():
            if own is not None:
                axes[v] = own
    return axes


def unit_equation(eqn: Any, values: Sequence[Any], axis: int) -> list[Any]:
    """Evaluate an equation on one row: its axis has size one."""
    shape = list(eqn.outvars[0].aval.shape)
    shape[axis] = 1
    if eqn.primitive.name == "broadcast_in_dim":
        dims = eqn.params["broadcast_dimensions"]
        return [lax.broadcast_in_dim(values[0], shape, dims)]
    if eqn.primitive.name in _RESHAPES:
        return [lax.reshape(values[0], shape)]
    if eqn.primitive.name == "slice":
        first = list(eqn.params["start_indices"])
        last, steps = list(eqn.params["limit_indices"]), eqn.params["strides"]
        first[axis], last[axis] = 0, 1
        return [lax.slice(values[0], first, last, steps)]
    return jc.rebind(eqn, values)
