"""Invariant carries: a carry that comes out as it went in is a constant.

What it does: `carry out is carry in` makes the carry a loop constant; its final value
is its initial value.

Why it pays: what depends on it alone can leave the loop, and reads of it at a counter
become `xs`.

Legality: always. Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(w, X):
...     def body(c):
...         i, w, s = c
...         return i + 1, w, s + jnp.tanh(w @ X[i])
...     return jax.lax.while_loop(lambda c: c[0] < 100, body, (0, w, jnp.zeros(64)))[2]
>>> report = explain(f)(jnp.ones((64, 64)), jnp.ones((100, 64)))
>>> print(report.before.outline().splitlines()[0])
while:
>>> "scan" in report.after.outline()
False

References: loop-invariant code motion, any compiler textbook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rewriter.graph import Carry, Loop, replace_final
from rewriter.pass_base import Context, LoopPass, Plan
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Invariants(Plan):
    """The carries that never change."""

    loop: Loop | None = None
    carries: tuple[Carry, ...] = ()


@dataclass(frozen=True)
class InvariantCarry(LoopPass):
    """The pass."""

    name: ClassVar = "invariant-carry"
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = False

    FOUND = passed("constant", "carried but never changed: {carries}")
    NONE = missed("none", "every carry changes")

    def match(self, loop: Loop, ctx: Context) -> Invariants | Remark:
        """Find carries whose output is their input."""
        found = tuple(c for c in loop.carries if c.out is c.var)
        if not found:
            return self.NONE.at(loop.location)
        names = ", ".join(loop.name(c.var) for c in found)
        return Invariants(self.FOUND.at(loop.location, carries=names), "", loop, found)

    def rewrite(self, plan: Invariants) -> Loop:
        """Make them constants."""
        loop = plan.loop
        assert loop is not None
        for carry in plan.carries:
            results = replace_final(
                loop, carry.var, lambda out, c=carry: c.init.get(out.args)
            )
            loop = loop.replace(
                consts=(*loop.consts, (carry.var, carry.init)),
                results=results,
                carries=tuple(c for c in loop.carries if c is not carry),
            )
        return loop
