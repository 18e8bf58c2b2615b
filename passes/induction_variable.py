"""Induction variables: a counter has a closed form.

What it does: an integer carry that grows by a loop constant, `i + c`, becomes a
counter: `init + c * t` at step t, known at compile time where `init` and `c` are. Its
final value is `init + c * n`.

Why it pays: nothing then waits for the step before, and what is read or written at
an index made from it can be told at compile time.

Legality: integers only, wrap-around as in the dtype; a floating-point counter rounds
differently at every step and stays. Numerics: strict (bit-exact).

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, X):
...     def step(t, x):
...         return t + 1, jnp.tanh(W @ x) * t
...     return jax.lax.scan(step, 0, X)[1]
>>> report = explain(f)(jnp.ones((64, 64)), jnp.ones((100, 64)))
>>> print(report.before.outline())
scan 100, 1 carried:
  add dot_general mul tanh
>>> "scan" in report.after.outline()
False

References: induction variable substitution (Allen and Kennedy, ch. 4.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from rewriter import jax_compat as jc
from rewriter.graph import Counter, Loop, Outputs, Source, replace_final
from rewriter.indices import Affine, Known, constant, counter, reversed_in_time
from rewriter.pass_base import Context, LoopPass, Plan
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Inductions(Plan):
    """The counters found, by the carry they replace."""

    loop: Loop | None = None
    counters: tuple[Counter, ...] = ()


@dataclass(frozen=True)
class InductionVariable(LoopPass):
    """The pass."""

    name: ClassVar = "induction-variable"
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = False

    FOUND = passed("counter", "{carries} counts: its value is known at every step")
    NONE = missed("none", "no carry grows by a constant integer")

    def match(self, loop: Loop, ctx: Context) -> Inductions | Remark:
        """Find integer carries that grow by a loop constant."""
        made = {v: e for e in loop.eqns for v in e.outvars}
        consts = dict(loop.consts)
        found = [
            c
            for c in (_counter(loop, carry, made, consts) for carry in loop.carries)
            if c is not None
        ]
        if not found:
            return self.NONE.at(loop.location)
        names = ", ".join(loop.name(c.var) for c in found)
        return Inductions(
            self.FOUND.at(loop.location, carries=names), "", loop, tuple(found)
        )

    def rewrite(self, plan: Inductions) -> Loop:
        """Give them the role of counters."""
        loop = plan.loop
        assert loop is not None
        for c in plan.counters:
            results = replace_final(loop, c.var, _final(c, loop.length))
            loop = loop.replace(
                counters=(*loop.counters, c),
                results=results,
                carries=tuple(k for k in loop.carries if k.var is not c.var),
            )
        return loop


def _final(c: Counter, length: int) -> Any:
    def get(out: Outputs) -> Any:
        step = jnp.asarray(c.step.get(out.args)).astype(c.var.aval.dtype)
        return c.init.get(out.args) + step * jnp.asarray(length, c.var.aval.dtype)

    return get


def _counter(
    loop: Loop, carry: Any, made: dict[Any, Any], consts: dict[Any, Source]
) -> Counter | None:
    aval = carry.var.aval
    eqn = None if isinstance(carry.out, jc.Literal) else made.get(carry.out)
    if eqn is None or not jc.is_integer(aval):
        return None
    name = eqn.primitive.name
    if name not in ("add", "sub"):
        return None
    dtype = np.dtype(aval.dtype)
    if aval.size > 16:
        return None
    if loop.length >= np.iinfo(dtype).max:
        return None
    others = [v for v in eqn.invars if v is not carry.var]
    if len(others) != 1:
        return None
    other = others[0]
    if name == "sub" and not (
        isinstance(other, jc.Literal) and eqn.invars[0] is carry.var
    ):
        return None
    if isinstance(other, jc.Literal):
        value = -other.val if name == "sub" else other.val
        step = Source(lambda _: value, constant(value))
    elif other in consts:
        step = consts[other]
    else:
        return None
    return Counter(carry.var, carry.init, step, eqn, _known(loop, carry, step, dtype))


def _known(loop: Loop, carry: Any, step: Source, dtype: np.dtype) -> Known | None:
    start, by = carry.init.known, step.known
    if not isinstance(start, Affine) or not isinstance(by, Affine) or aval_rank(carry):
        return None
    known = counter(int(start.base), int(by.base), dtype)
    info = np.iinfo(dtype)
    first, last = known.ends(loop.length + 1)
    if not (info.min <= int(first) <= info.max and info.min <= int(last) <= info.max):
        return None
    return reversed_in_time(known, loop.length) if loop.reverse else known


def aval_rank(carry: Any) -> int:
    """Return the number of axes of a carry."""
    return len(carry.var.aval.shape)
