"""Reductions over a short last axis, feature by feature.

`sum((X - p) ** 2, axis=1)` over rows of a few features is run by XLA's CPU backend as
one short scalar loop per row. Column by column the same arithmetic is elementwise work
on long vectors. A `FeatureReduction` is such a reduction with the elementwise equations
under it; `components` evaluates it from columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.planes import ELEMENTWISE

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
}
_SPREADING = frozenset({"broadcast_in_dim", "reshape", "expand_dims"})


@dataclass(frozen=True)
class FeatureReduction:
    """A reduction over the last axis, what it reads, and the equations under it."""

    root: Any
    tables: tuple[Any, ...]  # loop constants of the full shape, read by column
    small: tuple[Any, ...]  # everything else that it reads
    eqns: tuple[Any, ...]

    @property
    def count(self) -> int:
        """The number of features."""
        return int(self.root.invars[0].aval.shape[-1])


def feature_reduction(
    root: Any, made: dict[Any, Any], is_table: Callable[[Any], bool]
) -> FeatureReduction | None:
    """Return the reduction if all under it is elementwise on tables and rows."""
    shape = root.invars[0].aval.shape
    axes = tuple(root.params.get("axes", ()))
    if root.primitive.name not in _COMBINE or axes != (len(shape) - 1,):
        return None
    tables: dict[Any, None] = {}
    small: dict[Any, None] = {}
    eqns: dict[int, Any] = {}

    def take_table(atom: Any) -> bool:
        if is_table(atom) and atom.aval.shape == shape:
            tables[atom] = None
            return True
        return False

    def visit(atom: Any) -> bool:
        """Take in a value of the full shape."""
        if isinstance(atom, jc.Literal):
            return True
        if atom.aval.shape == ():
            small[atom] = None
            return True
        eqn = made.get(atom)
        if eqn is None:
            return take_table(atom)
        name = eqn.primitive.name
        if name in ELEMENTWISE or name == "select_n":
            eqns[id(eqn)] = eqn
            return all(visit(v) for v in eqn.invars)
        if name in _SPREADING and _spread_axes(eqn) is not None:
            eqns[id(eqn)] = eqn
            source = eqn.invars[0]
            if not isinstance(source, jc.Literal):
                if source.aval.size * 4 > atom.aval.size and source.aval.ndim == len(
                    shape
                ):
                    return False
                small[source] = None
            return True
        return take_table(atom)

    if not visit(root.invars[0]) or not tables:
        return None
    return FeatureReduction(root, tuple(tables), tuple(small), tuple(eqns.values()))


def _spread_axes(eqn: Any) -> tuple[int, ...] | None:
    """Return the output axis of each input axis of an operation that adds axes."""
    source, target = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.primitive.name == "broadcast_in_dim":
        return tuple(eqn.params["broadcast_dimensions"])
    wide = [k for k, n in enumerate(target) if n != 1]
    if [target[k] for k in wide] != [n for n in source if n != 1] or 1 in source:
        return None
    return tuple(wide)


def components(
    found: FeatureReduction, columns: dict[Any, Any], values: dict[Any, Any]
) -> Any:
    """Evaluate the reduction.

    Args:
        found: what to evaluate.
        columns: tables with the features as their first axis.
        values: the small values.
    """
    made = {v: e for e in found.eqns for v in e.outvars}
    rows = found.root.invars[0].aval.shape[:-1]

    def at(atom: Any, k: int, memo: dict[Any, Any]) -> Any:
        """Return feature `k` of a value, broadcast against `rows`."""
        if isinstance(atom, jc.Literal):
            return jnp.asarray(atom.val, jc.dtype_of(atom))
        if atom in columns:
            return columns[atom][k]
        if atom in memo:
            return memo[atom]
        if atom not in made:
            return values[atom]  # a scalar
        eqn = made[atom]
        if eqn.primitive.name in _SPREADING:
            out = _spread(eqn, values, rows, k)
        else:
            ins = [at(v, k, memo) for v in eqn.invars]
            shape = jnp.broadcast_shapes(*(x.shape for x in ins))
            ins = [jnp.broadcast_to(x, shape) for x in ins]
            out = jc.rebind(eqn, ins)[0]
        memo[atom] = out
        return out

    parts = [at(found.root.invars[0], k, {}) for k in range(found.count)]
    combine = _COMBINE[found.root.primitive.name]
    return jnp.broadcast_to(functools.reduce(combine, parts), rows)


def _spread(eqn: Any, values: dict[Any, Any], rows: tuple[int, ...], k: int) -> Any:
    """Return feature `k` of a value that an equation broadcasts."""
    source = eqn.invars[0]
    if isinstance(source, jc.Literal):
        return jnp.asarray(source.val, jc.dtype_of(source))
    value, shape = values[source], eqn.outvars[0].aval.shape
    axes = _spread_axes(eqn)
    assert axes is not None
    last = len(shape) - 1
    if axes and axes[-1] == last:
        value = value[..., k if source.aval.shape[-1] > 1 else 0]
        axes = axes[:-1]
    whole = [1] * last
    for axis, n in zip(axes, value.shape, strict=True):
        whole[axis] = n
    return value.reshape(whole) if whole != [1] * last else value.reshape(())
