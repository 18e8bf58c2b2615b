"""Loop distribution: one loop into batched parts and the smallest residual scans.

What it does: builds the dependence graph of the body, cuts it where least has to be
stored, and runs everything outside of the recurrences for all steps at once: before
the residual scan (hoisted), after it (sunk), or between two. A loop without a
recurrence disappears, or becomes a loop over blocks that fit in cache and budget. A
carry that only accumulates becomes one reduction, a sum of products one contraction.

Why it pays: a step's matrix-vector products become one matrix product, its library
calls one batched call, and the loop's overhead goes.

Legality: a strongly connected component with a back edge stays in order, and so do
side effects, references, rbg keys, `custom_vmap`, and callbacks that say so. Batching
is JAX's own (`vmap`). A `cond` with a dear branch and a `while` stay in the loop.

Numerics: strict; reductions of floats are reordered only from `reassociate` on.

Before and after (run as a test):

>>> import jax, jax.numpy as jnp
>>> from rewriter import explain
>>> def rows(W, X):
...     return jax.lax.map(lambda x: jnp.tanh(W @ x), X)
>>> report = explain(rows)(jnp.ones((64, 64)), jnp.ones((100, 64)))
>>> print(report.before.outline())
scan 100:
  dot_general tanh
>>> print(report.after.outline())
dot_general tanh

References: Allen and Kennedy, *Automatic translation of Fortran programs to vector
form*, TOPLAS 1987; LLVM's LoopDistribute; partition by minimum cut: ALGORITHMS.md, 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rewriter import jax_compat as jc
from rewriter.blocks import emit_partition
from rewriter.cost import nbytes
from rewriter.dependence import Dependence, dependence_graph
from rewriter.graph import Loop
from rewriter.memory import Footprint
from rewriter.partition import Partition, partition
from rewriter.pass_base import Context, Emission, LoopPass, Phase, Plan
from rewriter.pricing import (
    crossing_bytes,
    forced_in_order,
    forked_work,
    invariant_nodes,
    moves_work,
    plan_footprint,
    prices,
    rows_ahead,
    suits_planes,
)
from rewriter.remarks import Location, Remark, missed, passed
from rewriter.report import format_bytes
from rewriter.schedule import Schedule, choose


@dataclass(frozen=True)
class Distribution(Plan):
    """A partition with its schedule."""

    part: Partition | None = None
    schedule: Schedule | None = None
    invariant: frozenset[int] = frozenset()
    in_planes: bool = False


@dataclass(frozen=True)
class LoopDistribution(LoopPass):
    """The pass; options are fields."""

    name: ClassVar = "loop-distribution"
    phase: ClassVar = Phase.LATE
    numerics: ClassVar = "strict"
    min_gain: float = 1.15  # estimated time before over after
    min_gain_scan: float = 1.1  # the same where a scan stays and what it stacks counts

    BATCHED = passed(
        "batched",
        "no step depends on another: all {steps} run at once "
        "({bytes_text}; about {before} -> {after} ns a step)",
    )
    BLOCKED = passed(
        "blocked",
        "no step depends on another: batched in blocks of {block} "
        "({bytes_text} at once; about {before} -> {after} ns a step)",
    )
    DISTRIBUTED = passed(
        "distributed",
        "{moved} of {total} operations leave the loop ({where_to}); {residual} "
        "{carries} ({bytes_text} stacked; about {before} -> {after} ns a step)",
    )
    SECTIONED = passed(
        "sectioned",
        "{moved} of {total} operations leave the loop in sections of {block} steps "
        "({where_to}); {residual} {carries} ({bytes_text} at once; about {before} -> "
        "{after} ns a step)",
    )
    SHORT = missed("trip-count", "runs {steps} time(s): there is nothing to batch")
    SYMBOLIC = missed(
        "symbolic-trip-count",
        "runs {steps} times, a symbolic dimension: block sizes and costs are not known",
        "export with concrete shapes",
    )
    CHUNKED = missed(
        "batch-size",
        "runs in the blocks that the program asks for (lax.map over a vmap)",
        "leave out batch_size to let memory_budget decide",
    )
    OPAQUE = missed(
        "opaque-recurrence",
        "each step needs the one before: {carries} at {where} "
        "depends on its own previous value through {through}, and nothing else in the "
        "body is worth moving out",
        "if the recurrence is linear or only accumulates, write it as a sum, cumsum "
        "or associative_scan",
    )
    IN_ORDER = missed(
        "in-order",
        "{reason}, at {where}; the rest is not worth moving",
        "move that operation out of the loop",
    )
    UNPROFITABLE = missed(
        "unprofitable",
        "legal, but not faster here: about {before} ns a step as a "
        "loop, {after} ns batched",
    )
    MEMORY = missed(
        "memory-budget",
        "one step holds {bytes_text}, over the budget of {budget}",
        "raise memory_budget",
    )

    def match(self, loop: Loop, ctx: Context) -> Distribution | Remark:
        """Partition the loop, schedule it, and compare the estimates."""
        where = loop.location
        if not isinstance(loop.length, int):
            return self.SYMBOLIC.at(where, steps=str(loop.length))
        if loop.length <= 1:
            return self.SHORT.at(where, steps=loop.length)
        if jc.is_chunked_map(loop.eqn):
            return self.CHUNKED.at(where, steps=loop.length)
        model = ctx.model
        overhead = model.overhead(loop.eqns)
        tiny = suits_planes(loop)
        forced = {} if tiny else forced_in_order(loop, model, overhead)
        dep = dependence_graph(loop, ctx.options.numerics, forced)
        invariant = invariant_nodes(dep)
        priced = prices(dep, model, invariant, overhead, tiny)
        part = partition(dep, priced)
        tiny = tiny and part.is_map
        before = part.loop_cost + loop.saved
        forked = 0.0 if ctx.loops else forked_work(part, priced, invariant, model)
        after = part.cost + model.stages(part.scans + 1, loop.length, forked)
        after += sum(model.loading(nbytes(v)) for v in rows_ahead(part))
        size, kept = (Footprint(), 0) if tiny else plan_footprint(part, invariant)
        crossing = None if part.is_map else crossing_bytes(loop)
        schedule = choose(
            loop.length,
            size,
            kept,
            model.machine,
            ctx.options.memory_budget,
            crossing,
        )
        min_gain = self.min_gain
        if crossing is not None:  # what it stacks it stacks either way
            min_gain = self.min_gain_scan
            stacks = model.stacking([a for _, a in loop.ys], loop.length)
            before, after = before + stacks, after + stacks
            after += 0.0 if schedule is None else schedule.cost
        idle = part.is_map and not dep.nodes  # it only copies
        if not idle and (before < after * min_gain or not moves_work(part, invariant)):
            return self._reason(dep, before, after)
        if schedule is None:
            return self.MEMORY.at(
                where,
                bytes=size.held,
                bytes_text=format_bytes(size.held),
                budget=format_bytes(ctx.options.memory_budget),
            )
        return replace(
            self._plan(part, schedule, invariant, before, after), in_planes=tiny
        )

    def rewrite(self, plan: Distribution) -> Emission:
        """Return what emits the partition."""
        part, schedule = plan.part, plan.schedule
        assert part is not None
        assert schedule is not None
        return lambda args: emit_partition(
            part, schedule, plan.invariant, plan.in_planes, args
        )

    # -------------------------------------------------------- words

    def _plan(
        self,
        part: Partition,
        schedule: Schedule,
        invariant: frozenset[int],
        before: float,
        after: float,
    ) -> Distribution:
        loop, dep = part.dependence.loop, part.dependence
        block = schedule.block
        code, outcome = {
            (True, True): (self.BATCHED, "batched"),
            (True, False): (self.BLOCKED, "blocked"),
            (False, True): (self.DISTRIBUTED, "distributed"),
            (False, False): (self.SECTIONED, "sectioned"),
        }[part.is_map, block is None]
        names = [loop.name(n.carry.var) for n in dep.recurrences if n.carry is not None]
        moved = sum(1 for v in part.in_batch if v not in part.in_scan)
        remark = code.at(
            loop.location,
            steps=loop.length,
            block=block or loop.length,
            bytes=schedule.peak_bytes,
            bytes_text=format_bytes(schedule.peak_bytes),
            before=round(before),
            after=round(after),
            moved=moved,
            total=len(dep.nodes),
            scans=part.scans,
            where_to=_where_to(part, invariant),
            residual="a residual scan keeps"
            if part.scans == 1
            else (f"{part.scans} residual scans keep"),
            carries=_listed(names) or "the rest",
        )
        return Distribution(remark, outcome, part, schedule, invariant)

    def _reason(self, dep: Dependence, before: float, after: float) -> Remark:
        loop = dep.loop
        core = [n for n in dep.nodes if dep.is_core(n.id)]
        if not core:
            return self.UNPROFITABLE.at(
                loop.location, before=round(before), after=round(after)
            )
        carries = [n for n in core if n.carry is not None]
        if not carries:
            node, reason = next(
                (n, dep.forced[n.id]) for n in core if n.id in dep.forced
            )
            return self.IN_ORDER.at(
                loop.location, reason=reason, where=Location(*jc.location(node.eqn))
            )
        label = dep.component[carries[0].id]
        through = [
            n.eqn for n in core if n.eqn is not None and dep.component[n.id] == label
        ]
        line = Location(*jc.location(through[-1])) if through else loop.location
        return self.OPAQUE.at(
            loop.location,
            where=line,
            carries=_listed(
                [loop.name(n.carry.var) for n in carries if n.carry is not None]
            ),
            through=_listed([e.primitive.name for e in through]) or "a swap",
        )


def _listed(names: list[str], most: int = 4) -> str:
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


_UNSAID = frozenset(
    {"broadcast_in_dim", "reshape", "squeeze", "slice", "convert_element_type"}
)


def _where_to(part: Partition, invariant: frozenset[int]) -> str:
    """Say which operations run before, between and after the residual scans."""
    said = []
    for stage in range(part.scans + 1):
        eqns = [
            part.dependence.nodes[v].eqn
            for v in part.batch_nodes(stage)
            if v not in invariant and v not in part.in_scan
        ]
        names = [e.primitive.name for e in eqns if e is not None]
        names = [n for n in names if n not in _UNSAID]
        if names:
            place = (
                "before"
                if stage == 0
                else ("after" if stage == part.scans else "between")
            )
            said.append(f"{place}: {_listed(names)}")
    return "; ".join(said) or "sums"
