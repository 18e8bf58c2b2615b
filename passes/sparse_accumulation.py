"""Sparse accumulation: a table of zeros with a few rows in it is added by its rows.

What it does: a carry that adds, at every step, zeros into which a few rows were written
(`dynamic_update_slice` or a scatter on zeros, as the gradient of `E[i]` makes them)
gets those rows added where they belong.

Why it pays: a step touches the rows instead of the whole table; of an embedding of
50000 words that is all of the step's time.

Legality: the carry is read by nothing else, and the zeros with rows by nothing but the
sum. Indices out of range do what they did: slices are clamped, scattered rows dropped.

Numerics: reassociate (rows that meet at one index are added one by one).

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def loss(E, words):
...     def step(h, i):
...         return jnp.tanh(h + E[i]), None
...     return jax.lax.scan(step, jnp.zeros(8), words)[0].sum()
>>> report = explain(jax.grad(loss))(jnp.ones((500, 8)), jnp.arange(60) * 7)
>>> "sparse-accumulation/rows" in {r.code for r in report.remarks}
True

References: sparse gradients of embeddings (`tf.IndexedSlices`; PyTorch's
`Embedding(sparse=True)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import Carry, Loop, edited
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import Body, literal
from rewriter.recurrence import accumulation, is_long_float, users_of, uses
from rewriter.remarks import Remark, missed, passed

_SUMS = ("add", "add_any")


@dataclass(frozen=True)
class Table:
    """A carry, the terms added to it a step, and the equations that added them."""

    carry: Carry
    sparse: tuple[Any, ...]  # the equations that write rows into zeros
    dense: tuple[Any, ...]  # other terms
    gone: tuple[Any, ...]


@dataclass(frozen=True)
class Tables(Plan):
    """A loop with tables."""

    loop: Loop | None = None


@dataclass(frozen=True)
class SparseAccumulation(LoopPass):
    """The pass."""

    name: ClassVar = "sparse-accumulation"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "reassociate"

    FOUND = passed(
        "rows", "{count} carried table(s) of {size} elements get {rows} of them a step"
    )
    NONE = missed("none", "no carry adds up tables of zeros with a few rows in them")

    def match(self, loop: Loop, ctx: Context) -> Tables | Remark:
        """Find carries that only add, and zeros with rows among what they add."""
        found = _tables(loop)
        if not found:
            return self.NONE.at(loop.location)
        remark = self.FOUND.at(
            loop.location,
            count=len(found),
            size=max(t.carry.var.aval.size for t in found),
            rows=max(_rows(e).aval.size for t in found for e in t.sparse),
        )
        return Tables(remark, "sparse", loop)

    def rewrite(self, plan: Tables) -> Loop:
        """Add the rows in place."""
        loop = plan.loop
        assert loop is not None
        while tables := _tables(loop):  # one may read what another has become
            loop = _in_place(loop, tables[0])
        return loop


def _tables(loop: Loop) -> list[Table]:
    """Return the carries that add zeros with rows, and what they add."""
    body, count, users = Body(loop.eqns), uses(loop), users_of(loop.eqns)
    found = []
    for carry in loop.carries:
        if not _is_long(carry.var.aval):
            continue
        chain = accumulation(loop.eqns, carry.var, carry.out, count, users)
        if chain is None or chain.family != "sum":
            continue
        if any(t.negative for t in chain.terms):
            continue
        gone = [loop.eqns[i] for i in chain.eqns]
        sparse: list[Any] = []
        dense: list[Any] = []
        for term in chain.terms:
            _leaves(term.atom, body, count, carry, sparse, dense, gone)
        if sparse:
            found.append(Table(carry, tuple(sparse), tuple(dense), tuple(gone)))
    return found


def _is_long(aval: Any) -> bool:
    """Whether a carry is an array of numbers whose sums may be reordered."""
    if not jc.is_array_aval(aval) or jc.is_extended(aval):
        return False
    return aval.dtype.kind in "iu" or is_long_float(aval.dtype)


def _leaves(
    atom: Any,
    body: Body,
    count: Any,
    carry: Carry,
    sparse: list[Any],
    dense: list[Any],
    gone: list[Any],
) -> None:
    """Sort what a term adds up: zeros with rows, or anything else."""
    eqn = None if isinstance(atom, jc.Literal) else body.made.get(atom)
    if eqn is None or count[atom] != 1 or eqn.effects:
        dense.append(atom)
    elif eqn.primitive.name in _SUMS:
        gone.append(eqn)
        for v in eqn.invars:
            _leaves(v, body, count, carry, sparse, dense, gone)
    elif _writes_into_zeros(eqn, body) and _same_type(eqn.outvars[0], carry.var):
        gone.append(eqn)
        sparse.append(eqn)
    else:
        dense.append(atom)


def _same_type(a: Any, b: Any) -> bool:
    return a.aval.shape == b.aval.shape and a.aval.dtype == b.aval.dtype


def _writes_into_zeros(eqn: Any, body: Body) -> bool:
    """Whether an equation makes zeros but for a few rows."""
    name = eqn.primitive.name
    if name == "scatter":  # rows that were set at one index would not be added
        places = eqn.invars[1].aval.shape[:-1]
        if not eqn.params["unique_indices"] and np.prod(places) != 1:
            return False
    elif name not in ("dynamic_update_slice", "scatter-add"):
        return False
    table, rows = eqn.invars[0], _rows(eqn)
    if 4 * rows.aval.size > table.aval.size:
        return False
    return literal(body.plain(table)) == 0


def _rows(eqn: Any) -> Any:
    """Return what is written."""
    return eqn.invars[1 if eqn.primitive.name == "dynamic_update_slice" else 2]


def _in_place(loop: Loop, table: Table) -> Loop:
    """Return the loop with the rows added to the carry itself."""
    carry, at = table.carry, table.gone[-1]
    operands = [v for e in table.sparse for v in e.invars[1:]]

    def updated(total: Any, *values: Any) -> Any:
        given = iter(values)
        for _ in table.dense:
            total = total + jnp.broadcast_to(next(given), total.shape)
        for eqn in table.sparse:
            total = _added(eqn, total, [next(given) for _ in eqn.invars[1:]])
        return jc.coerce(total, carry.var.aval)

    atoms = [carry.var, *table.dense, *operands]
    added, (out,) = jc.traced_equations(updated, atoms, at)
    edits: dict[int, list[Any]] = {id(e): [] for e in table.gone}
    last = next(e for e in reversed(loop.eqns) if id(e) in edits)
    edits[id(last)] = added
    return edited(loop, edits, {carry.out: out})


def _added(eqn: Any, total: Any, operands: Sequence[Any]) -> Any:
    """Add the rows that an equation writes into zeros."""
    if eqn.primitive.name == "scatter-add":
        return jc.rebind(eqn, [total, *operands])[0]
    if eqn.primitive.name == "scatter":
        names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
        return lax.scatter_add(total, *operands, **{k: eqn.params[k] for k in names})
    rows, *start = operands  # not negative, or clamped: as the equation has it
    before = lax.dynamic_slice(
        total, start, np.shape(rows), allow_negative_indices=False
    )
    return jc.rebind(eqn, [total, before + rows, *start])[0]
