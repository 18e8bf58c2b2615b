"""Masked accumulation: `where(p, acc + v, acc)` adds `where(p, v, 0)`.

What it does: a carry that an operation with an identity updates or leaves alone, by a
selection or a cheap `cond`, is updated at every step, with the identity where it was
left alone. What accumulates is then seen to accumulate.

Why it pays: the sum over all steps needs no loop.

Legality: the identity changes no value, not even a negative zero; the new value may not
be read elsewhere. A `cond` becomes a selection only where both branches together cost
less than the loop's overhead.

Numerics: strict; the order of a float sum is another pass's matter.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, X):
...     def step(acc, x):
...         return jnp.where(x[0] > 0, acc + jnp.tanh(W @ x), acc), None
...     return jax.lax.scan(step, jnp.zeros(64), X)[0]
>>> report = explain(f)(jnp.ones((64, 64)), jnp.ones((1000, 64)))
>>> len(report.after.loops)
0

References: if-conversion (Allen, Kennedy, Porterfield and Warren, POPL 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import Carry, Loop, edited
from rewriter.legality import dear, unbatchable
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.patterns import Body, merged
from rewriter.recurrence import identity
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Guarded:
    """A selection between a carry and an update of it."""

    selection: Any
    step: Any  # the equation that updates
    var: Any  # the carry
    term: Any  # the update's other operand
    first: bool  # the carry is the first operand
    if_true: bool  # the update is taken where the predicate holds

    @property
    def atoms(self) -> list[Any]:
        """What `masked` takes."""
        return [self.selection.invars[0], self.var, self.term]

    def masked(self, p: Any, c: Any, value: Any) -> Any:
        """Return the update that keeps the carry by an identity."""
        none = jnp.full(c.shape, identity(self.step.primitive.name, c.dtype), c.dtype)
        value = jnp.broadcast_to(value, c.shape)
        cases = (none, value) if self.if_true else (value, none)
        value = lax.select_n(p, *cases)
        out = jc.rebind(self.step, [c, value] if self.first else [value, c])[0]
        return jc.coerce(out, self.selection.outvars[0].aval)


@dataclass(frozen=True)
class Masked(Plan):
    """The guarded updates, or conds to unfold."""

    loop: Loop | None = None
    selections: tuple[Guarded, ...] = ()
    conds: tuple[Any, ...] = ()


@dataclass(frozen=True)
class MaskedAccumulation(LoopPass):
    """The pass."""

    name: ClassVar = "masked-accumulation"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = False

    FOUND = passed("masked", "{count} carried value(s) accumulate under a condition")
    UNFOLDED = passed("unfolded", "{count} cheap cond(s) on carries become selections")
    NONE = missed("none", "no carry accumulates under a condition")

    def match(self, loop: Loop, ctx: Context) -> Masked | Remark:
        """Find guarded updates of carries."""
        loop = merged(loop)
        body = Body(loop.eqns)
        every = [_guarded(loop, carry, body) for carry in loop.carries]
        found = [one for one in every if one is not None]
        if found:
            remark = self.FOUND.at(loop.location, count=len(found))
            return Masked(remark, "", loop, tuple(found))
        carried = {c.var for c in loop.carries}
        overhead = ctx.model.overhead(loop.eqns)
        conds = tuple(
            e
            for e in loop.eqns
            if e.primitive.name == "cond"
            and any(v in carried for v in e.invars[1:] if not isinstance(v, jc.Literal))
            and _passes_a_carry(e, carried)
            and dear(e, ctx.model, overhead) is None
            and unbatchable(e) is None
        )
        if not conds:
            return self.NONE.at(loop.location)
        remark = self.UNFOLDED.at(loop.location, count=len(conds))
        return Masked(remark, "", loop, (), conds)

    def rewrite(self, plan: Masked) -> Loop:
        """Accumulate at every step."""
        loop = plan.loop
        assert loop is not None
        edits: dict[int, list[Any]] = {}
        mapping: dict[Any, Any] = {}
        made = {v: e for e in loop.eqns for v in e.outvars}
        for guarded in plan.selections:
            eqn = guarded.selection
            edits[id(eqn)], (out,) = jc.traced_equations(
                guarded.masked, guarded.atoms, eqn
            )
            mapping[eqn.outvars[0]] = out
        for eqn in plan.conds:
            edits[id(eqn)], outs = _unfolded(eqn, made)
            mapping.update(zip(eqn.outvars, outs, strict=True))
        return edited(loop, edits, mapping)


def _guarded(loop: Loop, carry: Carry, body: Body) -> Guarded | None:
    """Return the guarded update that a carry is."""
    eqn, var = _maker(body, carry.out), carry.var
    if eqn is None or eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
        return None
    _, low, high = eqn.invars
    if_true = body.plain(low) is var
    if if_true == (body.plain(high) is var) or _is_read(loop, var):
        return None
    new = body.plain(high if if_true else low)
    step = _maker(body, new)
    if step is None or {id(e) for e in body.readers(var)} != {id(eqn), id(step)}:
        return None
    if len(body.readers(new)) != 1 or _is_read(loop, new):
        return None
    shape, mine = var.aval.shape, [body.plain(v) is var for v in step.invars]
    if sum(mine) != 1 or any(v.aval.shape not in ((), shape) for v in step.invars):
        return None
    if step.primitive.name == "sub" and not mine[0]:
        return None
    if identity(step.primitive.name, var.aval.dtype) is None:
        return None
    if any(v.aval.dtype != var.aval.dtype for v in (*step.invars, *step.outvars)):
        return None
    return Guarded(eqn, step, var, step.invars[mine.index(False)], mine[0], if_true)


def _maker(body: Body, atom: Any) -> Any:
    plain = body.plain(atom)
    return None if isinstance(plain, jc.Literal) else body.made.get(plain)


def _is_read(loop: Loop, var: Any) -> bool:
    """Whether a value is itself an output, or what a carry becomes."""
    ends = [*(c.out for c in loop.carries), *(a for _, a in loop.ys)]
    return any(a is var for a in ends)


def _passes_a_carry(eqn: Any, carried: set[Any]) -> bool:
    """Whether some branch hands a carry through unchanged."""
    for closed in eqn.params["branches"]:
        body = jc.open_jaxpr(closed)
        given = dict(zip(body.invars, eqn.invars[1:], strict=True))
        for out in body.outvars:
            source = None if isinstance(out, jc.Literal) else given.get(out)
            if not isinstance(source, jc.Literal) and source in carried:
                return True
    return False


def _unfolded(eqn: Any, made: Any) -> tuple[list[Any], list[Any]]:
    """Return a cond's branches, both run, with selections of their results."""
    branches = eqn.params["branches"]
    index = eqn.invars[0]
    maker = None if isinstance(index, jc.Literal) else made.get(index)
    if maker is not None and maker.primitive.name == "convert_element_type":
        predicate = maker.invars[0]
        if len(branches) == 2 and predicate.aval.dtype == jnp.bool_:
            index = predicate

    def run(which: Any, *values: Any) -> list[Any]:
        cases = [_evaluated(b, values) for b in branches]
        if which.dtype != jnp.bool_:
            which = lax.clamp(
                jnp.zeros((), which.dtype),
                which,
                jnp.asarray(len(cases) - 1, which.dtype),
            )
        return [lax.select_n(which, *outs) for outs in zip(*cases, strict=True)]

    return jc.traced_equations(run, [index, *eqn.invars[1:]], eqn)


def _evaluated(closed: Any, values: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(x) for x in jc.evaluate(closed, *values)]
