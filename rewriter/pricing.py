"""Pricing a loop for its partition: what may move, what it costs, what it holds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rewriter import jax_compat as jc
from rewriter import planes
from rewriter.contraction import contractions
from rewriter.cost import Model, elements, nbytes
from rewriter.dependence import Dependence
from rewriter.graph import Loop, variant_values
from rewriter.legality import dear, unbatchable
from rewriter.memory import Footprint, footprint, is_materialised
from rewriter.partition import Partition, Prices


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
    summed = _summed_dots(dep)
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
            elif dep.sequential and not model.is_paying(node.eqn):
                batch_ns.append(cost)
            elif node.id in summed:
                batch_ns.append(model.contraction(node.eqn))
            else:
                batch_ns.append(model.batch(node.eqn, variant))
        elif node.reduction is not None:
            size = elements(node.reduction.carry.var) * len(node.reduction.terms)
            loop_ns.append(size * m.element)
            batch_ns.append(size * m.element_batched)
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


def _summed_dots(dep: Dependence) -> set[int]:
    """Return the dots whose results are only summed: one contraction does them all."""
    readers: Counter[int] = Counter(p for ps in dep.predecessors for p in ps)
    found: set[int] = set()
    for node in dep.nodes:
        if node.reduction is None or node.reduction.op.name != "sum":
            continue
        for v in dep.predecessors[node.id]:
            eqn = dep.nodes[v].eqn
            if (
                eqn is not None
                and eqn.primitive.name == "transpose"
                and readers[v] == 1
            ):
                v = next(iter(dep.predecessors[v]), v)
                eqn = dep.nodes[v].eqn
            if (
                eqn is not None
                and eqn.primitive.name == "dot_general"
                and readers[v] == 1
            ):
                found.add(v)
    return found


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
