"""Pairwise distances: a loop over rows of squared differences becomes a matrix product.

What it does: a map-shaped loop whose step sums the squared differences between its row
and every row of a constant matrix, with constant weights or scales of the features or
without, followed by anything elementwise and continuous
(`sqrt`, `exp(-d/s)`), is computed block by block as `|x|^2 + |y|^2 - 2 x.y`, the
elementwise part inside the block. Entries where cancellation could cost digits are
recomputed directly.

Why it pays: one matrix product instead of a pass over the matrix per row; the block is
finished while it is in cache, and nothing of shape (n, m, d) exists.

Legality: float32 or float64, and at least 28 features: with fewer, so many pairs are
near in proportion to their norms that the direct form is as fast. All that follows acts
on each distance by itself and has no steps: `argmin` and comparisons keep the direct
form. Gradients are taken of the direct form.

Numerics: reassociate (guarded: an error of at most twice the direct form's, or 32
roundings); under `fast` without the guard.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def distances(X):
...     def row(_, p):
...         return _, jnp.sqrt(jnp.sum((X - p) ** 2, axis=1))
...     return jax.lax.scan(row, None, X)[1]
>>> report = explain(distances)(jnp.ones((1000, 40)))
>>> report.before.count("dot_general"), report.after.count("dot_general")
(0, 1)
>>> report.verdicts[0].outcome
'blocked'

References: scikit-learn's `euclidean_distances`, which has no guard (its issue 9354).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.differences import squared_distance
from rewriter.distance import ROWS, Weighting, pairwise
from rewriter.emit import results
from rewriter.graph import Loop, Outputs, reads
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.planes import ELEMENTWISE
from rewriter.remarks import Remark, missed, passed

# operations with steps: two roundings of one distance may give different results
_STEPS = frozenset(
    {"lt", "le", "gt", "ge", "eq", "ne", "floor", "ceil", "round", "sign", "rem"}
)


@dataclass(frozen=True)
class Distances(Plan):
    """The distance of a loop: its variable, both operands, and what follows."""

    loop: Loop | None = None
    found: Any = None
    epilogue: tuple[Any, ...] = ()
    guarded: bool = True


@dataclass(frozen=True)
class PairwiseDistance(LoopPass):
    """The pass."""

    name: ClassVar = "pairwise-distance"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "reassociate"
    min_features: int = 28
    min_pairs: int = 100_000

    PRODUCT = passed(
        "product",
        "squared distances of {n} x {m} rows of {d} by matrix products, in blocks of "
        "{block} rows{guard}",
    )
    NONE = missed("none", "no step sums squared differences to all rows of a matrix")
    SMALL = missed("small", "{n} x {m} distances of {d} features are faster directly")
    FOLLOWED = missed(
        "not-elementwise",
        "squared distances are followed by {what} and so are computed directly",
    )

    def match(self, loop: Loop, ctx: Context) -> Distances | Remark:
        """Find the distance and check what follows it."""
        where = loop.location
        if loop.carries or not isinstance(loop.length, int):
            return self.NONE.at(where)
        rows = {v for v, _ in loop.xs}
        found = squared_distance(loop, rows.__contains__)
        if found is None:
            return self.NONE.at(where)
        (m, d), n = found.table.aval.shape, loop.length
        if d < self.min_features or n * m < self.min_pairs or min(n, m) < ROWS:
            return self.SMALL.at(where, n=n, m=m, d=d)
        epilogue = tuple(e for e in loop.eqns if id(e) not in found.used)
        reason = _not_elementwise(loop, epilogue, found.out)
        if reason:
            return self.FOLLOWED.at(where, what=reason)
        guarded = ctx.options.numerics != "fast"
        remark = self.PRODUCT.at(
            where,
            n=n,
            m=m,
            d=d,
            block=ROWS,
            bytes=4 * ROWS * m,
            guard=", near pairs recomputed directly" if guarded else ", unguarded",
        )
        return Distances(remark, "blocked", loop, found, epilogue, guarded)

    def rewrite(self, plan: Distances) -> Emission:
        """Emit the blocks."""
        loop = plan.loop
        assert loop is not None

        def emit(args: Any) -> list[Any]:
            consts = {v: s.get(args) for v, s in loop.consts}
            rows = {v: s.get(args) for v, s in loop.xs}
            for c in loop.counters:
                first = loop.length - 1 if loop.reverse else 0
                rows[c.var] = c.rows(args, first, loop.length, loop.reverse)

            def epilogue(squared: Any, i: Any, j: Any, b: int, g: int) -> list[Any]:
                return _epilogue(plan, consts, rows, squared, (i, j, b, g))

            dtypes = [a.aval.dtype for _, a in loop.ys]
            found = plan.found
            given = [consts[v] for v in found.factors]
            factors = tuple(f.reshape(-1) for f in given)
            weighting = Weighting(found.terms, factors, found.weights(*given))
            out = pairwise(
                rows[found.row],
                consts[found.table],
                epilogue,
                dtypes,
                plan.guarded,
                weighting,
            )
            keys = [k for k, _ in loop.ys]
            return results(loop, Outputs(args, {}, dict(zip(keys, out, strict=True))))

        return emit


def _not_elementwise(loop: Loop, epilogue: Sequence[Any], squared: Any) -> str:
    """Return the operation that needs more than one distance, or nothing."""
    m = squared.aval.shape
    known = {v for v, _ in loop.consts} | {c.var for c in loop.counters} | {squared}
    known |= {v for v, _ in loop.xs}
    for eqn in epilogue:
        name = eqn.primitive.name
        if name not in ELEMENTWISE and name not in ("broadcast_in_dim", "select_n"):
            return name
        if name in _STEPS:
            return f"{name}, which a rounding may tip,"
        if any(v.aval.shape not in ((), m) for v in (*eqn.invars, *eqn.outvars)):
            return name
        if any(v not in known for v in reads(eqn)):
            return name
        known.update(eqn.outvars)
    made = {squared, *(v for e in epilogue for v in e.outvars)}
    if any(
        isinstance(a, jc.Literal) or a not in made or a.aval.shape != m
        for _, a in loop.ys
    ):
        return "an output that is not one value per distance"
    return ""


def _epilogue(
    plan: Distances, consts: Any, rows: Any, squared: Any, place: Any
) -> list[Any]:
    """Evaluate what follows on a block or tile of distances of shape (b, g)."""
    i, j, b, g = place
    loop = plan.loop
    assert loop is not None
    env: dict[Any, Any] = {plan.found.out: squared}

    def read(atom: Any) -> Any:
        if isinstance(atom, jc.Literal):
            value = jnp.asarray(atom.val, jc.dtype_of(atom))
        elif atom in env:
            return env[atom]
        elif atom in consts:
            value = consts[atom]
            value = lax.dynamic_slice_in_dim(value, j, g)[None] if value.ndim else value
        else:
            value = lax.dynamic_slice_in_dim(rows[atom], i, b)
            value = (
                lax.dynamic_slice_in_dim(value, j, g, 1)
                if value.ndim == 2
                else value[:, None]
            )
        return jnp.broadcast_to(value, (b, g))

    for eqn in plan.epilogue:
        values = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "broadcast_in_dim":
            env[eqn.outvars[0]] = values[0]
        else:
            env[eqn.outvars[0]] = jc.rebind(eqn, values)[0]
    return [env[a] for _, a in loop.ys]
