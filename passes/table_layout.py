"""Table layout: columns gathered at every step become rows of a transposed table.

What it does: a `gather` that takes whole columns of a loop constant (`table[:, q]` at
indices that the step computes) reads a copy of the table that is transposed once, so
that what it takes is contiguous; a reduction over the short axis then runs along it.

Why it pays: a column of a row-major table touches one cache line per element.

Legality: always; the same elements are read. The copy counts against the memory budget.
Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(table, queries):
...     return jax.lax.map(lambda q: jnp.prod(table[:, q], axis=1).sum(), queries)
>>> report = explain(f)(jnp.ones((4096, 64)), jnp.zeros((3000, 3), int))
>>> report.after.outline().splitlines()[0]
'transpose'

References: loop-invariant data layout (Leung and Zahorjan 1995).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.graph import Loop, Source, edited
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Columns(Plan):
    """Gathers of columns, by equation."""

    loop: Loop | None = None
    gathers: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TableLayout(LoopPass):
    """The pass."""

    name: ClassVar = "table-layout"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = True
    min_rows: int = 32  # shorter columns stay in one or two cache lines

    FOUND = passed(
        "transposed", "{count} gather(s) of columns read a table transposed once"
    )
    NONE = missed("none", "no step gathers columns of a table")
    MEMORY = missed(
        "memory-budget", "a transposed copy of the table is over the budget"
    )

    def match(self, loop: Loop, ctx: Context) -> Columns | Remark:
        """Find gathers of whole columns of loop constants."""
        consts = {v for v, _ in loop.consts}
        found = tuple(
            e
            for e in loop.eqns
            if e.primitive.name == "gather"
            and e.invars[0] in consts
            and self._takes_columns(e)
        )
        if not found:
            return self.NONE.at(loop.location)
        if sum(nbytes(e.invars[0]) for e in found) > ctx.options.memory_budget:
            return self.MEMORY.at(loop.location)
        if loop.length * nbytes(found[0].outvars[0]) < nbytes(found[0].invars[0]):
            return self.NONE.at(loop.location)
        return Columns(self.FOUND.at(loop.location, count=len(found)), "", loop, found)

    def _takes_columns(self, eqn: Any) -> bool:
        n, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
        return (
            len(shape) == 2
            and shape[0] >= self.min_rows
            and not n.operand_batching_dims
            and tuple(n.start_index_map) == (1,)
            and tuple(n.collapsed_slice_dims) == (1,)
            and tuple(eqn.params["slice_sizes"]) == (shape[0], 1)
            and len(eqn.invars[1].aval.shape) == 2
            and tuple(n.offset_dims) == (0,)
        )

    def rewrite(self, plan: Columns) -> Loop:
        """Read rows of the transposed table."""
        loop = plan.loop
        assert loop is not None
        sources = dict(loop.consts)
        consts, mapping = list(loop.consts), {}
        edits: dict[int, list[Any]] = {}
        tables: dict[Any, Any] = {}
        for eqn in plan.gathers:
            table = eqn.invars[0]
            if table not in tables:
                shape = table.aval.shape[::-1]
                tables[table] = jc.fresh_var(table.aval.update(shape=shape))
                source = sources[table]
                consts.append(
                    (
                        tables[table],
                        Source(
                            lambda args, source=source: jnp.transpose(source.get(args))
                        ),
                    )
                )
            added, (out,) = jc.traced_equations(
                lambda t, i, eqn=eqn: lax.transpose(_rows(t, i, eqn.params), (1, 0)),
                [tables[table], eqn.invars[1]],
                eqn,
            )
            edits[id(eqn)] = added
            mapping[eqn.outvars[0]] = out
        return edited(loop.replace(consts=tuple(consts)), edits, mapping)


def _rows(table: Any, index: Any, params: Any) -> Any:
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(
        table,
        index,
        numbers,
        (1, table.shape[1]),
        mode=params["mode"],
        fill_value=params["fill_value"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
    )
