"""Triangular fill: entries written one by one, and mirrored, become rows of a table.

What it does: an inner loop that writes `table[i, j]`, `table[j, i]` or both for every j
up to (or from) the outer counter i computes its row of values for all j; the table is
put together after the loops: written entries from the values or their transpose, the
rest as it was.

Why it pays: the loops carry no table any more, so both may be batched, and a symmetric
table is computed as a matrix product.

Legality: `i` and `j` count in steps of one and stay in bounds, values do not depend on
the table, and if both halves are written, i never passes j. Entries outside of the
triangle are computed in vain, so a quarter of the rectangle must be written.

Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def similarities(X):
...     def row(i, t):
...         def entry(j, t):
...             v = jnp.vdot(X[i], X[j])
...             return t.at[i, j].set(v).at[j, i].set(v)
...         return jax.lax.fori_loop(0, i, entry, t)
...     return jax.lax.fori_loop(0, len(X), row, jnp.eye(len(X)))
>>> report = explain(similarities)(jnp.ones((400, 40)))
>>> len(report.before.loops), len(report.after.loops)
(2, 0)

References: symmetric loops and loop splitting (Allen and Kennedy, ch. 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from rewriter import jax_compat as jc
from rewriter.fills import (
    Entries,
    Triangle,
    carried_table,
    entries_of,
    filled,
    rows_of,
)
from rewriter.graph import Loop, Outputs, fresh_key, replace_final
from rewriter.indices import TABLE_LIMIT
from rewriter.legality import unbatchable
from rewriter.nests import counted, values_of
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Fill(Plan):
    """An outer loop, its table, and the pairs that are written."""

    loop: Loop | None = None
    carry: Any = None
    pairs: Triangle | None = None


@dataclass(frozen=True)
class TriangularFill(LoopPass):
    """The pass."""

    name: ClassVar = "triangular-fill"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = True
    least_full: float = 0.25  # of the rectangle

    FOUND = passed(
        "rows", "{carry}: rows of {width} values per step, put together after the loop"
    )
    NONE = missed("none", "no inner loop fills a table entry by entry")

    def match(self, loop: Loop, ctx: Context) -> Fill | Remark:
        """Find a table that an inner loop fills up to the outer counter."""
        none = self.NONE.at(loop.location)
        whiles = [e for e in loop.eqns if e.primitive.name == "while"]
        if len(whiles) != 1 or not isinstance(loop.length, int):
            return none
        (eqn,) = whiles
        places = counted(eqn)
        if places is None or loop.length > TABLE_LIMIT or unbatchable(eqn) is not None:
            return none
        p = eqn.params
        skip = p["cond_nconsts"] + p["body_nconsts"]
        tables = [k for k in range(len(eqn.invars) - skip) if k not in places]
        if len(tables) != 1:
            return none
        carry = carried_table(loop, eqn, skip + tables[0], tables[0])
        entries = None if carry is None else entries_of(loop, eqn, places, tables[0])
        if carry is None or entries is None:
            return none
        known = loop.known()
        lows, highs = (
            values_of(eqn.invars[skip + k], known, loop.length) for k in places
        )
        i = values_of(entries.counter, known, loop.length)
        if lows is None or highs is None or i is None:
            return none
        pairs = self._pairs(i, lows, np.maximum(lows, highs), entries, carry, eqn)
        if pairs is None:
            return none
        remark = self.FOUND.at(
            loop.location, carry=loop.name(carry.var), width=max(pairs.highs)
        )
        return Fill(remark, "", loop, carry, pairs)

    def _pairs(
        self, i: Any, lows: Any, highs: Any, entries: Entries, carry: Any, eqn: Any
    ) -> Triangle | None:
        """Check the bounds of all pairs; return them by i."""
        step = int(i[1] - i[0]) if len(i) > 1 else 0
        if abs(step) != 1 or np.any(np.diff(i) != step):
            return None
        written = int((highs - lows).sum())
        width = int(highs.max())
        if written < self.least_full * width * len(i) or width < 2:
            return None
        rows, columns = carry.var.aval.shape
        for write in entries.writes:
            most = (columns, rows) if write.mirrored else (rows, columns)
            if i.min() < 0 or i.max() >= most[0] or lows.min() < 0 or width > most[1]:
                return None
        if len({w.mirrored for w in entries.writes}) == 2:
            some = highs > lows
            below, above = (highs <= i + 1)[some], (lows >= i)[some]
            if not (below.all() or above.all()):
                return None
        turned = slice(None, None, -1) if step < 0 else slice(None)
        return Triangle(
            eqn,
            entries.eqns,
            entries.writes,
            int(i.min()),
            step < 0,
            tuple(map(int, lows[turned])),
            tuple(map(int, highs[turned])),
        )

    def rewrite(self, plan: Fill) -> Loop:
        """Stack the rows of values; the table is made from them."""
        loop, carry, pairs = plan.loop, plan.carry, plan.pairs
        assert loop is not None
        assert pairs is not None
        eqn, width = pairs.eqn, max(pairs.highs)
        atoms = [v for v in eqn.invars if not isinstance(v, jc.Literal)]
        atoms = [v for v in atoms if v is not carry.var]
        made, values = jc.traced_equations(
            lambda *given: rows_of(pairs, dict(zip(atoms, given, strict=True)), width),
            atoms,
            eqn,
        )
        eqns = tuple(n for e in loop.eqns for n in (made if e is eqn else [e]))
        first = fresh_key(loop)
        keys = [first + k for k in range(len(values))]

        def table(out: Outputs) -> Any:
            stacks = [out.stacks[k] for k in keys]
            return filled(pairs, jnp.asarray(carry.init.get(out.args)), stacks)

        return loop.replace(
            eqns=eqns,
            ys=(*loop.ys, *zip(keys, values, strict=True)),
            carries=tuple(c for c in loop.carries if c is not carry),
            results=replace_final(loop, carry.var, table, keys[0], tuple(keys)),
        )
