"""Pricing a loop for its partition: what may move, what it costs, what it holds."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rewriter import jax_compat as jc
from rewriter import planes
from rewriter.contraction import Dot, contractions
from rewriter.cost import Model, elements, nbytes
from rewriter.dependence import Dependence
from rewriter.graph import Loop, reads, variant_values
from rewriter.legality import dear, unbatchable
from rewriter.memory import Footprint, footprint, is_materialised
from rewriter.partition import Partition, Prices
from rewriter.prefetch import sliced_rows
from rewriter.recurrence import Reduction

# writes and reads of rows: in place, whatever the size of the array
_MOVES = ("dynamic_", "scatter", "gather", "select_n", "broadcast_in_dim")


def forced_in_order(loop: Loop, model: Model, overhead: float) -> dict[int, str]:
    """Equations that stay in the loop, with the reason."""
    found = {}
    for i, eqn in enumerate(loop.eqns):
        reason = unbatchable(eqn) or dear(eqn, model, overhead)
        if reason is not None:
            found[i] = reason
    return found


def suits_planes(loop: Loop) -> bool:
    """Whether the body works on tiny arrays, better as planes of components."""
    shapes = [
        v.aval.shape
        for e in loop.eqns
        for v in e.outvars
        if hasattr(v.aval, "shape") and v.aval.shape
    ]
    if loop.carries or not any(s[-1] > 1 for s in shapes):
        return False
    if any(s[-1] > planes.WIDEST for s in shapes):
        return False
    return planes.operations(loop.eqns) is not None


def invariant_nodes(dep: Dependence) -> frozenset[int]:
    """Nodes that read nothing that changes: computed once."""
    fixed: set[int] = set()
    for v in dep.order:
        node = dep.nodes[v]
        if node.eqn is None or node.eqn.effects or v in dep.forced or dep.is_core(v):
            continue
        if all(x in dep.made and dep.made[x] in fixed for x in node.reads):
            fixed.add(v)
    return frozenset(fixed)


def prices(
    dep: Dependence,
    model: Model,
    invariant: frozenset[int],
    overhead: float,
    tiny: bool,
) -> Prices:
    """Return the price of every node in the loop and batched, and of what crosses.

    `tiny` says that the batched parts are evaluated in planes.
    """
    loop, m = dep.loop, model.machine
    counters = {c.var for c in loop.counters}
    seeds = {c.var for c in loop.carries} | {v for v, _ in loop.xs} | counters
    variant = variant_values(loop.eqns, seeds)
    summed = _summed(dep, invariant)
    dots = {id(c.eqn) for c in summed.values() if isinstance(c, Dot)}
    replaced = {id(e) for c in summed.values() for e in c.replaced}
    loop_ns, batch_ns = [], []
    for node in dep.nodes:
        if node.eqn is not None:
            cost = 0.0 if node.id in invariant else model.loop(node.eqn)
            loop_ns.append(cost)  # what does not change XLA lifts by itself
            if node.id in invariant:
                batch_ns.append(0.0)
            elif tiny:
                count = planes.operations([node.eqn]) or 0
                batch_ns.append(
                    min(count * m.element_batched * model.weight(node.eqn), cost)
                )
            elif id(node.eqn) in dots:
                batch_ns.append(model.contraction(node.eqn))
            elif id(node.eqn) in replaced:
                batch_ns.append(0.0)
            elif node.eqn.primitive.name in ("slice", "squeeze", "reshape"):
                batch_ns.append(0.0)  # a part of rows that are stored anyway
            elif dep.sequential and not model.is_paying(node.eqn):
                batch_ns.append(cost * model.beside(node.eqn))
            else:
                batch_ns.append(model.batch(node.eqn, variant))
        elif node.reduction is not None:
            loop_price, batch_price = _reduction(node.reduction, summed, model)
            loop_ns.append(loop_price)
            batch_ns.append(batch_price)
        else:
            loop_ns.append(0.0)
            batch_ns.append(0.0)
    fixed = {x for v in invariant for x in dep.nodes[v].defines}
    per_byte = m.byte_stored
    return Prices(
        tuple(loop_ns),
        tuple(batch_ns),
        store=lambda x: 0.0 if x in fixed else nbytes(x) * per_byte,
        read=lambda x: 0.0 if x in counters else nbytes(x) * per_byte * 0.5,
        scan=overhead,
        more=m.step,
    )


def _summed(dep: Dependence, invariant: frozenset[int]) -> dict[Any, Any]:
    """Return the sums that would be contractions if all that may be were batched."""
    free = {v: 0 for v in dep.order if not dep.is_core(v)}
    ys = frozenset(a for _, a in dep.loop.ys if not isinstance(a, jc.Literal))
    return contractions(Partition(dep, 0, {}, free, ys), invariant)


def _reduction(
    reduction: Reduction, summed: dict[Any, Any], model: Model
) -> tuple[float, float]:
    """Return ns per step of accumulating in the loop and of reducing all rows."""
    m, size = model.machine, elements(reduction.carry.var)
    batched = 0.0
    for term in reduction.terms:
        how = None if isinstance(term.atom, jc.Literal) else summed.get(term.atom)
        if how is None:
            batched += size * (m.reduced if size > 1 else m.element_batched)
        elif not isinstance(how, Dot):
            batched += m.row_call + 2.0 * size * m.flop_batch
    return size * m.element * len(reduction.terms), batched


def forked_work(
    part: Partition, priced: Prices, invariant: frozenset[int], model: Model
) -> float:
    """Return ns per step of the batched stages, which XLA splits over the cores.

    Without a dot, library call, draw or contraction the split costs in full.
    """
    eqns = [part.dependence.nodes[v].eqn for v in part.in_batch]
    paying = any(e is not None and model.is_paying(e) for e in eqns)
    if not paying and not contractions(part, invariant):
        return math.inf
    return sum(priced.batch[v] for v in part.in_batch)


def rows_ahead(part: Partition) -> list[Any]:
    """Return the stacked values that residual scans load a step ahead."""
    nodes = part.dependence.nodes
    found: dict[Any, None] = {}
    for stage in range(1, part.scans + 1):
        eqns = [e for e in (nodes[v].eqn for v in part.scan_nodes(stage)) if e]
        made = {x for e in eqns for x in e.outvars}
        read = {v for e in eqns for v in reads(e)} & part.stored - made
        found.update(dict.fromkeys(sliced_rows(eqns, list(read))))
    return list(found)


def moves_work(part: Partition, invariant: frozenset[int]) -> bool:
    """Whether a plan does more than what XLA does by itself."""
    if part.is_map:
        return True
    return any(v not in part.in_scan and v not in invariant for v in part.in_batch)


def plan_footprint(part: Partition, invariant: frozenset[int]) -> tuple[Footprint, int]:
    """Return what a step must hold that the loop did not, and bytes of its ys.

    Rows that an inner loop stacks are streamed, so they do not count as ys here.
    """
    dep = part.dependence
    readers: Counter[Any] = Counter()
    for node in dep.nodes:
        readers.update(node.reads)
    ys = {a for _, a in dep.loop.ys if not isinstance(a, jc.Literal)}
    fixed = {x for v in invariant for x in dep.nodes[v].defines}
    stored = sum(nbytes(x) for x in part.stored - ys - fixed)
    total = Footprint(stored, stored)
    contracted = contractions(part, invariant)
    gone = {id(e) for c in contracted.values() for e in c.replaced}
    largest_out = max((nbytes(x) for x in part.stored | ys), default=0)
    for v in part.in_batch:
        eqn, reduction = dep.nodes[v].eqn, dep.nodes[v].reduction
        if reduction is not None and elements(reduction.carry.var) > 1:
            plain = [
                t
                for t in reduction.terms
                if isinstance(t.atom, jc.Literal) or t.atom not in contracted
            ]
            terms = nbytes(reduction.carry.var) * len(plain)
            total += Footprint(terms, terms)
        if eqn is None or v in invariant or id(eqn) in gone:
            continue
        total += footprint(eqn, part.stored | ys)
        if is_materialised(eqn):
            continue
        shared = sum(
            nbytes(x)
            for x in eqn.outvars
            if readers[x] > 1 and nbytes(x) > largest_out and x not in part.stored
        )
        total += Footprint(shared, shared)
    streamed = {
        x
        for n in dep.nodes
        if n.eqn is not None
        and n.id in part.in_batch
        and n.eqn.primitive.name in ("scan", "while")
        for x in n.defines
    }
    return total, sum(nbytes(a) for a in ys - streamed)


def crossing_bytes(loop: Loop) -> int:
    """Return bytes of the rows that a step reads and of those it stacks."""
    return sum(nbytes(v) for v, _ in loop.xs) + sum(nbytes(a) for _, a in loop.ys)


def saved(before: Loop, after: Loop, model: Model) -> float:
    """Return ns a step of the work on carries that `after` no longer has.

    Each operation waits for the one before it, so the least it takes is its latency.
    """
    left = {c.var for c in after.carries} | {c.var for c in after.counters}
    gone = {c.var for c in before.carries} - left
    if not gone:
        return 0.0
    made = {v for e in after.eqns for v in e.outvars}
    carried = variant_values(before.eqns, gone) - gone
    lost = [
        e
        for e in before.eqns
        if any(v in carried and v not in made for v in e.outvars)
        and not e.primitive.name.startswith(_MOVES)
    ]
    latency = model.machine.latency
    return sum(max(model.loop(e), latency * model.weight(e)) for e in lost)
