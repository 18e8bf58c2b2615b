"""Reductions over a short last axis, feature by feature.

`sum((X - p) ** 2, axis=1)` over rows of a few features is run by XLA's CPU backend as
one short scalar loop per row. Column by column the same arithmetic is elementwise work
on long vectors. A `FeatureReduction` is such a reduction with the elementwise equations
under it; `components` evaluates it from columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
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
    found = _Reading(shape, made, is_table)
    if not found.visit(root.invars[0]) or not found.tables:
        return None
    eqns = tuple(found.eqns.values())
    return FeatureReduction(root, tuple(found.tables), tuple(found.small), eqns)


@dataclass
class _Reading:
    """What is read under a reduction of a shape, in the order in which it is met."""

    shape: tuple[int, ...]
    made: dict[Any, Any]
    is_table: Callable[[Any], bool]
    tables: dict[Any, None] = field(default_factory=dict)
    small: dict[Any, None] = field(default_factory=dict)
    eqns: dict[int, Any] = field(default_factory=dict)

    def visit(self, atom: Any) -> bool:
        """Take in a value of the full shape; False if it is none of the kinds."""
        if isinstance(atom, jc.Literal):
            return True
        if atom.aval.shape == ():
            self.small[atom] = None
            return True
        eqn = self.made.get(atom)
        if eqn is None:
            return self._table(atom)
        if id(eqn) in self.eqns:
            return True
        name = eqn.primitive.name
        if name in ELEMENTWISE or name == "select_n":
            self.eqns[id(eqn)] = eqn
            return all(self.visit(v) for v in eqn.invars)
        if name in _SPREADING and _spread_axes(eqn) is not None:
            self.eqns[id(eqn)] = eqn
            return self._spread(eqn.invars[0], atom)
        return self._table(atom)

    def _table(self, atom: Any) -> bool:
        if not self.is_table(atom) or atom.aval.shape != self.shape:
            return False
        self.tables[atom] = None
        return True

    def _spread(self, source: Any, atom: Any) -> bool:
        """Take in what is broadcast; False if it is as large as a table."""
        if isinstance(source, jc.Literal):
            return True
        large = source.aval.size * 4 > atom.aval.size
        if large and source.aval.ndim == len(self.shape):
            return False
        self.small[source] = None
        return True


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
