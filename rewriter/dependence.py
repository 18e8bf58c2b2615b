"""Dependence graph of a loop body: data flow plus back edges of distance 1.

Nodes are equations, carries and reductions. A back edge leads from the producer of
a carry's next value to the carry; strongly connected components that hold one are
recurrences (Allen and Kennedy, *Optimizing Compilers for Modern Architectures*, ch. 5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter import jax_compat as jc
from rewriter.graph import Carry, Loop
from rewriter.recurrence import Reduction, may_reorder, reduction_of, users_of, uses


@dataclass(frozen=True)
class Node:
    """One unit of the partition.

    kind: `eqn`, `carry` (its value at the start of a step) or `reduction`.
    """

    id: int
    kind: str
    eqn: Any = None
    carry: Carry | None = None
    reduction: Reduction | None = None
    reads: tuple[Any, ...] = ()  # variables of the body, constants excluded
    defines: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Dependence:
    """The graph: predecessors by node, core (sequential) nodes by component."""

    loop: Loop
    nodes: tuple[Node, ...]
    made: dict[Any, int]  # variable -> node
    predecessors: tuple[tuple[int, ...], ...]
    component: tuple[int, ...]  # SCC number of a node
    sequential: frozenset[int]  # SCC numbers that must run in order
    order: tuple[int, ...]  # nodes, topological over components
    forced: dict[int, str]  # node -> why it may not be batched

    def is_core(self, node: int) -> bool:
        """Whether a node is part of a recurrence or must run in order."""
        return self.component[node] in self.sequential

    @property
    def delays(self) -> tuple[Node, ...]:
        """Carries that are in no cycle: earlier values of something else."""
        return tuple(
            n for n in self.nodes if n.kind == "carry" and not self.is_core(n.id)
        )

    @property
    def recurrences(self) -> tuple[Node, ...]:
        """Carries that depend on themselves."""
        return tuple(n for n in self.nodes if n.kind == "carry" and self.is_core(n.id))


def dependence_graph(loop: Loop, numerics: str, forced: dict[int, str]) -> Dependence:
    """Build the graph. `forced` maps equation numbers to why they stay in order."""
    nodes, made, why = _nodes(loop, numerics, forced)
    before = [[made[v] for v in n.reads if v in made] for n in nodes]
    for node in nodes:
        out = None if node.carry is None else node.carry.out
        if out is not None and not isinstance(out, jc.Literal) and out in made:
            before[node.id].append(made[out])
    effectful = [n.id for n in nodes if n.eqn is not None and n.eqn.effects]
    for earlier, later in zip(effectful, effectful[1:] + effectful[:1], strict=True):
        before[later].append(earlier)  # effects keep their order, across steps too
    component, sequential = _components(before, why)
    return Dependence(
        loop,
        tuple(nodes),
        made,
        tuple(map(tuple, before)),
        tuple(component),
        frozenset(sequential),
        _topological(before, component),
        why,
    )


def _nodes(
    loop: Loop, numerics: str, forced: dict[int, str]
) -> tuple[list[Node], dict[Any, int], dict[int, str]]:
    """Return the nodes, the node that makes each variable, and what is forced."""
    constant = {v for v, _ in loop.consts}
    reductions = _reductions(loop, numerics)
    absorbed = {i for r in reductions.values() for i in r.eqns}
    nodes: list[Node] = []
    made: dict[Any, int] = {}
    why: dict[int, str] = {}

    def add(kind: str, read: Iterable[Any], defines: Sequence[Any], **what: Any) -> int:
        seen = dict.fromkeys(
            v for v in read if not isinstance(v, jc.Literal) and v not in constant
        )
        node = Node(len(nodes), kind, reads=tuple(seen), defines=tuple(defines), **what)
        nodes.append(node)
        made.update((v, node.id) for v in defines)
        return node.id

    for carry in loop.carries:
        if carry.var not in reductions:
            add("carry", (), (carry.var,), carry=carry)
    for i, eqn in enumerate(loop.eqns):
        if i not in absorbed:
            node = add("eqn", eqn.invars, eqn.outvars, eqn=eqn)
            if i in forced:
                why[node] = forced[i]
    for reduction in reductions.values():
        add("reduction", [t.atom for t in reduction.terms], (), reduction=reduction)
    return nodes, made, why


def _reductions(loop: Loop, numerics: str) -> dict[Any, Reduction]:
    count, users = uses(loop), users_of(loop.eqns)
    found: dict[Any, Reduction] = {}
    for carry in loop.carries:
        reduction = reduction_of(loop, carry, count, users)
        if reduction is not None and may_reorder(reduction, numerics):
            found[carry.var] = reduction
    return found


def _components(
    before: Sequence[Sequence[int]], forced: dict[int, str]
) -> tuple[list[int], set[int]]:
    n = len(before)
    edges = [(p, v) for v, ps in enumerate(before) for p in ps]
    sequential: set[int] = set()
    if not edges:
        labels = list(range(n))
    else:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        rows, cols = zip(*edges, strict=True)
        matrix = csr_matrix((np.ones(len(edges), np.int8), (rows, cols)), shape=(n, n))
        labels = connected_components(matrix, True, "strong")[1].tolist()
    size: dict[int, int] = defaultdict(int)
    for label in labels:
        size[label] += 1
    for v in range(n):
        if size[labels[v]] > 1 or v in before[v] or v in forced:
            sequential.add(labels[v])
    return labels, sequential


def _topological(
    before: Sequence[Sequence[int]], component: Sequence[int]
) -> tuple[int, ...]:
    members: dict[int, list[int]] = defaultdict(list)
    for v, label in enumerate(component):
        members[label].append(v)
    preds = {
        label: {component[p] for v in vs for p in before[v]} - {label}
        for label, vs in members.items()
    }
    succs: dict[int, list[int]] = defaultdict(list)
    for label, ps in preds.items():
        for p in ps:
            succs[p].append(label)
    degree = {label: len(ps) for label, ps in preds.items()}
    ready = [label for label in members if degree[label] == 0]
    order: list[int] = []
    seen = 0
    for label in ready:
        order += members[label]
        seen += 1
        for s in succs[label]:
            degree[s] -= 1
            if degree[s] == 0:
                ready.append(s)
    if seen != len(members):
        order = list(range(len(before)))
    return tuple(order)
