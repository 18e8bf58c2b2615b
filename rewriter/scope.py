"""What is known at compile time of the values around a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rewriter.indices import (
    ELEMENT_LIMIT,
    TABLE_LIMIT,
    WHITELIST,
    Affine,
    Known,
    Table,
    affine_step,
    constant,
    counter,
    fits,
    on_rows,
    reversed_in_time,
    rows,
    step,
)
from rewriter.inline import inline
from rewriter.jax_compat import Literal, is_integer, open_jaxpr
from rewriter.producers import Producer, producer


class Scope:
    """What is known at compile time of the values around a loop."""

    def __init__(self, closed: Any) -> None:
        jaxpr = open_jaxpr(closed)
        self._consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        self._made = {v: e for e in jaxpr.eqns for v in e.outvars}
        self._memo: dict[Any, Any] = {}
        self._closed = closed
        self._inlined: Any = None

    def producer(self, var: Any) -> Producer | None:
        """Return what makes an array row by row, if only one equation reads it."""
        jaxpr = open_jaxpr(self._closed)
        if var not in self._made:
            return None
        atoms = [v for e in jaxpr.eqns for v in e.invars] + list(jaxpr.outvars)
        if sum(v is var for v in atoms) != 1:
            return None
        if self._inlined is None:
            eqns, subst, _ = inline(jaxpr.eqns)
            own = {v for e in jaxpr.eqns for v in e.outvars}
            own |= {*jaxpr.invars, *jaxpr.constvars}
            # values of inlined calls are known outside by another name
            known = {v: s for v, s in subst.items() if not isinstance(s, Literal)}
            names = {known[v]: v for v in own if v in known}
            names |= {v: v for v in own if v not in subst}
            made = {v: e for e in eqns for v in e.outvars}
            self._inlined = made, subst, names
        made, subst, names = self._inlined
        inner = subst.get(var, var)
        if isinstance(inner, Literal):
            return None
        found = producer(inner, made, names)
        if found is None:
            return None
        leaves = tuple((names[v], axis) for v, axis in found.leaves)
        return replace(found, leaves=leaves, inner=tuple(v for v, _ in found.leaves))

    def is_transposed(self, var: Any) -> bool:
        """Whether the rows of an array are columns of what it is made from."""
        eqn = self._made.get(var)
        if eqn is None or eqn.primitive.name != "transpose":
            return False
        order = eqn.params["permutation"]
        return order[0] == len(order) - 1 > 0

    def scalar(self, atom: Any) -> Affine | None:
        """Return a value that is the same at every iteration, if known."""
        if isinstance(atom, Literal):
            return constant(atom.val)
        if atom in self._consts:
            return self._concrete(self._consts[atom])
        eqn = self._made.get(atom)
        if eqn is None or eqn.primitive.name not in WHITELIST or atom.aval.size > 8:
            return None
        ins = [self.scalar(a) for a in eqn.invars]
        if any(i is None for i in ins):
            return None
        value = step(eqn, ins, 1)  # type: ignore[arg-type]
        return value if isinstance(value, Affine) else None

    def _concrete(self, value: Any) -> Affine | None:
        if not isinstance(value, np.ndarray) and not hasattr(value, "addressable_data"):
            return None
        return constant(value) if value.size <= ELEMENT_LIMIT else None

    def stacked(self, atom: Any) -> Known | None:
        """Return a value known along its leading axis (`jnp.arange` and kin)."""
        if atom not in self._memo:
            self._memo[atom] = self._stacked(atom)
        return self._memo[atom]

    def _stacked(self, atom: Any) -> Known | None:
        if isinstance(atom, Literal) or not atom.aval.shape:
            return None
        if not is_integer(atom.aval) or len(atom.aval.shape) > 2:
            return None
        if atom in self._consts:
            return self._table(self._consts[atom])
        eqn = self._made.get(atom)
        if eqn is None:
            return None
        name, length = eqn.primitive.name, atom.aval.shape[0]
        if name == "iota" and len(atom.aval.shape) == 1:
            return counter(0, 1, atom.aval.dtype)
        if name == "rev" and eqn.params["dimensions"] == (0,):
            inner = self.stacked(eqn.invars[0])
            return None if inner is None else reversed_in_time(inner, length)
        if name == "reshape" or name == "broadcast_in_dim":
            return self._column(eqn)
        if name not in ("add", "sub", "mul", "neg", "convert_element_type", "rem"):
            return None
        ins = [
            self.stacked(a) if getattr(a.aval, "shape", ()) else self.scalar(a)
            for a in eqn.invars
        ]
        if any(i is None for i in ins) or atom.aval.shape[1:] not in ((), (1,)):
            return None
        return _stacked_step(eqn, ins, length)

    def _column(self, eqn: Any) -> Known | None:
        """`(n,)` as `(n, 1)` or back, or a scalar repeated."""
        source, shape = eqn.invars[0], eqn.outvars[0].aval.shape
        if not source.aval.shape:
            known = self.scalar(source)
            if known is None or len(shape) > 2 or shape[1:] not in ((), (1,)):
                return None
            return Affine(
                known.base.reshape(shape[1:]),
                known.step.reshape(shape[1:]),
                known.dtype,
            )
        if source.aval.shape[0] != shape[0] or source.aval.size != shape[0]:
            return None
        known = self.stacked(source)
        row = shape[1:]
        if isinstance(known, Affine):
            return Affine(known.base.reshape(row), known.step.reshape(row), known.dtype)
        return None if known is None else Table(known.rows.reshape(shape))

    def _table(self, value: Any) -> Known | None:
        if not isinstance(value, np.ndarray) and not hasattr(value, "addressable_data"):
            return None
        if value.shape[0] > TABLE_LIMIT or value[:1].size > ELEMENT_LIMIT:
            return None
        array = np.asarray(value)
        table = array.astype(np.int64)
        if len(table) > 1:
            stride = table[1] - table[0]
            if (np.diff(table, axis=0) == stride).all():
                return Affine(table[0], np.asarray(stride), array.dtype)
        return Table(table)


def _stacked_step(eqn: Any, ins: Sequence[Any], length: int) -> Known | None:
    dtype = np.dtype(eqn.outvars[0].aval.dtype)
    if all(isinstance(i, Affine) for i in ins):
        value = affine_step(eqn.primitive.name, eqn, ins, length)
        if value is not None and value.base.shape == eqn.outvars[0].aval.shape[1:]:
            return value if fits(value, length) else None
    if length > TABLE_LIMIT:
        return None
    table = on_rows(eqn.primitive.name, eqn, [rows(i, length) for i in ins], 1)
    return None if table is None else Table(table.astype(dtype).astype(np.int64))
