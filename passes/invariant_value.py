"""Invariant values: what no step changes is computed before the loop.

What it does: equations that read only loop constants become constants themselves;
broadcasts and conversions, which cost nothing in the loop, stay in it.

Why it pays: by itself nothing, XLA does the same; the passes after it see a transposed,
scaled or reshaped table as the constant it is.

Legality: no side effects, no control flow (a branch may never be taken), and nothing
that is larger than what it is made from. Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(X):
...     def row(p):
...         scaled = jnp.tanh(X).T
...         return jnp.sqrt(jnp.sum((scaled - p) ** 2, axis=1))
...     return jax.lax.map(row, X.T)
>>> report = explain(f)(jnp.ones((40, 1000)))
>>> [r.code for r in report.remarks if r.code.startswith("invariant-value/h")][:1]
['invariant-value/hoisted']
>>> report.verdicts[0].outcome
'blocked'

References: loop-invariant code motion, any compiler textbook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.graph import Loop, Source, reads
from rewriter.legality import unbatchable
from rewriter.orient import evaluate
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed

_FREE = frozenset({"broadcast_in_dim", "iota", "convert_element_type", "empty"})
_CONTROL = frozenset({"scan", "while", "cond"})


@dataclass(frozen=True)
class Values(Plan):
    """The equations that leave, and the values the loop still reads."""

    loop: Loop | None = None
    eqns: tuple[Any, ...] = ()
    wanted: tuple[Any, ...] = ()


@dataclass(frozen=True)
class InvariantValue(LoopPass):
    """The pass."""

    name: ClassVar = "invariant-value"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = False

    FOUND = passed("hoisted", "{count} operation(s) that no step changes run once")
    NONE = missed("none", "no operation is the same at every step")

    def match(self, loop: Loop, ctx: Context) -> Values | Remark:
        """Find equations on constants only."""
        if not isinstance(loop.length, int) or loop.length < 2:
            return self.NONE.at(loop.location)
        fixed = {v for v, _ in loop.consts}
        found: list[Any] = []
        for eqn in loop.eqns:
            if self._stays(eqn) or not all(v in fixed for v in reads(eqn)):
                continue
            found.append(eqn)
            fixed.update(eqn.outvars)
        if not found:
            return self.NONE.at(loop.location)
        mine = {id(e) for e in found}
        made = {v for e in found for v in e.outvars}
        read = [v for e in loop.eqns if id(e) not in mine for v in reads(e)]
        read += [c.out for c in loop.carries] + [a for _, a in loop.ys]
        wanted = tuple(
            dict.fromkeys(
                v for v in read if not isinstance(v, jc.Literal) and v in made
            )
        )
        return Values(
            self.FOUND.at(loop.location, count=len(found)),
            "",
            loop,
            tuple(found),
            wanted,
        )

    def _stays(self, eqn: Any) -> bool:
        name = eqn.primitive.name
        if name in _FREE or name in _CONTROL or not eqn.invars:
            return True
        if next(iter(jc.sub_jaxprs(eqn)), None) is not None:
            return True
        if not reads(eqn) or unbatchable(eqn) is not None:
            return True
        return sum(map(nbytes, eqn.outvars)) > sum(map(nbytes, eqn.invars))

    def rewrite(self, plan: Values) -> Loop:
        """Make the values constants."""
        loop = plan.loop
        assert loop is not None
        sources = dict(loop.consts)
        made = {v for e in plan.eqns for v in e.outvars}
        leaves = list(
            dict.fromkeys(v for e in plan.eqns for v in reads(e) if v not in made)
        )

        def value(args: Sequence[Any], v: Any) -> Any:
            env = {leaf: sources[leaf].get(args) for leaf in leaves}
            evaluate(_needed(plan.eqns, v), env, set())
            return env[v]

        gone = {id(e) for e in plan.eqns}
        return loop.replace(
            eqns=tuple(e for e in loop.eqns if id(e) not in gone),
            consts=(
                *loop.consts,
                *((v, Source(lambda args, v=v: value(args, v))) for v in plan.wanted),
            ),
        )


def _needed(eqns: Sequence[Any], var: Any) -> list[Any]:
    """Return the equations that a value depends on, in order."""
    live, found = {var}, []
    for eqn in reversed(eqns):
        if any(v in live for v in eqn.outvars):
            found.append(eqn)
            live.update(reads(eqn))
    return found[::-1]
