"""Feature planes: a reduction over a few features becomes work on long columns.

What it does: a step that reduces the short last axis of elementwise work on a constant
table and a row (L1, Chebyshev, Canberra and Euclidean distances, or any function of the
user's) reads the columns of the table, transposed once, and combines them one by one.

Why it pays: XLA's CPU backend runs a reduction over a last axis of 3 or 40 elements as
a scalar loop per row; column by column it is vector code.

Legality: the table does not change; everything between is elementwise. Where the result
is only reduced again, XLA would fuse all into one scalar loop, so then only up to 8
features. The transposed copy counts against the memory budget.

Numerics: reassociate; the features are summed in their order.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def taxicab(X):
...     return jax.lax.map(lambda p: jnp.sum(jnp.abs(X - p), axis=1), X)
>>> report = explain(taxicab)(jnp.ones((1000, 3)))
>>> report.before.count("reduce_sum"), report.after.count("reduce_sum")
(1, 0)

References: structure-of-arrays layout; Leung and Zahorjan, *Optimizing data locality by
array restructuring*, 1995.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.emit import emit_loop
from rewriter.features import FeatureReduction, components, feature_reduction
from rewriter.graph import Loop, Source, edited, prune, reads, variant_values
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.planes import ELEMENTWISE
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Planes(Plan):
    """The reductions of a loop."""

    loop: Loop | None = None
    found: tuple[FeatureReduction, ...] = ()


@dataclass(frozen=True)
class FeaturePlanes(LoopPass):
    """The pass."""

    name: ClassVar = "feature-planes"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "reassociate"
    most_features: int = 64
    most_reduced: int = 8  # features where the result is reduced again
    min_rows: int = 64

    FOUND = passed(
        "columns",
        "{count} reduction(s) over {d} features work on columns of a table "
        "transposed once",
    )
    NONE = missed("none", "no step reduces a few features of a constant table")
    WIDE = missed("features", "{d} features are reduced faster as they are")
    MEMORY = missed(
        "memory-budget", "a transposed copy of the table is over the budget"
    )

    def match(self, loop: Loop, ctx: Context) -> Planes | Remark:
        """Find reductions over the last axis of elementwise work on tables."""
        where = loop.location
        if not isinstance(loop.length, int) or loop.length < 2:
            return self.NONE.at(where)
        made = {v: e for e in loop.eqns for v in e.outvars}
        tables = {v for v, _ in loop.consts}
        seeds = {v for v, _ in loop.xs} | {c.var for c in loop.carries}
        variant = variant_values(loop.eqns, seeds | {c.var for c in loop.counters})
        found, widest = [], 0
        for eqn in loop.eqns:
            if eqn.outvars and eqn.outvars[0] not in variant:
                continue
            one = feature_reduction(eqn, made, lambda v: v in tables)
            if one is None or eqn.outvars[0].aval.size < self.min_rows:
                continue
            widest = max(widest, one.count)
            most = (
                self.most_reduced
                if _is_reduced(loop, eqn.outvars[0])
                else self.most_features
            )
            if 1 < one.count <= most:
                found.append(one)
        if not found:
            return self.WIDE.at(where, d=widest) if widest else self.NONE.at(where)
        copied = {t for one in found for t in one.tables}
        if sum(nbytes(t) for t in copied) > ctx.options.memory_budget:
            return self.MEMORY.at(where)
        remark = self.FOUND.at(
            where, count=len(found), d=max(one.count for one in found)
        )
        return Planes(remark, "vectorized", loop, tuple(found))

    def rewrite(self, plan: Planes) -> Emission:
        """Emit the loop with the reductions on columns."""
        loop = plan.loop
        assert loop is not None
        sources, consts = dict(loop.consts), list(loop.consts)
        columns: dict[Any, Any] = {}
        for table in dict.fromkeys(t for one in plan.found for t in one.tables):
            shape = table.aval.shape
            columns[table] = jc.fresh_var(
                table.aval.update(shape=(shape[-1], *shape[:-1]))
            )
            source = sources[table]
            consts.append(
                (
                    columns[table],
                    Source(lambda a, source=source: jnp.moveaxis(source.get(a), -1, 0)),
                )
            )
        edits: dict[int, list[Any]] = {}
        mapping: dict[Any, Any] = {}
        for one in plan.found:
            n = len(one.tables)
            edits[id(one.root)], (out,) = jc.traced_equations(
                lambda *v, one=one, n=n: components(
                    one,
                    dict(zip(one.tables, v[:n], strict=True)),
                    dict(zip(one.small, v[n:], strict=True)),
                ),
                [*(columns[t] for t in one.tables), *one.small],
                one.root,
            )
            mapping[one.root.outvars[0]] = out
        new = edited(loop.replace(consts=tuple(consts)), edits, mapping)
        return lambda args: emit_loop(prune(new), args)


def _is_reduced(loop: Loop, var: Any) -> bool:
    """Whether elementwise work on a value ends in a reduction or a search."""
    shape, reached = var.aval.shape, {var}
    for eqn in loop.eqns:
        if not any(v in reached for v in reads(eqn)):
            continue
        name = eqn.primitive.name
        if name in ELEMENTWISE or name == "select_n":
            reached.update(v for v in eqn.outvars if v.aval.shape == shape)
        elif name.startswith("reduce_") or name in ("argmin", "argmax"):
            return True
    return False
