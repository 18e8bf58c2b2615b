"""Partition of a loop body by minimum cut: what leaves the loop (ALGORITHMS.md, 1).

What crosses from one part to another is stacked over the trip, so which equations
leave the loop is a choice with a price; recomputing a cheap equation on both sides
may beat storing it. Residual scans are numbered 1..L; batched stage k runs after
scan k (stage 0 before all of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewriter import jax_compat as jc
from rewriter.dependence import Dependence

INFINITE = 10**9
SPLIT_MIN = 200.0  # ns per step that an acyclic node must gain to open a new scan
MAX_SCANS = 4


@dataclass(frozen=True)
class Prices:
    """Per-step costs in ns: of a node in the loop, batched; of storing a variable."""

    loop: tuple[float, ...]
    batch: tuple[float, ...]
    store: Callable[[Any], float]  # write and read back
    read: Callable[[Any], float]  # read what is already in memory
    scan: float  # the loop itself, per step
    more: float = 0.0  # every residual scan after the first, per step


@dataclass(frozen=True)
class Partition:
    """Where every node is computed: in scans 1..`scans`, in batched stages 0..`scans`.

    A node may be in both (recomputed). `stored` are variables that cross.
    """

    dependence: Dependence
    scans: int
    in_scan: dict[int, frozenset[int]]
    in_batch: dict[int, int]
    stored: frozenset[Any] = frozenset()
    cost: float = 0.0  # ns per step
    loop_cost: float = 0.0  # ns per step of the loop as it is

    def scan_nodes(self, level: int) -> list[int]:
        """Return the nodes of residual scan `level`, in order."""
        return [
            v
            for v in self.dependence.order
            if level in self.in_scan.get(v, frozenset())
        ]

    def batch_nodes(self, stage: int) -> list[int]:
        """Return the nodes of batched stage `stage`, in order."""
        return [v for v in self.dependence.order if self.in_batch.get(v) == stage]

    @property
    def is_map(self) -> bool:
        """Whether no residual scan is left."""
        return self.scans == 0


class _Network:
    """An s-t network solved by SciPy's Dinic."""

    def __init__(self) -> None:
        self._ids: dict[Any, int] = {"S": 0, "T": 1}
        self._capacity: dict[tuple[int, int], int] = {}

    def edge(self, a: Any, b: Any, capacity: float) -> None:
        """Add a directed edge; the smaller of two parallel capacities counts."""
        key = (self._id(a), self._id(b))
        amount = min(INFINITE, round(capacity * 16))
        self._capacity[key] = max(self._capacity.get(key, 0), amount)

    def _id(self, name: Any) -> int:
        return self._ids.setdefault(name, len(self._ids))

    def source_side(self) -> Callable[[Any], bool]:
        """Return whether a name is on the side of S in a minimum cut."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        n = len(self._ids)
        reachable = np.zeros(n, bool)
        reachable[0] = True
        if self._capacity:
            rows, cols = zip(*self._capacity, strict=True)
            data = np.fromiter(self._capacity.values(), np.int32)
            graph = csr_matrix((data, (rows, cols)), shape=(n, n))
            flow = maximum_flow(graph, 0, 1, method="dinic").flow
            rest = graph - flow
            rest.data[rest.data < 0] = 0
            rest.eliminate_zeros()
            seen = breadth_first_order(rest, 0, return_predecessors=False)
            reachable[seen] = True
        ids = self._ids
        return lambda name: bool(reachable[ids[name]]) if name in ids else False


@dataclass
class _Builder:
    dep: Dependence
    prices: Prices
    levels: int
    core: dict[int, int] = field(default_factory=dict)
    in_scan: dict[int, set[int]] = field(default_factory=dict)
    in_batch: dict[int, int] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)

    def gain(self, v: int) -> float:
        return max(0.0, self.prices.loop[v] - self.prices.batch[v])

    def store(self, v: int) -> float:
        return sum(
            self.prices.store(x)
            for x in self.dep.nodes[v].defines
            if not isinstance(x, jc.DropVar)
        )


def labels(dep: Dependence, prices: Prices, cap: int) -> dict[int, int]:
    """Label nodes: odd 2k-1 for residual scan k, even for what may be batched."""
    by_component: dict[int, int] = {}
    gains: dict[int, float] = {}
    for v in dep.order:
        gain = max(0.0, prices.loop[v] - prices.batch[v])
        gains[dep.component[v]] = gains.get(dep.component[v], 0.0) + gain
    result: dict[int, int] = {}
    for v in dep.order:
        c = dep.component[v]
        low = max(
            (
                by_component.get(dep.component[p], 0)
                for p in dep.predecessors[v]
                if dep.component[p] != c
            ),
            default=0,
        )
        if c in dep.sequential:
            low = low if low % 2 else low + 1
        elif gains[c] >= SPLIT_MIN and low % 2 and low < 2 * cap - 1:
            low += 1
        by_component[c] = max(by_component.get(c, 0), low)
    for v in dep.order:
        result[v] = by_component[dep.component[v]]
    return result


def _reach(starts: Iterable[int], edges: list[list[int]]) -> set[int]:
    seen: set[int] = set()
    todo = list(starts)
    while todo:
        for w in edges[todo.pop()]:
            if w not in seen:
                seen.add(w)
                todo.append(w)
    return seen


def partition(dep: Dependence, prices: Prices) -> Partition:
    """Return the cheapest partition found over the number of residual scans."""
    loop_cost = sum(prices.loop) + prices.scan
    if not dep.sequential:
        everything = {v: 0 for v in dep.order}
        return evaluate(Partition(dep, 0, {}, everything), prices, loop_cost)
    wanted = max((x + 1) // 2 for x in labels(dep, prices, MAX_SCANS).values())
    found = [
        evaluate(_solve(dep, prices, cap), prices, loop_cost)
        for cap in range(1, max(1, min(wanted, MAX_SCANS)) + 1)
    ]
    return min(found, key=lambda p: (p.cost, p.scans))


def _solve(dep: Dependence, prices: Prices, cap: int) -> Partition:
    label = labels(dep, prices, cap)
    levels = max((label[v] + 1) // 2 for v in dep.order if dep.is_core(v))
    succ: list[list[int]] = [[] for _ in dep.nodes]
    pred = [list(p) for p in dep.predecessors]
    for v, ps in enumerate(dep.predecessors):
        for p in ps:
            succ[p].append(v)
    b = _Builder(dep, prices, levels)
    for k in range(1, levels + 1):
        seeds = [v for v in dep.order if dep.is_core(v) and (label[v] + 1) // 2 == k]
        between = _reach(seeds, succ) & _reach(seeds, pred)
        for v in (*seeds, *between):
            b.core.setdefault(v, k)
    for v, k in b.core.items():
        b.in_scan[v] = {k}
    for k in range(1, levels + 1):
        _pre_cut(b, k, pred)
    _post_cut(b, pred)
    return Partition(
        dep, levels, {v: frozenset(s) for v, s in b.in_scan.items()}, dict(b.in_batch)
    )


def _pre_cut(b: _Builder, k: int, pred: list[list[int]]) -> None:
    """Decide what is batched before scan k and what is recomputed inside it."""
    core = [v for v, level in b.core.items() if level == k]
    ancestors = _reach(core, pred) - set(b.core)
    on_source = _pre_network(b, k, pred, core, ancestors).source_side()
    batched: set[int] = set()
    for v in ancestors - b.stored:
        if not on_source(("i", v)):
            b.in_scan.setdefault(v, set()).add(k)
        elif not on_source(("o", v)):
            b.stored.add(v)
            batched.add(v)
    batched |= {v for v in b.stored if v in ancestors}
    for v in _reach(batched, pred) | batched:
        if v not in b.core and v not in b.in_batch:
            b.in_batch[v] = k - 1


def _pre_network(
    b: _Builder, k: int, pred: list[list[int]], core: list[int], ancestors: set[int]
) -> _Network:
    net = _Network()
    for v in ancestors:
        if v in b.stored:
            net.edge("S", ("o", v), b.store(v) * 0.5)
            continue
        net.edge("S", ("i", v), INFINITE if b.in_scan.get(v) else b.gain(v))
        net.edge(("i", v), ("o", v), b.store(v))
        for p in pred[v]:
            if p in ancestors or b.core.get(p, k) < k:
                net.edge(("o", p), ("i", v), INFINITE)
            if p not in ancestors and b.core.get(p, k) < k:
                net.edge("S", ("o", p), b.store(p) * 0.5)
        for x in b.dep.nodes[v].reads:
            if x not in b.dep.made:
                net.edge("S", ("x", id(x)), b.prices.read(x))
                net.edge(("x", id(x)), ("i", v), INFINITE)
    for v in core:
        for p in pred[v]:
            if p in ancestors:
                net.edge(("o", p), "T", INFINITE)
    return net


def _post_cut(b: _Builder, pred: list[list[int]]) -> None:
    """Decide what follows the last scan it depends on, and what stays inside it."""
    dep = b.dep
    ys = {
        dep.made[a]
        for _, a in dep.loop.ys
        if not isinstance(a, jc.Literal) and a in dep.made
    }
    rest = {v for v in dep.order if v not in b.in_scan and v not in b.in_batch}
    level: dict[int, int] = {}  # the earliest scan that could compute a node
    for v in dep.order:
        if v in rest:
            level[v] = max((_available(b, level, p) for p in pred[v]), default=0)
    net = _Network()
    for v in rest:
        if level[v] == 0:
            b.in_batch[v] = 0
            continue
        net.edge(("i", v), "T", b.gain(v))
        net.edge(("i", v), ("o", v), 0 if v in ys else b.store(v))
        if v in ys:
            net.edge(("o", v), "T", INFINITE)
        for p in pred[v]:
            if p in b.core or (p in b.in_scan and p not in b.in_batch):
                net.edge("S", ("i", p), INFINITE)
                net.edge(("i", p), ("o", p), 0 if p in ys else b.store(p))
                net.edge(("o", p), ("i", v), INFINITE)
            elif p in rest and level[p]:
                net.edge(("o", p), ("i", v), INFINITE)
                net.edge(("i", v), ("i", p), INFINITE)
    on_source = net.source_side()
    for v in dep.order:
        if v not in rest or v in b.in_batch:
            continue
        if on_source(("i", v)):
            b.in_scan[v] = {level[v]}
        else:
            b.in_batch[v] = b.levels


def _available(b: _Builder, level: dict[int, int], p: int) -> int:
    """Return the first scan in which the value of `p` can be read."""
    if p in level:
        return level[p]
    if p in b.in_scan:
        return min(b.in_scan[p])
    stage = b.in_batch.get(p, 0)
    return min(stage + 1, b.levels) if stage else 0


def evaluate(plan: Partition, prices: Prices, loop_cost: float) -> Partition:
    """Drop what nobody needs, find what crosses, and price the plan."""
    dep = plan.dependence
    final = {a for _, a in dep.loop.ys if not isinstance(a, jc.Literal)}
    needed: set[Any] = set(final)
    needed |= {
        c.carry.out
        for c in dep.nodes
        if c.carry is not None
        and not isinstance(c.carry.out, jc.Literal)
        and any(r is not None and r.carry is c.carry.var for r in dep.loop.results)
    }
    in_scan: dict[int, set[int]] = {}
    in_batch: dict[int, int] = {}
    stored: set[Any] = set(v for v in final if v in dep.made)
    cost = prices.scan + prices.more * (plan.scans - 1) if plan.scans else 0.0
    for stage in range(plan.scans, -1, -1):
        batch = plan.batch_nodes(stage)
        inside = set(batch)
        for v in reversed(batch):
            if _is_needed(dep, v, needed):
                in_batch[v] = stage
                cost += prices.batch[v]
                for x in _inputs(dep, v):
                    needed.add(x)
                    made = dep.made.get(x)
                    if made is not None and made not in inside:
                        stored.add(x)
        if stage == 0:
            break
        scan = plan.scan_nodes(stage)
        inside = set(scan)
        for v in reversed(scan):
            if dep.is_core(v) or _is_needed(dep, v, needed):
                in_scan.setdefault(v, set()).add(stage)
                cost += prices.loop[v]
                for x in _inputs(dep, v):
                    needed.add(x)
                    made = dep.made.get(x)
                    if made is None:
                        continue
                    if made not in inside:
                        stored.add(x)
    cost += sum(prices.store(x) for x in stored - final)
    return Partition(
        dep,
        plan.scans,
        {v: frozenset(s) for v, s in in_scan.items()},
        in_batch,
        frozenset(stored),
        cost,
        loop_cost,
    )


def _inputs(dep: Dependence, v: int) -> tuple[Any, ...]:
    node = dep.nodes[v]
    if node.carry is not None and not isinstance(node.carry.out, jc.Literal):
        return (node.carry.out,)
    return node.reads


def _is_needed(dep: Dependence, v: int, needed: set[Any]) -> bool:
    node = dep.nodes[v]
    return (
        node.reduction is not None
        or any(x in needed for x in node.defines)
        or (node.eqn is not None and bool(node.eqn.effects))
        or (
            node.carry is not None
            and any(
                r is not None and r.carry is node.carry.var for r in dep.loop.results
            )
        )
    )
