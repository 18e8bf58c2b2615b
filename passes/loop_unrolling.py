"""Loop unrolling: several steps of cheap work on a long carry in one pass over it.

What it does: a recurrence that stays, whose step is a little cheap elementwise work on
a long carried array, runs four steps at a time.

Why it pays: each step reads and writes the whole carry; XLA fuses the unrolled steps,
so it is read and written once for four of them.

Legality: always; the order of operations stays. Profitable only where every carry is
read once per step (else XLA computes shared values again and again), nothing is
stacked, and what a step reads beside the carry is small or the same at every step.

Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def horner(p, x):
...     return jax.lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), p)[0]
>>> report = explain(horner)(jnp.ones(4096), jnp.ones(65536))
>>> report.verdicts[0].outcome
'unrolled'

References: loop unrolling, any compiler textbook; Horner's rule: Knuth, TAOCP 2, 4.6.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rewriter import jax_compat as jc
from rewriter.cost import elements
from rewriter.emit import emit_loop, mark_loop
from rewriter.graph import Loop, reads, variant_values
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.recurrence import uses
from rewriter.remarks import Remark, missed, passed

_CHEAP = frozenset({"add", "sub", "mul", "neg", "max", "min", "abs", "add_any"})
_FREE = frozenset(
    {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type"}
)


@dataclass(frozen=True)
class Unrolled(Plan):
    """The loop with its factor."""

    loop: Loop | None = None


@dataclass(frozen=True)
class LoopUnrolling(LoopPass):
    """The pass."""

    name: ClassVar = "loop-unrolling"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "strict"
    explains: ClassVar = False
    factor: int = 4
    min_elements: int = 1024  # of the carry; shorter ones live in registers
    most_operations: int = 8

    DONE = passed(
        "unrolled",
        "each step needs the one before: {factor} steps at a time in one pass over "
        "{elements} carried elements",
    )
    NONE = missed("none", "no long carry with a few cheap operations a step")

    def match(self, loop: Loop, ctx: Context) -> Unrolled | Remark:
        """Check that a step is short and linear in its long carries."""
        none = self.NONE.at(loop.location)
        if ctx.platform != "cpu" or loop.ys or loop.unroll != 1 or not loop.carries:
            return none
        if not isinstance(loop.length, int) or loop.length < 4 * self.factor:
            return none
        size = max(elements(c.var) for c in loop.carries)
        long = [c for c in loop.carries if elements(c.var) == size]
        if size < self.min_elements or len(long) != len(loop.carries):
            return none
        if sum(elements(v) for v, _ in loop.xs) * 8 > size:
            return none
        count = uses(loop)
        seeds = {c.var for c in loop.carries} | {v for v, _ in loop.xs}
        variant = variant_values(loop.eqns, seeds | {c.var for c in loop.counters})
        work = [e for e in loop.eqns if any(v in variant for v in e.outvars)]
        if not work or not self._is_cheap(loop, work):
            return none
        outs = [c.out for c in loop.carries]
        for carry in loop.carries:
            passed_on = sum(o is carry.var for o in outs)
            if count[carry.var] - passed_on > 1:
                return none
        made = {v for e in work for v in e.outvars}
        if any(count[v] > 1 for v in made if elements(v) == size):
            return none
        remark = self.DONE.at(loop.location, factor=self.factor, elements=size)
        return Unrolled(remark, "unrolled", loop.replace(unroll=self.factor))

    def _is_cheap(self, loop: Loop, work: list[Any]) -> bool:
        costly = [e for e in work if e.primitive.name not in _FREE]
        if len(costly) > self.most_operations:
            return False
        if any(e.primitive.name not in _CHEAP for e in costly):
            return False
        known = {v for v, _ in loop.consts}
        size = max(elements(c.var) for c in loop.carries)
        return all(
            elements(v) in (1, size) or v in known for e in costly for v in reads(e)
        ) and not any(e.effects or jc.is_sharded(e.outvars[0].aval) for e in work)

    def rewrite(self, plan: Unrolled) -> Emission:
        """Emit the loop with an unroll factor."""
        loop = plan.loop
        assert loop is not None
        return lambda args: emit_loop(mark_loop(loop), args)
