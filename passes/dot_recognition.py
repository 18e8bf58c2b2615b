"""Dot recognition: sums of products in a step become dots, in the cheapest order.

What it does: `sum(a * b)` through broadcasts, transposes, squares and products of
several factors, quadratic and bilinear forms, and chains of dots are taken apart into
factors and contracted pair by pair, parts that no step changes first. The distribution
then makes one matrix product of the dots of all steps.

Why it pays: XLA runs a multiply-and-sum as elementwise work, never as a matrix product,
and multiplies chains in the order they are written.

Legality: floats of 32 bits or more; a dot is at full precision, a chain at the user's.
Of a changing factor no product as large as the term is made.

Numerics: reassociate.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def rows(W, X):
...     return jax.lax.map(lambda x: jnp.sum(W * x, axis=1), X)
>>> report = explain(rows)(jnp.ones((256, 64)), jnp.ones((5000, 64)))
>>> print(report.before.outline())
scan 5000:
  mul reduce_sum
>>> print(report.after.outline())
dot_general

References: opt_einsum (Smith and Gray, JOSS 2018); matrix chains: Cormen et al., 15.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewriter import jax_compat as jc
from rewriter.cost import elements
from rewriter.graph import Loop, edited, reads, variant_values
from rewriter.network import Network, network
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed


@dataclass(frozen=True)
class Dots(Plan):
    """Networks with the equations that replace them."""

    loop: Loop | None = None
    found: tuple[tuple[Network, list[Any], Any], ...] = ()


@dataclass(frozen=True)
class DotRecognition(LoopPass):
    """The pass."""

    name: ClassVar = "dot-recognition"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "reassociate"
    worth_emitting: ClassVar = True
    min_gain: float = 1.5  # a dot has costs that the model does not see

    FOUND = passed(
        "contracted", "{count} sum(s) of products are contracted as {dots} dot(s)"
    )
    NONE = missed("none", "no step sums products that a cheaper dot would compute")

    def match(self, loop: Loop, ctx: Context) -> Dots | Remark:
        """Find the networks whose contraction is cheaper than what is written."""
        if not isinstance(loop.length, int) or loop.length < 2:
            return self.NONE.at(loop.location)
        made = {v: e for e in loop.eqns for v in e.outvars}
        count: dict[Any, int] = {}
        atoms = [v for e in loop.eqns for v in e.invars]
        atoms += [*(a for _, a in loop.ys), *(c.out for c in loop.carries)]
        for v in atoms:
            if not isinstance(v, jc.Literal):
                count[v] = count.get(v, 0) + 1
        seeds = {c.var for c in loop.carries} | {v for v, _ in loop.xs}
        carried = variant_values(loop.eqns, {c.var for c in loop.carries})
        seeds |= {c.var for c in loop.counters}
        variant = variant_values(loop.eqns, seeds)
        taken: set[int] = set()
        found = []
        for eqn in reversed(loop.eqns):
            if eqn.primitive.name not in ("reduce_sum", "dot_general"):
                continue
            if id(eqn) in taken or eqn.outvars[0] not in variant:
                continue
            net = network(eqn, made.get, lambda v: count.get(v, 0))
            new = (
                None if net is None else self._better(net, loop, variant, carried, ctx)
            )
            if net is not None and new is not None:
                found.append((net, *new))
                taken.update(id(e) for e in net.used)
        if not found:
            return self.NONE.at(loop.location)
        dots = sum(
            e.primitive.name == "dot_general" for _, eqns, _ in found for e in eqns
        )
        remark = self.FOUND.at(loop.location, count=len(found), dots=dots)
        return Dots(remark, "", loop, tuple(found))

    def _better(
        self,
        net: Network,
        loop: Loop,
        variant: set[Any],
        carried: set[Any],
        ctx: Context,
    ) -> tuple[list[Any], Any] | None:
        """Return a contraction's equations if they are cheaper, and their value."""
        plain = net.root.primitive.name == "reduce_sum"
        if len(net.factors) < 2 or (not plain and len(net.factors) < 3):
            return None

        def changing(atom: Any) -> bool:
            return not isinstance(atom, jc.Literal) and atom in variant

        if all(changing(f.atom) for f in net.factors):
            return None
        term = max(elements(v) for e in net.used for v in e.outvars)
        if plain and any(
            changing(f.atom) and elements(f.atom) >= term for f in net.factors
        ):
            return None  # elementwise work on it stays, and would be stored
        path = net.path(changing, loop.length)
        atoms = [f.atom for f in net.factors]
        eqns, (out,) = jc.traced_equations(
            lambda *values: net.evaluate(values, path), atoms, net.root
        )
        if not any(e.primitive.name == "dot_general" for e in eqns):
            return None
        if out.aval.dtype != net.root.outvars[0].aval.dtype:
            return None
        return (
            (eqns, out) if self._pays(net, eqns, loop, variant, carried, ctx) else None
        )

    def _pays(
        self,
        net: Network,
        eqns: Sequence[Any],
        loop: Loop,
        variant: set[Any],
        carried: set[Any],
        ctx: Context,
    ) -> bool:
        model = ctx.model
        after = variant_values(eqns, set(variant))

        def loop_ns(some: Sequence[Any], changing: set[Any]) -> float:
            return sum(
                model.loop(e) for e in some if any(v in changing for v in e.outvars)
            )

        gone = _vanishing(net.used, loop)
        before, now = loop_ns(gone, variant), loop_ns(eqns, after)
        if any(v in carried for e in net.used for v in e.outvars):
            return before > self.min_gain * now
        batched = sum(model.batch(e, variant) for e in gone)
        rows = sum(model.batch(e, after) for e in eqns)
        return min(before, batched) > self.min_gain * min(now, rows)

    def rewrite(self, plan: Dots) -> Loop:
        """Put the dots in place of the sums."""
        loop = plan.loop
        assert loop is not None
        edits = {id(net.root): eqns for net, eqns, _ in plan.found}
        mapping = {net.root.outvars[0]: out for net, _, out in plan.found}
        return edited(loop, edits, mapping)


def _vanishing(used: Sequence[Any], loop: Loop) -> list[Any]:
    """Return the equations of a network that nobody else needs."""
    mine = {id(e) for e in used}
    root = used[0]
    wanted = {v for e in loop.eqns if id(e) not in mine for v in reads(e)}
    wanted |= {a for _, a in loop.ys if not isinstance(a, jc.Literal)}
    wanted |= {c.out for c in loop.carries if not isinstance(c.out, jc.Literal)}
    wanted -= set(root.outvars)
    gone = []
    order = {id(e): i for i, e in enumerate(loop.eqns)}
    for eqn in sorted(used, key=lambda e: -order[id(e)]):
        if any(v in wanted for v in eqn.outvars):
            wanted.update(reads(eqn))
        else:
            gone.append(eqn)
    return gone
