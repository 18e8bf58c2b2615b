"""Table recurrences become a window: `buf[i] = f(buf[i-1], ..., buf[i-w])`.

What it does: a carried table of which each step writes one row and reads only rows
written a fixed number of steps before is replaced by a carry of those w rows; the
table is a stacked output.

Why it pays: what does not read the window may be batched, and the loop carries w rows
where it carried the table.

Legality: written rows are distinct and in order; every read is of the row written k
steps before, 1 <= k <= w, or of a row of the initial table that a shift register of w
rows holds. Numerics: strict (bit-exact).

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, t):
...     def body(i, t):
...         return t.at[i].set(jnp.tanh(W @ t[i - 1] + t[i - 2]))
...     return jax.lax.fori_loop(2, 100, body, t)
>>> report = explain(f)(jnp.ones((8, 8)), jnp.ones((100, 8)))
>>> print(report.after.outline().splitlines()[1])
scan 98, 2 carried:

References: scalar replacement (Callahan, Carr and Kennedy, PLDI 1990).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.buffers import (
    Access,
    Indices,
    distinct,
    read_access,
    write_access,
)
from rewriter.graph import (
    Carry,
    Loop,
    Source,
    fresh_key,
    reads,
    replace_final,
    substitute,
)
from rewriter.indices import TABLE_LIMIT
from rewriter.pass_base import Context, LoopPass, Plan
from rewriter.remarks import Location, Remark, missed, passed
from rewriter.rows import put_rows


@dataclass(frozen=True)
class Window(Plan):
    """A table, its write, its reads by distance, and where the window starts."""

    loop: Loop | None = None
    carry: Carry | None = None
    write: Any = None
    access: Access | None = None
    update: Any = None
    reads: tuple[tuple[Any, int], ...] = ()
    first_rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class TableRecurrence(LoopPass):
    """The pass."""

    name: ClassVar = "table-recurrence"
    numerics: ClassVar = "strict"
    max_window: int = 8

    FOUND = passed(
        "window",
        "{carry} is a table whose rows depend on the {window} "
        "row(s) before: a window of rows is carried",
    )
    NONE = missed("none", "no carried table reads its own earlier rows")
    FAR = missed(
        "not-a-window",
        "{carry} is read at {where} at rows that are not a fixed "
        "small distance behind the written row",
    )

    def match(self, loop: Loop, ctx: Context) -> Window | Remark:
        """Find a table whose reads trail its writes by a fixed distance."""
        indices = Indices(loop)
        reason: Remark | None = None
        for carry in loop.carries:
            maker = (
                None
                if isinstance(carry.out, jc.Literal)
                else (loop.made_by().get(carry.out))
            )
            if maker is None or loop.length > TABLE_LIMIT:
                continue
            eqn = loop.eqns[maker]
            if not eqn.invars or eqn.invars[0] is not carry.var:
                continue
            written = write_access(eqn, indices)
            if written is None or written[1] != "set" or written[0].window != 1:
                continue
            access, _, update = written
            if not distinct(access, loop.length) or access.drops or access.fixed:
                continue
            plan = self._window(loop, carry, eqn, access, update, indices)
            if isinstance(plan, Window):
                return plan
            reason = plan
        return reason or self.NONE.at(loop.location)

    def _window(
        self,
        loop: Loop,
        carry: Carry,
        write: Any,
        access: Access,
        update: Any,
        indices: Indices,
    ) -> Window | Remark:
        far = lambda e: self.FAR.at(  # noqa: E731
            loop.location, carry=loop.name(carry.var), where=Location(*jc.location(e))
        )
        found: list[tuple[Any, int]] = []
        first: dict[int, int] = {}
        for eqn in loop.eqns:
            touches = [v for v in reads(eqn) if v is carry.var or v is carry.out]
            if eqn is write:
                if len(touches) > 1:
                    return far(eqn)
                continue
            if not touches:
                continue
            read = (
                read_access(eqn, indices)
                if eqn.invars[0] is carry.var and len(touches) == 1
                else None
            )
            if (
                read is None
                or read.axis != access.axis
                or read.window != 1
                or read.fixed
            ):
                return far(eqn)
            distance = _distance(
                read.table(loop.length),
                access.table(loop.length),
                loop.reverse,
                self.max_window,
                first,
            )
            if distance is None:
                return far(eqn)
            found.append((eqn, distance))
        outside = any(a is carry.var or a is carry.out for _, a in loop.ys) or any(
            c.out is carry.var or (c is not carry and c.out is carry.out)
            for c in loop.carries
        )
        if not found or outside:
            return far(write)
        width = max(d for _, d in found)
        rows = tuple(first.get(m, 0) for m in range(1, width + 1))
        return Window(
            self.FOUND.at(loop.location, carry=loop.name(carry.var), window=width),
            "",
            loop,
            carry,
            write,
            access,
            update,
            tuple(found),
            rows,
        )

    def rewrite(self, plan: Window) -> Loop:
        """Carry the window and stack the rows."""
        loop, carry, access = plan.loop, plan.carry, plan.access
        assert loop is not None
        assert carry is not None
        assert access is not None
        length, init, key = loop.length, carry.init, fresh_key(loop)
        by_distance = {d: e.outvars[0] for e, d in reversed(plan.reads)}
        like = plan.reads[0][0].outvars[0].aval
        eqns = [
            e
            for e in loop.eqns
            if e is not plan.write and all(e is not r for r, _ in plan.reads)
        ]
        latest: Any = plan.update
        if plan.update.aval.shape != like.shape:
            added, (latest,) = jc.traced_equations(
                lambda u: lax.reshape(u, like.shape), [plan.update], plan.write
            )
            eqns += added
        carries = [c for c in loop.carries if c is not carry]
        for m, row in enumerate(plan.first_rows, 1):
            var = by_distance.get(m) or jc.fresh_var(like)
            carries.append(
                Carry(
                    var,
                    Source(
                        lambda args, row=row: lax.dynamic_slice_in_dim(
                            init.get(args), row, 1, access.axis
                        ).reshape(like.shape)
                    ),
                    latest,
                )
            )
            latest = var
        mapping = {
            e.outvars[0]: by_distance[d]
            for e, d in plan.reads
            if by_distance[d] is not e.outvars[0]
        }
        row = plan.update
        if not access.squeezed:
            added, (row,) = jc.traced_equations(
                lambda u: lax.squeeze(u, (access.axis,)), [row], plan.write
            )
            eqns += added
        rows = access.without_axis()
        results = replace_final(
            loop,
            carry.var,
            lambda out: put_rows(
                init.get(out.args), out.stacks[key], rows, "set", length, out.args
            ),
            key,
        )
        names = {
            **loop.names,
            **{c.var: loop.name(carry.var) for c in carries if c not in loop.carries},
        }
        return substitute(
            loop.replace(
                eqns=tuple(eqns),
                carries=tuple(carries),
                ys=(*loop.ys, (key, row)),
                results=results,
                names=names,
            ),
            mapping,
        )


def _distance(
    read: np.ndarray,
    written: np.ndarray,
    reverse: bool,
    most: int,
    first: dict[int, int],
) -> int | None:
    """Return how many steps ago the read row was written, at every step.

    In the first steps rows of the initial table are read: `first[m]` is the row that
    is m places in front of the first written one, the same for all reads.
    """
    if reverse:
        read, written = read[::-1], written[::-1]
    for distance in range(1, min(most, max(1, len(read))) + 1):
        if not np.array_equal(read[distance:], written[: len(read) - distance]):
            continue
        initial = dict(first)
        for t, row in enumerate(read[:distance].tolist()):
            if row in written[:t] or initial.setdefault(distance - t, row) != row:
                break
        else:
            first.update(initial)
            return distance
    return None
