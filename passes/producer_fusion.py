"""Producer fusion: a large array that a loop reads row by row is made row by row.

What it does: an operand that elementwise work, broadcasts and outer products make from
smaller arrays, and that only the loop reads, one row a step, is computed in the step
from rows of the smaller arrays. The distribution moves it out again where that is
cheaper than storing it.

Why it pays: the array is never stored; on a CPU, writing fresh memory costs more than
computing it again in cache.

Legality: the loop is the only reader, and every row depends on rows of the leaves (or
on all of an array without rows). Only above 4 MB, and only where the leaves together
are less than half as large; not for dear functions, which all cores compute at once.

Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def scan_of_products(u, A):
...     table = jnp.exp(u[:, :, None] * A)
...     def step(h, row):
...         h = row * h + 1
...         return h, h.sum()
...     return jax.lax.scan(step, jnp.ones_like(A), table)[1]
>>> report = explain(scan_of_products)(jnp.ones((1000, 200)), jnp.ones((200, 16)))
>>> [r.code for r in report.remarks if r.code.endswith("in-step")][:1]
['producer-fusion/in-step']

References: producer-consumer fusion (Halide's `compute_at`, Ragan-Kelley et al. 2013).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.graph import Loop, Source, substitute
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.producers import Producer
from rewriter.remarks import Remark, missed, passed
from rewriter.report import format_bytes


@dataclass(frozen=True)
class Fusion(Plan):
    """Rows of the loop with what makes them."""

    loop: Loop | None = None
    found: tuple[tuple[Any, Producer], ...] = ()


@dataclass(frozen=True)
class ProducerFusion(LoopPass):
    """The pass."""

    name: ClassVar = "producer-fusion"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = True
    min_bytes: int = 4 << 20
    most_leaves: float = 0.5  # of the bytes of the array
    most_work: float = 4.5  # cheap operations per element, half beside dear ones
    light_step: float = 6.0

    FOUND = passed(
        "in-step", "{bytes_text} of rows are made in the step that reads them"
    )
    NONE = missed("none", "no large operand is made row by row from smaller arrays")

    def match(self, loop: Loop, ctx: Context) -> Fusion | Remark:
        """Find large rows whose producers are elementwise."""
        none = self.NONE.at(loop.location)
        if ctx.scope is None or not isinstance(loop.length, int) or loop.length < 2:
            return none
        found = []
        for var, source in loop.xs:
            if source.operand is None:
                continue
            atom = loop.eqn.invars[source.operand]
            if isinstance(atom, jc.Literal) or nbytes(atom) < self.min_bytes:
                continue
            made = ctx.scope.producer(atom)
            if made is None or atom.aval.shape[0] != loop.length:
                continue
            leaves = sum(nbytes(v) for v, _ in made.leaves)
            work = sum(ctx.model.weight(e) * nbytes(e.outvars[0]) for e in made.eqns)
            row = nbytes(var)
            own = sum(ctx.model.weight(e) for e in loop.eqns if _size(e) >= row)
            most = self.most_work if own <= self.light_step else self.most_work / 2
            if work > most * nbytes(atom):
                continue  # before the loop, all cores work on it
            if leaves <= self.most_leaves * nbytes(atom):
                found.append((var, made))
        if not found:
            return none
        total = sum(nbytes(p.out) for _, p in found)
        remark = self.FOUND.at(
            loop.location, bytes=total, bytes_text=format_bytes(total)
        )
        return Fusion(remark, "fused", loop, tuple(found))

    def rewrite(self, plan: Fusion) -> Loop:
        """Read rows of the leaves and make the row in the step."""
        loop = plan.loop
        assert loop is not None
        operands = list(loop.eqn.invars)
        consts, xs = list(loop.consts), list(loop.xs)
        eqns: list[Any] = []
        mapping: dict[Any, Any] = {}
        given: dict[tuple[Any, int | None], Any] = {}
        for var, made in plan.found:
            inputs = []
            for leaf, axis in made.leaves:
                if (leaf, axis) not in given:
                    operands.append(leaf)
                    given[leaf, axis] = _read(leaf, axis, len(operands) - 1, consts, xs)
                inputs.append(given[leaf, axis])
            added, (out,) = jc.traced_equations(
                lambda *values, made=made: made.row(values), inputs, loop.eqn
            )
            eqns += added
            mapping[var] = out
        return substitute(
            loop.replace(
                eqn=loop.eqn.replace(invars=operands),
                consts=tuple(consts),
                xs=tuple(x for x in xs if x[0] not in mapping),
                eqns=(*eqns, *loop.eqns),
            ),
            mapping,
        )


def _read(
    leaf: Any, axis: int | None, at: int, consts: list[Any], xs: list[Any]
) -> Any:
    """Add a leaf to what the loop reads; return its variable in the body."""
    if axis is None:
        var = jc.fresh_var(leaf.aval)
        consts.append((var, Source.of(at)))
        return var
    shape = [n for k, n in enumerate(leaf.aval.shape) if k != axis]
    var = jc.fresh_var(leaf.aval.update(shape=tuple(shape)))
    source = (
        Source.of(at)
        if axis == 0
        else Source(lambda args: jnp.moveaxis(args[at], axis, 0))
    )
    xs.append((var, source))
    return var


def _size(eqn: Any) -> int:
    return max((nbytes(v) for v in eqn.outvars), default=0)
