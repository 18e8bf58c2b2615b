"""Emission of a partition: batched stages around residual scans, by rebinding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter import planes
from rewriter.dependence import Node
from rewriter.emit import typed
from rewriter.graph import Carry, Loop, reads, variant_values
from rewriter.orient import evaluate
from rewriter.partition import Partition
from rewriter.prefetch import bind_residual, sliced_rows
from rewriter.recurrence import Reduction

Env = dict[Any, Any]


@dataclass
class Stages:
    """A partition being emitted: constants, and who computes what."""

    loop: Loop
    part: Partition
    consts: Env
    invariant: frozenset[Any]
    args: Sequence[Any]
    in_planes: bool = False
    contracted: Mapping[Any, Any] = field(default_factory=dict)


def initial_state(plan: Stages, args: Sequence[Any]) -> Env:
    """Return the initial value of everything that is carried."""
    state = {}
    for node in plan.part.dependence.nodes:
        carry = node.carry or (node.reduction.carry if node.reduction else None)
        placed = node.id in plan.part.in_scan or node.id in plan.part.in_batch
        if carry is not None and placed:
            state[carry.var] = typed(carry.init.get(args), carry.var)
    return state


def run(
    plan: Stages, state: Env, xs: Env, length: int, offset: Any
) -> tuple[Env, dict[int, Any]]:
    """Run all stages on `length` rows from storage index `offset` on.

    Returns the new state and the stacked ys.
    """
    stacked: Env = dict(xs)
    back = plan.loop.reverse
    first = plan.loop.length - 1 - offset if back else offset
    for counter in plan.loop.counters:
        stacked[counter.var] = counter.rows(plan.args, first, length, back)
    new_state = dict(state)
    for stage in range(plan.part.scans + 1):
        if stage:
            _residual_scan(plan, stage, state, new_state, stacked, length)
        _batched_stage(plan, stage, state, new_state, stacked, length)
    stacks = {}
    for key, atom in plan.loop.ys:
        stacks[key] = _rows(plan, stacked, atom, length)
    return new_state, stacks


def _rows(plan: Stages, stacked: Env, atom: Any, length: int) -> Any:
    """Return an atom with one row per step."""
    if isinstance(atom, jc.Literal):
        value = jnp.asarray(atom.val, jc.dtype_of(atom))
    elif atom in stacked:
        return stacked[atom]
    else:
        value = plan.consts[atom]
    return jnp.broadcast_to(value[None], (length, *value.shape))


# ------------------------------------------------------------ residual scans


def _residual_scan(
    plan: Stages, stage: int, state: Env, new_state: Env, stacked: Env, length: int
) -> None:
    loop, dep = plan.loop, plan.part.dependence
    members = {v for v in plan.part.scan_nodes(stage)}
    nodes = [dep.nodes[v] for v in members]
    ours = {id(n.eqn) for n in nodes if n.eqn is not None}
    reductions = [n.reduction for n in nodes if n.reduction is not None]
    ours |= {id(loop.eqns[i]) for r in reductions for i in r.eqns}
    eqns = [e for e in loop.eqns if id(e) in ours]
    carries = [n.carry for n in nodes if n.carry is not None]
    carries += [r.carry for r in reductions]
    used = {v for e in eqns for v in reads(e)} | {
        c.out for c in carries if not isinstance(c.out, jc.Literal)
    }
    counters = [c for c in loop.counters if c.var in used]
    inside = {v for e in eqns for v in e.outvars}
    eqns += [c.eqn for c in counters if c.eqn.outvars[0] not in inside]
    counting = [Carry(c.var, c.init, c.eqn.outvars[0]) for c in counters]
    start = -1 if loop.reverse else 0
    entry = {**state, **{c.var: stacked[c.var][start] for c in counters}}
    carries += counting
    defined = {v for e in eqns for v in e.outvars} | {c.var for c in carries}
    ys = list(
        dict.fromkeys(
            x
            for n in nodes
            if n.id not in plan.part.in_batch
            for x in n.defines
            if x in plan.part.stored
        )
    )
    outs = [*(c.out for c in carries), *ys]
    wanted = [v for e in eqns for v in reads(e)]
    wanted += [a for a in outs if not isinstance(a, jc.Literal)]
    inputs = list(dict.fromkeys(v for v in wanted if v not in defined))
    xs = [v for v in inputs if v in stacked]
    consts = [v for v in inputs if v not in stacked]
    steps = {v: c.step for c in counters for v in reads(c.eqn)}
    body = jc.build_jaxpr(
        [*consts, *(c.var for c in carries), *xs], outs, eqns, loop.like
    )
    sliced = sliced_rows(eqns, xs)
    out = bind_residual(
        body,
        [
            plan.consts[v] if v in plan.consts else typed(steps[v].get(plan.args), v)
            for v in consts
        ],
        [typed(entry[c.var], c.var) for c in carries],
        [stacked[v] for v in xs],
        [k for k, v in enumerate(xs) if v in sliced],
        length=length,
        reverse=loop.reverse,
        unroll=loop.unroll,
    )
    new_state.update(
        (c.var, o) for c, o in zip(carries, out, strict=False) if c not in counting
    )
    stacked.update(zip(ys, out[len(carries) :], strict=True))


# ------------------------------------------------------------ batched stages


def _batched_stage(
    plan: Stages, stage: int, state: Env, new_state: Env, stacked: Env, length: int
) -> None:
    nodes = [plan.part.dependence.nodes[v] for v in plan.part.batch_nodes(stage)]
    skipped = {id(e) for c in plan.contracted.values() for e in c.replaced}
    segment: list[Any] = []
    for node in nodes:
        if node.eqn is not None:
            if not set(node.defines) <= plan.invariant and id(node.eqn) not in skipped:
                segment.append(node.eqn)
            continue
        _batch(plan, segment, stacked, length)
        segment = []
        if node.carry is not None:
            _delay(plan, node, state, new_state, stacked, length)
        elif node.reduction is not None:
            _reduce(plan, node.reduction, state, new_state, stacked, length)
    _batch(plan, segment, stacked, length)


def _batch(plan: Stages, eqns: list[Any], stacked: Env, length: int) -> None:
    """Evaluate equations for all rows at once with JAX's batching rules."""
    if not eqns:
        return
    made = {v for e in eqns for v in e.outvars}
    inputs = list(dict.fromkeys(v for e in eqns for v in reads(e) if v not in made))
    rows = [v for v in inputs if v in stacked]
    shared = [v for v in inputs if v not in stacked]
    wanted = plan.part.stored | _read_later(plan, eqns)
    outs = [
        v
        for e in eqns
        for v in e.outvars
        if v in wanted and not isinstance(v, jc.DropVar)
    ]
    variant = variant_values(eqns, set(rows))
    env = {v: plan.consts[v] for v in shared}
    if plan.in_planes:
        tiny = {v: planes.split(stacked[v], v.aval.shape, rows=True) for v in rows}
        tiny.update(
            (v, planes.split(x, v.aval.shape, rows=False)) for v, x in env.items()
        )
        planes.evaluate(eqns, tiny)
        stacked.update((v, planes.join(tiny[v], length, v.aval.dtype)) for v in outs)
        return

    def one(*row: Any) -> list[Any]:
        local = dict(env)
        local.update(zip(rows, row, strict=True))
        evaluate(eqns, local, variant)
        return [local[v] for v in outs]

    values = jax.vmap(one, in_axes=0, axis_size=length)(*(stacked[v] for v in rows))
    stacked.update(zip(outs, values, strict=True))


def _read_later(plan: Stages, eqns: list[Any]) -> set[Any]:
    """Variables that a batched stage reads outside of this segment."""
    inside = {id(e) for e in eqns}
    found: set[Any] = set()
    for v in plan.part.in_batch:
        node = plan.part.dependence.nodes[v]
        if node.eqn is None or id(node.eqn) not in inside:
            found.update(node.reads)
            if node.carry is not None and not isinstance(node.carry.out, jc.Literal):
                found.add(node.carry.out)
    for contraction in plan.contracted.values():
        found.update(contraction.atoms)
    return found


def _delay(
    plan: Stages, node: Node, state: Env, new_state: Env, stacked: Env, length: int
) -> None:
    """Make the rows of a carry that is the previous step's value of something."""
    carry = node.carry
    assert carry is not None
    rows = _rows(plan, stacked, carry.out, length)
    stacked[carry.var] = _shifted(rows, state[carry.var], plan.loop.reverse)
    new_state[carry.var] = rows[0] if plan.loop.reverse else rows[-1]


def _shifted(rows: Any, first: Any, back: bool) -> Any:
    """Shift rows by one step, `first` coming in: pads fuse, a concatenate is stored."""
    edge = (-1, 1, 0) if back else (1, -1, 0)
    if not jc.is_array_aval(jc.abstractify(rows)) or jc.is_extended(rows):
        parts = [rows[1:], first[None]] if back else [first[None], rows[:-1]]
        return jnp.concatenate(parts)
    if rows.ndim == 1:
        return lax.pad(rows, first.astype(rows.dtype), [edge])
    zero = jnp.zeros((), rows.dtype)
    padded = lax.pad(rows, zero, [edge] + [(0, 0, 0)] * (rows.ndim - 1))
    entry = rows.shape[0] - 1 if back else 0
    at = lax.broadcasted_iota(jnp.int32, rows.shape, 0) == entry
    return jnp.where(at, first[None], padded)


# ------------------------------------------------------------ reductions


def _reduce(
    plan: Stages,
    reduction: Reduction,
    state: Env,
    new_state: Env,
    stacked: Env,
    length: int,
) -> None:
    """Accumulate all rows of a reduction's terms into its state."""
    var = reduction.carry.var
    value = state[var]
    for term in reduction.terms:
        contraction = (
            None
            if isinstance(term.atom, jc.Literal)
            else plan.contracted.get(term.atom)
        )
        if contraction is not None:
            total = contraction.total(stacked, plan.consts, length)
        else:
            total = reduction.op.reduce(_rows(plan, stacked, term.atom, length))
        value = (
            lax.sub(value, total)
            if term.negative
            else (reduction.op.combine(value, total))
        )
    new_state[var] = jc.coerce(value, var.aval)
