"""Branch grouping: rows that take the same branch of a `cond` run together.

What it does: a `cond` or `switch` whose index changes from step to step, but does not
depend on the step before, becomes one call with a batched form: each dear branch runs
on blocks of the rows that take it, cheap ones on all rows.

Why it pays: JAX's rule for a batched `cond` runs every branch on every row, so such a
loop stayed a loop; here no row runs a dear branch that it does not take, and what is in
the branch becomes matrix products.

Legality: no side effects, no `while` (it would run as long as its slowest row), no
operation of another library. A block that is not full repeats a row of the branch, so
nothing runs on values that the loop would have kept from it.

Profitability: whatever share of the rows takes it, every branch must be cheaper on its
own rows in blocks than in the loop, the bookkeeping included.

Numerics: strict.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def f(W, X):
...     def row(x):
...         dear = lambda x: jnp.tanh(W @ jnp.tanh(W @ x))
...         return jax.lax.cond(x[0] > 2, dear, lambda x: x, x)
...     return jax.lax.map(row, X)
>>> report = explain(f)(jnp.ones((128, 128)), jnp.ones((2000, 128)))
>>> report.verdicts[0].outcome, report.after.count("while")
('batched', 1)

References: stream compaction (Blelloch 1990); routing of rows to experts (Shazeer et
al., *Outrageously large neural networks*, 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewriter import jax_compat as jc
from rewriter.cost import Model, nbytes
from rewriter.dependence import dependence_graph
from rewriter.graph import Loop, edited, variant_values
from rewriter.grouping import Grouped
from rewriter.legality import contains, dear, is_foreign, unbatchable
from rewriter.pass_base import Context, LoopPass, Phase, Plan
from rewriter.remarks import Remark, missed, passed
from rewriter.rowwise import rowwise


@dataclass(frozen=True)
class Conds(Plan):
    """The conds of a loop and their batched forms."""

    loop: Loop | None = None
    conds: tuple[tuple[Any, Grouped], ...] = ()


@dataclass(frozen=True)
class Way:
    """Which branches run on their own rows, and what that costs in ns a row."""

    own: tuple[bool, ...]
    fixed: float
    grouping: float
    batched: Sequence[float]

    @property
    def everywhere(self) -> float:
        """What every row costs, whatever branch it takes."""
        pairs = zip(self.batched, self.own, strict=True)
        return self.fixed + sum(ns for ns, is_own in pairs if not is_own)

    @property
    def prices(self) -> list[float]:
        """What a row costs that takes each branch."""
        pairs = zip(self.batched, self.own, strict=True)
        base = self.everywhere
        return [base + (self.grouping + ns if is_own else 0.0) for ns, is_own in pairs]

    @property
    def filling(self) -> float:
        """What one more row in the last block of every branch costs."""
        pairs = zip(self.batched, self.own, strict=True)
        return sum(ns for ns, is_own in pairs if is_own)

    def worst(self, before: Sequence[float]) -> tuple[float, int]:
        """Return the largest loss against the loop, and the branch that has it."""
        losses = [a - b for a, b in zip(self.prices, before, strict=True)]
        return max(losses), losses.index(max(losses))


@dataclass(frozen=True)
class BranchGrouping(LoopPass):
    """The pass."""

    name: ClassVar = "branch-grouping"
    phase: ClassVar = Phase.LATE_ROLES
    numerics: ClassVar = "strict"
    worth_emitting: ClassVar = False  # pays only if the loop is batched
    entering: ClassVar = 5  # batched stages that the bookkeeping is worth
    blocks: ClassVar = (256, 128, 64, 32, 16, 8)  # rows at once

    FOUND = passed(
        "grouped",
        "{count} cond(s) run a branch on the rows that take it, {block} at a time",
    )
    NONE = missed("none", "no step takes one of several dear branches")
    HELD = missed("held", "a branch {reason}, so it runs row by row")
    COSTLY = missed(
        "unprofitable",
        "a branch costs {before} ns in the loop and {after} ns on its rows in a block",
    )

    def match(self, loop: Loop, ctx: Context) -> Conds | Remark:
        """Find dear conds that do not depend on the step before."""
        where = loop.location
        if not isinstance(loop.length, int):
            return self.NONE.at(where)
        overhead = ctx.model.overhead(loop.eqns)
        conds = [
            e
            for e in loop.eqns
            if e.primitive.name == "cond" and dear(e, ctx.model, overhead)
        ]
        if not conds:
            return self.NONE.at(where)
        dep = dependence_graph(loop, ctx.options.numerics, {})
        core = {id(n.eqn) for n in dep.nodes if dep.is_core(n.id)}
        seeds = {v for v, _ in loop.xs} | {c.var for c in loop.counters}
        variant = variant_values(loop.eqns, seeds | {c.var for c in loop.carries})
        found, reason = [], None
        for eqn in conds:
            index = eqn.invars[0]
            if id(eqn) in core or isinstance(index, jc.Literal) or index not in variant:
                continue
            form = self._form(eqn, variant, loop, ctx.model, overhead)
            if isinstance(form, Grouped):
                found.append((eqn, form))
            else:
                reason = form
        if not found:
            return reason or self.NONE.at(where)
        block = max(f.block for _, f in found)
        remark = self.FOUND.at(where, count=len(found), block=block)
        return Conds(remark, "", loop, tuple(found))

    def rewrite(self, plan: Conds) -> Loop:
        """Put calls with a batched form in place of the conds."""
        loop = plan.loop
        assert loop is not None
        edits: dict[int, list[Any]] = {}
        mapping: dict[Any, Any] = {}
        for eqn, form in plan.conds:
            inputs = [jc.fresh_var(v.aval) for v in eqn.invars]
            outs = [jc.fresh_var(v.aval) for v in eqn.outvars]
            alone = eqn.replace(invars=inputs, outvars=outs)
            body = jc.close_jaxpr(jc.build_jaxpr(inputs, outs, [alone], loop.like))
            edits[id(eqn)], made = jc.traced_equations(
                lambda *values, body=body, form=form: rowwise(body, form, values),
                eqn.invars,
                eqn,
            )
            mapping.update(zip(eqn.outvars, made, strict=True))
        return edited(loop, edits, mapping)

    def _form(
        self, eqn: Any, variant: set[Any], loop: Loop, model: Model, overhead: float
    ) -> Grouped | Remark:
        """Return the batched form of a cond, or why it has none."""
        branches = [jc.open_jaxpr(b) for b in eqn.params["branches"]]
        reason = _held(eqn, branches, model, overhead)
        if reason:
            return self.HELD.at(loop.location, reason=reason)
        mapped = [not isinstance(v, jc.Literal) and v in variant for v in eqn.invars]
        machine = model.machine
        moved = sum(nbytes(v) for v, m in zip(eqn.invars, mapped, strict=True) if m)
        written = sum(nbytes(v) for v in eqn.outvars)
        fixed = machine.row_call + written * machine.byte_stored
        grouping = machine.kernel + (moved + written) * machine.byte_copied
        rows = self.blocks[0]
        batched = [model.in_block(b, mapped[1:], rows) for b in branches]
        before = [model.body(b) + overhead for b in branches]
        ways = [Way(own, fixed, grouping, batched) for own in _choices(batched)]
        way = min(ways, key=lambda w: w.worst(before)[0])
        loss, worst = way.worst(before)
        spare = (
            loop.length * (overhead - way.everywhere) - self.entering * machine.stage
        )
        size = next((b for b in self.blocks if b * way.filling <= spare), 0)
        if loss > 0 or not size:
            return self.COSTLY.at(
                loop.location,
                before=round(before[worst]),
                after=round(way.prices[worst]),
            )
        return Grouped(
            mapped=tuple(mapped),
            own_rows=way.own,
            block=size,
            row_ns=sum(way.prices) / len(branches),
            row_bytes=written + 16,
        )


def _choices(batched: Sequence[float]) -> list[tuple[bool, ...]]:
    """Return which branches may run on their own rows: the dearest ones, or none."""
    return [tuple(ns > least for ns in batched) for least in (-1.0, *batched)]


def _held(eqn: Any, branches: list[Any], model: Model, overhead: float) -> str:
    """Return what keeps a cond's branches from being batched, or nothing."""
    reason = unbatchable(eqn)
    if reason:
        return f"can not be batched ({reason})"
    if any(not jc.is_array_aval(v.aval) or jc.is_extended(v.aval) for v in eqn.outvars):
        return "makes keys"
    for inner in (e for b in branches for e in b.eqns):
        if is_foreign(inner):
            return "holds an operation of another library"
        if contains(inner, "while"):
            return "holds a while loop"
        if contains(inner, "pure_callback"):
            return "holds a callback"
        if dear(inner, model, overhead):
            return "holds another cond with a dear branch"
    return ""
