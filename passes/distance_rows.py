"""Distance rows: nearest neighbours, counts within a radius, and sums over distances.

What it does: a step that sums the squared differences between its row and every row of
a constant table and then decides on them (`argmin`, `top_k`, `< r`) or reduces them
(`min`, `sum`, a product with weights) becomes one call with a batched form: a matrix
product for many rows, the rest of the step on the products while they are in cache.

Why it pays: one matrix product instead of a pass over the table per step; nothing of
shape (n, m, d) and no more than a block of (n, m) exists.

Legality: the result is smaller than the distances; nothing that follows depends on a
carry; every operation that could tip (`argmin`, `argmax`, `top_k`, comparisons) follows
monotone elementwise work, so that bounds can be carried to it. Rows whose decision lies
within the error bounds run the original step: its answers, ties included. Data on a
grid (integers, 1/16, 1/256) is exact. At least 8 features.

Numerics: reassociate (guarded); under `fast` sums over distances have no guard, while
decisions are taken within bounds all the same, which is faster than XLA's `argmin`.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def nearest(points, centres):
...     def one(p):
...         return jnp.argmin(jnp.sum((centres - p) ** 2, axis=1))
...     return jax.lax.map(one, points)
>>> report = explain(nearest)(jnp.ones((5000, 16)), jnp.ones((256, 16)))
>>> report.before.count("dot_general"), report.after.count("dot_general")
(0, 1)

References: re-ranking of candidates, as in FAISS (Johnson, Douze and Jegou 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewriter import intervals
from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.differences import squared_distance
from rewriter.distance_rows import FIXED, RowsOfDistances, prepare, price, row_bytes
from rewriter.graph import Loop, Source, reads, substitute, variant_values
from rewriter.legality import unbatchable
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed
from rewriter.rowwise import rowwise


@dataclass(frozen=True)
class Rows(Plan):
    """The step's cone of distances, its inputs and outputs."""

    loop: Loop | None = None
    found: Any = None
    cone: tuple[Any, ...] = ()  # the differences and all that follows
    form: RowsOfDistances | None = None


@dataclass(frozen=True)
class DistanceRows(LoopPass):
    """The pass."""

    name: ClassVar = "distance-rows"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "reassociate"
    worth_emitting: ClassVar = False  # pays only if the loop is batched
    min_features: int = 8
    min_rows: int = 16
    min_pairs: int = 100_000

    FOUND = passed(
        "rows",
        "distances to {m} rows of {d} features by matrix products{guard}",
    )
    NONE = missed("none", "no step reduces squared differences to the rows of a table")
    SMALL = missed("small", "{n} x {m} distances of {d} features are faster directly")
    FOLLOWED = missed(
        "undecidable", "distances are followed by {what} and so are computed directly"
    )

    def match(self, loop: Loop, ctx: Context) -> Rows | Remark:
        """Find the distances, what follows, and whether its errors can be bounded."""
        where = loop.location
        if not isinstance(loop.length, int):
            return self.NONE.at(where)
        carried = variant_values(loop.eqns, {c.var for c in loop.carries})
        fixed = {v for v, _ in loop.consts} | carried
        found = squared_distance(loop, lambda v: v not in fixed)
        if found is None:
            return self.NONE.at(where)
        squared, table = found.out, found.table
        (m, d), n = table.aval.shape, loop.length
        if d < self.min_features or m < self.min_rows or n * m < self.min_pairs:
            return self.SMALL.at(where, n=n, m=m, d=d)
        follows, outs, reason = _cone(loop, squared, carried)
        if reason:
            return self.FOLLOWED.at(where, what=reason)
        if any(v.aval.size >= m for v in outs):
            return self.NONE.at(where)
        known = intervals.classify(follows, squared, outs)
        if known.reason:
            return self.FOLLOWED.at(where, what=known.reason)
        inside = [e for e in loop.eqns if id(e) in found.used]
        if not _is_closed(loop, inside, squared, follows):
            return self.NONE.at(where)
        seeds = {v for v, _ in loop.xs} | {c.var for c in loop.counters}
        variant = variant_values(loop.eqns, seeds)
        made = {squared, *(v for e in follows for v in e.outvars)}
        others = [v for e in follows for v in reads(e) if v not in made]
        rest = tuple(dict.fromkeys([*found.factors, *others]))
        values = any(v in known.rough for v in outs)
        form = RowsOfDistances(
            squared=squared,
            features=d,
            eqns=tuple(follows),
            rest=rest,
            outs=tuple(outs),
            known=known,
            mapped=(True, *[False] * (FIXED - 1), *(v in variant for v in rest)),
            row_ns=price(d, m, ctx.model)
            + sum(ctx.model.batch(e, made | variant) for e in follows),
            row_bytes=row_bytes(m, table.aval.dtype.itemsize),
            values=values,
            guarded=ctx.options.numerics != "fast" or not values,
        )
        remark = self.FOUND.at(
            where,
            m=m,
            d=d,
            bytes=nbytes(table),
            guard=", rows in doubt run the original step"
            if form.guarded
            else ", unguarded",
        )
        return Rows(remark, "", loop, found, (*inside, *follows), form)

    def rewrite(self, plan: Rows) -> Loop:
        """Put the call in place of the cone."""
        loop, form = plan.loop, plan.form
        assert loop is not None
        assert form is not None
        found = plan.found
        given = [found.table, *found.factors]
        sources = [dict(loop.consts)[v] for v in given]

        def prepared(table: Any, *factors: Any) -> list[Any]:
            return prepare(table, found.weights(*factors))

        made = jc.open_jaxpr(jc.trace(prepared, [v.aval for v in given], "prepared"))
        added = [jc.fresh_var(v.aval) for v in made.outvars]
        consts = (
            *loop.consts,
            *(
                (
                    v,
                    Source(
                        lambda args, k=k: prepared(*(s.get(args) for s in sources))[k]
                    ),
                )
                for k, v in enumerate(added)
            ),
        )
        inputs = [found.row, found.table, *added, *form.rest]
        body = jc.close_jaxpr(
            jc.build_jaxpr(inputs, list(form.outs), list(plan.cone), loop.like)
        )
        call, outs = jc.traced_equations(
            lambda *values: tuple(rowwise(body, form, values)), inputs, plan.cone[0]
        )
        mapping = dict(zip(form.outs, outs, strict=True))
        gone = {id(e) for e in plan.cone}
        later = variant_values(loop.eqns, set(form.outs))
        others = [e for e in loop.eqns if id(e) not in gone]
        after = [e for e in others if any(v in later for v in reads(e))]
        before = [e for e in others if not any(v in later for v in reads(e))]
        eqns = (*before, *call, *after)
        return substitute(loop.replace(eqns=eqns, consts=consts), mapping)


def _cone(
    loop: Loop, squared: Any, carried: set[Any]
) -> tuple[list[Any], list[Any], str]:
    """Return the equations that follow, what others read of them, or a reason."""
    inside, follows = {squared}, []
    for eqn in loop.eqns:
        if not any(v in inside for v in reads(eqn)):
            continue
        if any(v in carried for v in reads(eqn)):
            continue
        reason = unbatchable(eqn)
        if reason:
            return [], [], reason
        follows.append(eqn)
        inside.update(eqn.outvars)
    mine = {id(e) for e in follows}
    wanted = [v for e in loop.eqns if id(e) not in mine for v in reads(e)]
    wanted += [c.out for c in loop.carries] + [a for _, a in loop.ys]
    outs = [v for v in wanted if not isinstance(v, jc.Literal) and v in inside]
    return follows, list(dict.fromkeys(outs)), ""


def _is_closed(
    loop: Loop, differences: Sequence[Any], squared: Any, follows: Sequence[Any]
) -> bool:
    """Whether nobody else reads the differences, and equations may change places."""
    if any(e.effects for e in loop.eqns):
        return False
    own = {v for e in differences for v in e.outvars} - {squared}
    mine = {id(e) for e in (*differences, *follows)}
    outside = [v for e in loop.eqns if id(e) not in mine for v in reads(e)]
    outside += [c.out for c in loop.carries] + [a for _, a in loop.ys]
    return not any(v in own for v in outside if not isinstance(v, jc.Literal))
