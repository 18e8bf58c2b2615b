"""Conditional accumulation: `cond(p, lambda: acc + f(x), lambda: acc)` adds a `cond`.

What it does: a carry that every branch of a `cond` or `switch` updates by one
operation, or leaves alone, goes around the `cond`: the branches give what is to be
added, or the identity. What accumulates is then seen to accumulate.

Why it pays: the branches no longer read a carry, so all rows can run them at once, and
the sum over all steps needs no loop. Cheap `cond`s become selections instead
(`masked-accumulation`).

Legality: the carry is read by nothing else, in no branch; all branches accumulate by
one operation; the identity changes no value, not even a negative zero. Terms are added
in the order in which the branch did.

Numerics: strict; the order of a float sum is another pass's matter.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, X):
...     def step(acc, x):
...         dear = lambda acc: acc + jnp.tanh(W @ jnp.tanh(W @ x))
...         return jax.lax.cond(x[0] > 2, dear, lambda acc: acc, acc), None
...     return jax.lax.scan(step, jnp.zeros(64), X)[0]
>>> report = explain(f)(jnp.ones((64, 64)), jnp.ones((2000, 64)))
>>> report.verdicts[0].outcome
'batched'

References: if-conversion (Allen, Kennedy, Porterfield and Warren, POPL 1983); code
sinking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.emit import value_of
from rewriter.graph import Carry, Loop, edited
from rewriter.inline import inline
from rewriter.legality import dear, unbatchable
from rewriter.orient import evaluate
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import merged
from rewriter.recurrence import (
    ASSOCIATIVE,
    Accumulation,
    Associative,
    accumulation,
    count_reads,
    identity,
    users_of,
    uses,
)
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Updated:
    """A carry that a cond updates: which operand and output it is, and how."""

    carry: Carry
    operand: int  # of the branches
    output: int
    op: Associative
    branches: tuple[Accumulation, ...]

    @property
    def count(self) -> int:
        """The most terms that a branch adds."""
        return max(len(b.terms) for b in self.branches)


@dataclass(frozen=True)
class Branch:
    """The inside of a branch, calls inlined, and who reads what in it."""

    inputs: tuple[Any, ...]
    eqns: tuple[Any, ...]
    outs: tuple[Any, ...]
    count: Counter[Any]
    users: dict[Any, list[int]]


@dataclass(frozen=True)
class Cond:
    """A cond, its branches, and the carries that it updates."""

    eqn: Any
    branches: tuple[Branch, ...]
    updated: tuple[Updated, ...]


@dataclass(frozen=True)
class Conditional(Plan):
    """The conds of a loop."""

    loop: Loop | None = None
    conds: tuple[Cond, ...] = ()


@dataclass(frozen=True)
class ConditionalAccumulation(LoopPass):
    """The pass."""

    name: ClassVar = "conditional-accumulation"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = False  # pays only if the loop is batched

    FOUND = passed("moved", "{count} carried value(s) accumulate outside of a cond")
    NONE = missed("none", "no dear cond only adds to a carry")

    def match(self, loop: Loop, ctx: Context) -> Conditional | Remark:
        """Find dear conds whose branches add to carries."""
        loop = merged(loop)
        overhead = ctx.model.overhead(loop.eqns)
        count = uses(loop)
        found = []
        for eqn in loop.eqns:
            if eqn.primitive.name != "cond" or unbatchable(eqn) is not None:
                continue
            if dear(eqn, ctx.model, overhead) is None:
                continue
            branches = tuple(_branch(b) for b in eqn.params["branches"])
            every = [_updated(eqn, branches, c, count) for c in loop.carries]
            updated = tuple(u for u in every if u is not None)
            if updated:
                found.append(Cond(eqn, branches, updated))
        if not found:
            return self.NONE.at(loop.location)
        total = sum(len(cond.updated) for cond in found)
        remark = self.FOUND.at(loop.location, count=total)
        return Conditional(remark, "", loop, tuple(found))

    def rewrite(self, plan: Conditional) -> Loop:
        """Put conds of what is added, and the additions, in place of the conds."""
        loop = plan.loop
        assert loop is not None
        edits: dict[int, list[Any]] = {}
        mapping: dict[Any, Any] = {}
        for cond in plan.conds:
            eqn = cond.eqn
            edits[id(eqn)], outs = jc.traced_equations(
                lambda *values, cond=cond: _moved(cond, values), eqn.invars, eqn
            )
            mapping.update(zip(eqn.outvars, outs, strict=True))
        return edited(loop, edits, mapping)


def _branch(closed: Any) -> Branch:
    body = jc.open_jaxpr(closed)
    eqns, subst, _ = inline(body.eqns)
    outs = tuple(
        a if isinstance(a, jc.Literal) else subst.get(a, a) for a in body.outvars
    )
    count, users = count_reads(eqns, outs), users_of(eqns)
    return Branch(tuple(body.invars), tuple(eqns), outs, count, users)


def _updated(
    eqn: Any, branches: Sequence[Branch], carry: Carry, count: Counter[Any]
) -> Updated | None:
    """Return how a cond updates a carry, if all it does is accumulate."""
    dtype = getattr(carry.var.aval, "dtype", None)
    if carry.out not in eqn.outvars or count[carry.var] != 1:
        return None
    places = [k for k, v in enumerate(eqn.invars[1:]) if v is carry.var]
    if len(places) != 1 or jc.is_extended(carry.var.aval):
        return None
    operand, output = places[0], eqn.outvars.index(carry.out)
    found = []
    for b in branches:
        var, out = b.inputs[operand], b.outs[output]
        how = accumulation(b.eqns, var, out, b.count, b.users)
        if how is None or b.count[out] != 1:
            return None
        found.append(how)
    families = {b.family for b in found if b.terms}
    if len(families) != 1:
        return None
    op = ASSOCIATIVE[families.pop()]
    if identity(op.primitive, dtype) is None:
        return None
    return Updated(carry, operand, output, op, tuple(found))


def _moved(cond: Cond, values: Sequence[Any]) -> list[Any]:
    """Run the cond without the carries, and add to them what it gives."""
    eqn, updated = cond.eqn, cond.updated
    index, *operands = values
    gone = {u.operand for u in updated}
    kept = [k for k in range(len(operands)) if k not in gone]
    branches = [
        lambda *given, k=k: _without_carries(cond, k, kept, given)
        for k in range(len(cond.branches))
    ]
    others, added = lax.switch(index, branches, *(operands[k] for k in kept))
    sums = {}
    for u, terms in zip(updated, added, strict=True):
        value = operands[u.operand]
        for term in terms:
            value = u.op.combine(value, term)
        sums[u.output] = value
    rest = iter(others)
    outs = [sums[k] if k in sums else next(rest) for k in range(len(eqn.outvars))]
    return [jc.coerce(x, v.aval) for x, v in zip(outs, eqn.outvars, strict=True)]


def _without_carries(
    cond: Cond, which: int, kept: Sequence[int], given: Sequence[Any]
) -> tuple[list[Any], list[list[Any]]]:
    """Run a branch: its other outputs, and what it adds to each carry."""
    branch, updated = cond.branches[which], cond.updated
    skipped = {i for u in updated for i in u.branches[which].eqns}
    known = {branch.inputs[k]: x for k, x in zip(kept, given, strict=True)}

    own = [e for i, e in enumerate(branch.eqns) if i not in skipped]
    evaluate(own, known, set())

    def read(atom: Any) -> Any:
        return value_of(atom, known)

    mine = {u.output for u in updated}
    others = [read(a) for k, a in enumerate(branch.outs) if k not in mine]
    return others, [_terms(u, u.branches[which], read) for u in updated]


def _terms(u: Updated, how: Accumulation, read: Any) -> list[Any]:
    """Return what a branch adds, filled up with the identity."""
    shape, dtype = u.carry.var.aval.shape, u.carry.var.aval.dtype
    found = []
    for term in how.terms:
        value = jnp.broadcast_to(jnp.asarray(read(term.atom), dtype), shape)
        found.append(lax.neg(value) if term.negative else value)
    none = jnp.full(shape, identity(u.op.primitive, dtype), dtype)
    return found + [none] * (u.count - len(found))
