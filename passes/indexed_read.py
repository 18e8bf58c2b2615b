"""Indexed reads become `xs`: `x[i]` at a counter is a row of x per step.

What it does: a `dynamic_slice` or `gather` of a loop constant whose index is known at
every step (`x[i]`, `x[n-1-i]`, `x[2*i+1]`, `x[(7*i) % n]`) is replaced by an `xs`: a
slice, a reversed or strided slice, or one gather, of the constant.

Why it pays: the backward pass then stacks cotangents of rows where it would add each
one into an array of the size of x, and blocks read their rows without an index.

Legality: the index is evaluated after the operation's own out-of-range rule, and the
rows are no larger than what they are read from. Numerics: strict (bit-exact).

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, X):
...     def body(i, h):
...         return jnp.tanh(W @ h + X[X.shape[0] - 1 - i])
...     return jax.lax.fori_loop(0, X.shape[0], body, X[0])
>>> report = explain(f)(jnp.ones((8, 8)), jnp.ones((100, 8)))
>>> report.before.count("dynamic_slice"), report.after.count("dynamic_slice")
(1, 0)

References: the index traps are lessons from Enzyme-JAX's and PyTensor's loop passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jax import lax

from rewriter import jax_compat as jc
from rewriter.buffers import Access, Indices, read_access
from rewriter.cost import nbytes
from rewriter.graph import Loop, Source, edited
from rewriter.indices import Affine
from rewriter.pass_base import Context, LoopPass, Plan
from rewriter.remarks import Remark, missed, passed
from rewriter.rows import is_whole, take_rows

SMALL = 1 << 16  # bytes that may be stacked whatever they are read from


@dataclass(frozen=True)
class Reads(Plan):
    """Equations that read rows of constants, with how."""

    loop: Loop | None = None
    reads: tuple[tuple[Any, Access], ...] = ()


@dataclass(frozen=True)
class IndexedRead(LoopPass):
    """The pass."""

    name: ClassVar = "indexed-read"
    numerics: ClassVar = "strict"

    FOUND = passed("rows", "{count} read(s) at an index known at every step: rows")
    NONE = missed("none", "nothing is read at an index made from a counter")
    LARGER = missed(
        "larger-than-operand",
        "rows read at known indices overlap or repeat: stacked "
        "they would be larger than the array they are read from",
    )

    def match(self, loop: Loop, ctx: Context) -> Reads | Remark:
        """Find reads of constants at known indices."""
        consts = {v for v, _ in loop.consts}
        candidates = [
            e
            for e in loop.eqns
            if e.primitive.name in ("dynamic_slice", "gather")
            and not isinstance(e.invars[0], jc.Literal)
            and e.invars[0] in consts
        ]
        if not candidates:
            return self.NONE.at(loop.location)
        indices = Indices(loop)
        accesses = [
            (e, access) for e in candidates if (access := _rows(e, indices)) is not None
        ]
        if not accesses:
            return self.NONE.at(loop.location)
        found = tuple((e, a) for e, a in accesses if _fits(e, a, loop.length))
        if not found:
            return self.LARGER.at(loop.location)
        return Reads(self.FOUND.at(loop.location, count=len(found)), "", loop, found)

    def rewrite(self, plan: Reads) -> Loop:
        """Replace each read by an `xs`; equal reads share one."""
        loop = plan.loop
        assert loop is not None
        sources = dict(loop.consts)
        mapping, xs = {}, list(loop.xs)
        edits: dict[int, list[Any]] = {}
        shared: dict[Any, Any] = {}
        for eqn, access in plan.reads:
            edits[id(eqn)] = []
            key = _key(eqn, access)
            squeezed = _only_squeezed(loop, eqn, access)
            if squeezed and key is not None:
                key = (*key, "squeezed")
            if key is not None and key in shared:
                row = shared[key]
                edits.update((id(e), []) for e in squeezed)
                mapping.update((e.outvars[0], row) for e in squeezed)
                if not squeezed:
                    mapping[eqn.outvars[0]] = row
                continue
            row, added, out = row_variable(eqn, access)
            if squeezed:  # the axis of length one comes and goes: leave it out
                added, out = [], row
                edits.update((id(e), []) for e in squeezed)
                mapping.update((e.outvars[0], row) for e in squeezed)
            xs.append((row, _stacked(sources[eqn.invars[0]], access, loop.length)))
            edits[id(eqn)] = added
            if out is not eqn.outvars[0] and not squeezed:
                mapping[eqn.outvars[0]] = out
            if key is not None:
                shared[key] = out
        return edited(loop.replace(xs=tuple(xs)), edits, mapping)


def _only_squeezed(loop: Loop, eqn: Any, access: Access) -> list[Any]:
    """Return the readers of a row if all they do is to drop its axis."""
    out = eqn.outvars[0]
    if access.squeezed or access.window != 1:
        return []
    readers = [e for e in loop.eqns if any(v is out for v in e.invars)]
    dropped = all(
        e.primitive.name == "squeeze"
        and tuple(e.params["dimensions"]) == (access.axis,)
        for e in readers
    )
    outside = any(a is out for _, a in loop.ys) or any(
        c.out is out for c in loop.carries
    )
    return readers if dropped and not outside else []


def row_variable(eqn: Any, access: Access) -> tuple[Any, list[Any], Any]:
    """Return an `xs` variable for a read, equations that give it the read's shape.

    Stacked rows must not keep the read's axis of length one: XLA would lay them out
    anew and copy the whole array.
    """
    out = eqn.outvars[0]
    if access.squeezed or access.window != 1:
        return out, [], out
    shape = [s for k, s in enumerate(out.aval.shape) if k != access.axis]
    row = jc.fresh_var(out.aval.update(shape=tuple(shape)))
    added, (value,) = jc.traced_equations(
        lambda r: lax.expand_dims(r, (access.axis,)), [row], eqn
    )
    return row, added, value


def _rows(eqn: Any, indices: Indices) -> Access | None:
    access = read_access(eqn, indices)
    if access is None:
        return None
    if isinstance(access.position, Affine):
        if access.position.is_constant:
            return None  # an invariant, not a row per step
        if access.window > 1 and abs(access.step) != access.window:
            return None  # windows that overlap or leave gaps
    return access


def _fits(eqn: Any, access: Access, length: int) -> bool:
    stacked = length * nbytes(eqn.outvars[0])
    return stacked <= max(nbytes(eqn.invars[0]), SMALL)


def _key(eqn: Any, access: Access) -> Any:
    if not isinstance(access.position, Affine) or access.fixed:
        return None
    return (
        eqn.invars[0],
        access.axis,
        access.base,
        access.step,
        access.window,
        access.squeezed,
        eqn.outvars[0].aval.shape,
    )


def _stacked(source: Source, access: Access, length: int) -> Source:
    if access.window == 1:
        access = access.without_axis()
    operand = source.operand if is_whole(access, length) else None
    return Source(
        lambda args: take_rows(source.get(args), access, length, args), operand=operand
    )
