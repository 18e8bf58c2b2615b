"""Consumer fusion: what reads a stacked output row by row joins the loop that makes it.

What it does: `argmin(rows, axis=1)`, `rows.max()`, `mean(rows)`, `rows @ w` after a
loop that stacks `rows` are computed in the step, row by row, and reductions over the
rows accumulate. The other passes then see what the rows are for.

Why it pays: the stacked array is never stored, so nothing that large is read again,
and a distance that is only searched needs no matrix of distances.

Legality: no effects; the loop carries nothing but counters; all readers of the array
work row by row or reduce over the rows; what is stored after is at most a quarter. Only
above 8 MB; sums of whole float rows, in order less accurate than at once, only over the
budget.

Numerics: reassociate.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def nearest(X, Y):
...     rows = jax.lax.map(lambda x: jnp.sum((Y - x) ** 2, axis=1), X)
...     return jnp.argmin(rows, axis=1), rows.max()
>>> report = explain(nearest)(jnp.ones((5000, 40)), jnp.ones((1000, 40)))
>>> "consumer-fusion/in-step" in [r.code for r in report.remarks]
True

References: loop fusion with contraction (Allen and Kennedy, ch. 6); deforestation
(Wadler, 1990).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rewriter import jax_compat as jc
from rewriter.absorb import in_order, with_consumers
from rewriter.consumers import Consumers, consumers, parted
from rewriter.cost import nbytes
from rewriter.graph import renamed_atom
from rewriter.inline import inline
from rewriter.pass_base import Context, Phase, Plan, ProgramPass
from rewriter.patterns import literal
from rewriter.remarks import Location, Remark, missed, passed
from rewriter.report import format_bytes


@dataclass(frozen=True)
class Fused(Plan):
    """A loop, the program around it with calls inlined, and its consumers."""

    eqn: Any = None
    closed: Any = None
    eqns: tuple[Any, ...] = ()
    outvars: tuple[Any, ...] = ()
    consts: tuple[tuple[Any, Any], ...] = ()
    found: Consumers | None = None


@dataclass(frozen=True)
class ConsumerFusion(ProgramPass):
    """The pass."""

    name: ClassVar = "consumer-fusion"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "reassociate"
    min_bytes: int = 8 << 20
    most_kept: float = 0.25  # of the bytes that the loop stacks

    FOUND = passed(
        "in-step",
        "{bytes_text} of rows are used in the step that makes them ({readers})",
    )
    NONE = missed("none", "nothing that reads large rows could join the loop")

    def match(self, eqn: Any, closed: Any, ctx: Context) -> Fused | Remark:
        """Find consumers of what a loop stacks."""
        none = self.NONE.at(Location(*jc.location(eqn)))
        p = jc.scan_params(eqn)
        stacks = [
            v for v in eqn.outvars[p.num_carry :] if not isinstance(v, jc.DropVar)
        ]
        if not isinstance(p.length, int) or p.length < 2 or not _is_map(eqn):
            return none
        if any(jc.is_extended(v.aval) or jc.is_sharded(v.aval) for v in stacks):
            return none
        before = sum(map(nbytes, stacks))
        if before < self.min_bytes:
            return none
        jaxpr = jc.open_jaxpr(closed)
        if jaxpr.effects:
            return none  # whose order the new order might change
        eqns, subst, consts = inline(jaxpr.eqns, inline_custom=True)
        outvars = [
            v if isinstance(v, jc.Literal) else subst.get(v, v) for v in jaxpr.outvars
        ]
        if not any(e.outvars[:1] == eqn.outvars[:1] for e in eqns):
            return none
        eqns = parted(stacks, eqns, outvars)
        sums = before > ctx.options.memory_budget
        found = consumers(stacks, eqns, outvars, sums)
        if found is None:
            return none
        kept = found.kept + sum(nbytes(e.outvars[0]) for e in found.folds)
        if kept > self.most_kept * before:
            return none
        readers = list(dict.fromkeys(e.primitive.name for e in found.eqns))
        remark = self.FOUND.at(
            none.location,
            bytes=before,
            bytes_text=format_bytes(before - kept),
            readers=", ".join(readers[-4:]),
        )
        return Fused(
            remark, "", eqn, closed, tuple(eqns), tuple(outvars), tuple(consts), found
        )

    def rewrite(self, plan: Fused) -> Any:
        """Return the program with the consumers in the loop."""
        found = plan.found
        assert found is not None
        loop = next(e for e in plan.eqns if e.outvars[:1] == plan.eqn.outvars[:1])
        new, values = with_consumers(loop, found)
        names = [*found.exits, *(e.outvars[0] for e in found.folds)]
        mapping = dict(zip(names, values, strict=True))
        gone = {id(e) for e in found.eqns}
        out: list[Any] = []
        for eqn in plan.eqns:
            if eqn is loop:
                out += new
            elif id(eqn) not in gone:
                ins = [renamed_atom(v, mapping) for v in eqn.invars]
                out.append(eqn.replace(invars=ins))
        ends = [renamed_atom(v, mapping) for v in plan.outvars]
        out = in_order(out)
        variables = [v for v, _ in plan.consts]
        constants = [c for _, c in plan.consts]
        return jc.dce(jc.replace_eqns(plan.closed, out, ends, variables, constants))


def _is_map(eqn: Any) -> bool:
    """Whether a scan carries nothing but counters."""
    p = jc.scan_params(eqn)
    body = jc.open_jaxpr(p.body)
    if p.body.consts if jc.is_closed(p.body) else ():
        return False
    eqns, subst, _ = inline(body.eqns)
    if any(e.effects for e in eqns):
        return False
    made = {v: e for e in eqns for v in e.outvars}
    for k in range(p.num_carry):
        var = body.invars[p.num_consts + k]
        end = body.outvars[k]
        end = end if isinstance(end, jc.Literal) else subst.get(end, end)
        step = None if isinstance(end, jc.Literal) else made.get(end)
        if step is None or step.primitive.name != "add" or var not in step.invars:
            return False
        if not any(literal(v) is not None for v in step.invars):
            return False
    return True
