"""Buffer writes become `ys`: an array filled row by row is a stacked output.

What it does: a carried array that a loop only writes, `buf.at[i].set(v)`, `.add`,
`.multiply`, `.min`, `.max` or `dynamic_update_slice`, at distinct rows known at every
step, is no carry: each step's row becomes an output, and the rows are put in place
once after the loop. A row that is read in the step that writes it is read from the
initial array.

Why it pays: the array no longer ties each step to the one before, so the loop may be
batched; in a backward pass no cotangent of the whole array is carried.

Legality: the rows are distinct after the operation's own out-of-range rule, nothing
else reads the array, and no read sees a row that an earlier step wrote (that is a table
recurrence). Numerics: strict (bit-exact).

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, X):
...     def body(i, out):
...         return out.at[i].set(jnp.tanh(W @ X[i]))
...     return jax.lax.fori_loop(0, 100, body, jnp.zeros((100, 64)))
>>> report = explain(f)(jnp.ones((64, 64)), jnp.ones((100, 64)))
>>> "scan" in report.before.outline(), "scan" in report.after.outline()
(True, False)

References: `lax.map` written by hand; array privatisation (Allen and Kennedy, ch. 6.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jax import lax

from rewriter import jax_compat as jc
from rewriter.buffers import (
    Access,
    Indices,
    distinct,
    read_access,
    same_position,
    write_access,
)
from rewriter.graph import Carry, Loop, Source, fresh_key, reads, replace_final
from rewriter.pass_base import Context, LoopPass, Plan
from rewriter.remarks import Location, Remark, missed, passed
from rewriter.rows import put_rows, take_rows


@dataclass(frozen=True)
class Write:
    """One carried buffer: the equation that writes it and those that read it."""

    carry: Carry
    eqn: Any
    access: Access
    how: str
    update: Any
    reads: tuple[tuple[Any, Access], ...] = ()  # of the row before it is written


@dataclass(frozen=True)
class Writes(Plan):
    """The buffers found."""

    loop: Loop | None = None
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True)
class BufferWrite(LoopPass):
    """The pass."""

    name: ClassVar = "buffer-write"
    numerics: ClassVar = "strict"

    FOUND = passed(
        "rows", "{carries} is filled row by row: each step's row is an output"
    )
    NONE = missed("none", "no carried array is written row by row")
    UNKNOWN = missed(
        "unknown-index",
        "{carry} is written at {where} at an index that is not known at "
        "compile time, so two steps may write the same place",
        "if the indices are distinct, compute all rows first and write them at once "
        "with .at[indices].set(rows, unique_indices=True)",
    )
    REPEATED = missed(
        "repeated-row",
        "{carry} is written at {where} at the same row in more than one step",
    )
    READ = missed(
        "read-elsewhere",
        "{carry} is written row by row but also read at "
        "{where}: a step may see what an earlier one wrote",
    )

    def match(self, loop: Loop, ctx: Context) -> Writes | Remark:
        """Find carried arrays written at distinct known rows."""
        candidates = [c for c in loop.carries if _is_buffer(loop, c)]
        if not candidates:
            return self.NONE.at(loop.location)
        indices = Indices(loop)
        found, reason = [], None
        for carry in candidates:
            write = self.write_of(loop, carry, indices)
            if isinstance(write, Write):
                found.append(write)
            else:
                reason = write
        if not found:
            assert reason is not None
            return reason
        names = ", ".join(loop.name(w.carry.var) for w in found)
        return Writes(
            self.FOUND.at(loop.location, carries=names), "", loop, tuple(found)
        )

    def write_of(self, loop: Loop, carry: Carry, indices: Indices) -> Write | Remark:
        """Return how a carried array is written, or why it is not that simple."""
        name = loop.name(carry.var)
        eqn = loop.eqns[loop.made_by()[carry.out]]
        where = Location(*jc.location(eqn))
        written = write_access(eqn, indices)
        if written is None:
            return self.UNKNOWN.at(loop.location, carry=name, where=where)
        access, how, update = written
        if not distinct(access, loop.length):
            return self.REPEATED.at(loop.location, carry=name, where=where)
        rows = []
        for other in loop.eqns:
            if other is eqn:
                if any(v is carry.var for v in other.invars[1:]):
                    return self.READ.at(loop.location, carry=name, where=where)
                continue
            if not any(v is carry.var or v is carry.out for v in reads(other)):
                continue
            read = read_access(other, indices) if other.invars[0] is carry.var else None
            if (
                read is None
                or not same_position(read, access, loop.length)
                or (access.drops)
            ):
                return self.READ.at(
                    loop.location, carry=name, where=Location(*jc.location(other))
                )
            rows.append((other, read))
        if any(a is carry.var or a is carry.out for _, a in loop.ys) or any(
            c.out is carry.var or (c.out is carry.out and c is not carry)
            for c in loop.carries
        ):
            return self.READ.at(loop.location, carry=name, where=loop.location)
        return Write(carry, eqn, access, how, update, tuple(rows))

    def rewrite(self, plan: Writes) -> Loop:
        """Turn each buffer into an output and a write after the loop."""
        loop = plan.loop
        assert loop is not None
        for write in plan.writes:
            loop = _as_output(loop, write)
        return loop


def _is_buffer(loop: Loop, carry: Carry) -> bool:
    if isinstance(carry.out, jc.Literal) or carry.out is carry.var:
        return False
    maker = loop.made_by().get(carry.out)
    if maker is None:
        return False
    eqn = loop.eqns[maker]
    return (
        bool(eqn.invars)
        and eqn.invars[0] is carry.var
        and (
            eqn.primitive.name == "dynamic_update_slice"
            or eqn.primitive.name.startswith("scatter")
        )
    )


def _as_output(loop: Loop, write: Write) -> Loop:
    carry, access, length = write.carry, write.access, loop.length
    key = fresh_key(loop)
    init = carry.init
    row, added = write.update, []
    if access.window == 1 and not access.squeezed:
        added, (row,) = jc.traced_equations(
            lambda u: lax.squeeze(u, (access.axis,)), [write.update], write.eqn
        )
        access = access.without_axis()
    results = replace_final(
        loop,
        carry.var,
        lambda out: put_rows(
            init.get(out.args), out.stacks[key], access, write.how, length, out.args
        ),
        key,
    )
    xs = list(loop.xs)
    dropped = {id(write.eqn)}
    for eqn, read in write.reads:
        dropped.add(id(eqn))
        xs.append(
            (
                eqn.outvars[0],
                Source(
                    lambda args, read=read: take_rows(
                        init.get(args), read, length, args
                    )
                ),
            )
        )
    return loop.replace(
        eqns=(*(e for e in loop.eqns if id(e) not in dropped), *added),
        xs=tuple(xs),
        ys=(*loop.ys, (key, row)),
        results=results,
        carries=tuple(c for c in loop.carries if c.var is not carry.var),
    )
