"""Residuals: rows that a forward loop stores for a backward loop are made again there.

What it does: a large stacked output that only another loop of the same trip reads, row
by row, and that elementwise work makes from a step's small inputs (`x - row`, stored by
differentiation for the backward loop), is computed in the step that reads it.

Why it pays: the array is never stored; gradients of pairwise losses keep (n, d) instead
of (n, n, d), and the forward loop is free to become a matrix product.

Legality: no carry but a counter feeds the rows. Only above 4 MB, only where a row's
inputs are less than half of it, and not for dear functions.

Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def energy(X):
...     rows = jax.lax.map(lambda p: jnp.exp(-jnp.sum((X - p) ** 2, axis=1)), X)
...     return jnp.sum(rows)
>>> report = explain(jax.grad(energy))(jnp.ones((500, 40)))
>>> "residual-recomputation/made-again" in [r.code for r in report.remarks]
True

References: rematerialisation (Chen et al., *Training deep nets with sublinear memory
cost*, 2016); `jax.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rewriter import jax_compat as jc
from rewriter.cost import nbytes
from rewriter.pass_base import Context, Phase, Plan, ProgramPass
from rewriter.remarks import Location, Remark, missed, passed
from rewriter.report import format_bytes
from rewriter.residuals import Slice, reading, slice_of


@dataclass(frozen=True)
class Again(Plan):
    """A loop, the rows it reads by operand, and what makes them."""

    eqn: Any = None
    closed: Any = None
    found: Mapping[int, tuple[Any, Slice]] = field(default_factory=dict)


@dataclass(frozen=True)
class ResidualRecomputation(ProgramPass):
    """The pass."""

    name: ClassVar = "residual-recomputation"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "strict"
    min_bytes: int = 4 << 20
    most_inputs: float = 0.5  # of the bytes of a row
    most_work: float = 6.0  # cheap operations per element

    FOUND = passed(
        "made-again",
        "{bytes_text} of rows that an earlier loop would store are made in the step "
        "that reads them",
    )
    NONE = missed("none", "no large rows of another loop could be made again")

    def match(self, eqn: Any, closed: Any, ctx: Context) -> Again | Remark:
        """Find the rows of other loops that are cheaper to make again."""
        where = Location(*jc.location(eqn))
        p = jc.scan_params(eqn)
        eqns = jc.open_jaxpr(closed).eqns
        made = {v: e for e in eqns if e.primitive.name == "scan" for v in e.outvars}
        found = {}
        for k in range(p.num_consts + p.num_carry, len(eqn.invars)):
            atom = eqn.invars[k]
            source = None if isinstance(atom, jc.Literal) else made.get(atom)
            if source is None or nbytes(atom) < self.min_bytes:
                continue
            if jc.scan_params(source).length != p.length:
                continue
            if not self._is_read_by_rows(atom, closed):
                continue
            part = slice_of(source, list(source.outvars).index(atom))
            if part is not None and self._pays(part, ctx):
                found[k] = source, part
        if not found:
            return self.NONE.at(where)
        total = sum(nbytes(eqn.invars[k]) for k in found)
        remark = self.FOUND.at(where, bytes=total, bytes_text=format_bytes(total))
        return Again(remark, "", eqn, closed, found)

    def _is_read_by_rows(self, atom: Any, closed: Any) -> bool:
        """Whether only loops read an array, one row a step."""
        jaxpr = jc.open_jaxpr(closed)
        if any(v is atom for v in jaxpr.outvars):
            return False
        for eqn in jaxpr.eqns:
            at = [k for k, v in enumerate(eqn.invars) if v is atom]
            if not at:
                continue
            if eqn.primitive.name != "scan":
                return False
            p = jc.scan_params(eqn)
            if min(at) < p.num_consts + p.num_carry:
                return False
        return True

    def _pays(self, part: Slice, ctx: Context) -> bool:
        row = nbytes(part.out)
        inputs = sum(nbytes(v) for v in part.rows)
        work = sum(ctx.model.weight(e) * nbytes(e.outvars[0]) for e in part.eqns)
        return inputs <= self.most_inputs * row and work <= self.most_work * row

    def rewrite(self, plan: Again) -> Any:
        """Return the program in which the loop makes the rows itself."""
        jaxpr = jc.open_jaxpr(plan.closed)
        eqns: list[Any] = []
        for eqn in jaxpr.eqns:
            eqns += reading(eqn, plan.found) if eqn is plan.eqn else [eqn]
        return jc.dce(jc.replace_eqns(plan.closed, eqns, jaxpr.outvars))
