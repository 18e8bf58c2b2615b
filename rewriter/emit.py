"""Emission: build the replacement of a loop by rebinding equations under tracing.

Nothing here decides: a `Loop` becomes a `scan`, a `Partition` with a `Schedule`
becomes batched stages around residual scans, whole or in blocks of the trip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter import planes
from rewriter.contraction import contractions
from rewriter.dependence import Node
from rewriter.graph import EMITTED, Carry, Loop, Outputs, counters_as_carries, reads, variant_values
from rewriter.orient import evaluate
from rewriter.partition import Partition
from rewriter.recurrence import Reduction
from rewriter.schedule import Schedule

Env = dict[Any, Any]


# ------------------------------------------------------------ a loop as a scan


def emit_loop(loop: Loop, args: Sequence[Any]) -> list[Any]:
    """Bind the canonical scan of a loop and return the original's outputs."""
    loop = counters_as_carries(loop)
    const_vars = [v for v, _ in loop.consts]
    carry_vars = [c.var for c in loop.carries]
    x_vars = [v for v, _ in loop.xs]
    body = jc.build_jaxpr(
        [*const_vars, *carry_vars, *x_vars],
        [*(c.out for c in loop.carries), *(a for _, a in loop.ys)],
        loop.eqns, loop.like, loop.names)
    consts = [_typed(s.get(args), v) for v, s in loop.consts]
    init = [_typed(c.init.get(args), c.var) for c in loop.carries]
    xs = [_typed(s.get(args), v) for v, s in loop.xs]
    out = jc.bind_scan(body, consts, init, xs, length=loop.length,
                       reverse=loop.reverse, unroll=loop.unroll)
    finals = dict(zip(carry_vars, out, strict=False))
    stacks = dict(zip((k for k, _ in loop.ys), out[len(carry_vars):], strict=True))
    return results(loop, Outputs(args, finals, stacks))


def results(loop: Loop, out: Outputs) -> list[Any]:
    """Make the original equation's outputs, at exactly their types."""
    values = []
    for result, var in zip(loop.results, loop.eqn.outvars, strict=True):
        values.append(None if result is None else
                      jc.coerce(result.get(out), var.aval))
    return values


def _typed(value: Any, var: Any) -> Any:
    return jc.coerce(value, var.aval) if jc.is_array_aval(var.aval) else value


# ------------------------------------------------------------ a partition


@dataclass
class _Plan:
    """A partition being emitted: constants, and who computes what."""

    loop: Loop
    part: Partition
    consts: Env
    invariant: frozenset[Any]
    args: Sequence[Any]
    in_planes: bool = False
    contracted: Mapping[Any, Any] = field(default_factory=dict)


def emit_partition(
    part: Partition, schedule: Schedule, invariant: frozenset[int], in_planes: bool,
    args: Sequence[Any],
) -> list[Any]:
    """Emit the stages of a partition and return the original's outputs."""
    loop = part.dependence.loop
    consts: Env = {v: _typed(s.get(args), v) for v, s in loop.consts}
    nodes = part.dependence.nodes
    hoisted = [nodes[v].eqn for v in part.dependence.order
               if v in invariant and v in part.in_batch]
    evaluate(hoisted, consts, set())
    made = frozenset(v for e in hoisted for v in e.outvars)
    plan = _Plan(loop, part, consts, made, args, in_planes,
                 contractions(part, invariant))
    xs = {v: _typed(s.get(args), v) for v, s in loop.xs}
    state = _initial_state(plan, args)
    if schedule.block is None or schedule.block >= loop.length:
        state, stacks = _run(plan, state, xs, loop.length, 0)
    else:
        state, stacks = _blocks(plan, schedule.block, state, xs)
    return results(loop, Outputs(args, state, stacks))


def _initial_state(plan: _Plan, args: Sequence[Any]) -> Env:
    state = {}
    for node in plan.part.dependence.nodes:
        carry = node.carry or (node.reduction.carry if node.reduction else None)
        placed = node.id in plan.part.in_scan or node.id in plan.part.in_batch
        if carry is not None and placed:
            state[carry.var] = _typed(carry.init.get(args), carry.var)
    return state


def _run(
    plan: _Plan, state: Env, xs: Env, length: int, offset: Any
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


def _rows(plan: _Plan, stacked: Env, atom: Any, length: int) -> Any:
    """Return an atom with one row per step."""
    if isinstance(atom, jc.Literal):
        value = jnp.asarray(atom.val, atom.aval.dtype)
    elif atom in stacked:
        return stacked[atom]
    else:
        value = plan.consts[atom]
    return jnp.broadcast_to(value[None], (length, *value.shape))


# ------------------------------------------------------------ residual scans


def _residual_scan(
    plan: _Plan, stage: int, state: Env, new_state: Env, stacked: Env, length: int
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
    used = {v for e in eqns for v in reads(e)} | {c.out for c in carries
                                                  if not isinstance(c.out, jc.Literal)}
    counters = [c for c in loop.counters if c.var in used]
    inside = {v for e in eqns for v in e.outvars}
    eqns += [c.eqn for c in counters if c.eqn.outvars[0] not in inside]
    counting = [Carry(c.var, c.init, c.eqn.outvars[0]) for c in counters]
    start = -1 if loop.reverse else 0
    entry = {**state, **{c.var: stacked[c.var][start] for c in counters}}
    carries += counting
    defined = {v for e in eqns for v in e.outvars} | {c.var for c in carries}
    ys = list(dict.fromkeys(
        x for n in nodes if n.id not in plan.part.in_batch
        for x in n.defines if x in plan.part.stored))
    outs = [*(c.out for c in carries), *ys]
    wanted = [v for e in eqns for v in reads(e)]
    wanted += [a for a in outs if not isinstance(a, jc.Literal)]
    inputs = list(dict.fromkeys(v for v in wanted if v not in defined))
    xs = [v for v in inputs if v in stacked]
    consts = [v for v in inputs if v not in stacked]
    steps = {v: c.step for c in counters for v in reads(c.eqn)}
    body = jc.build_jaxpr([*consts, *(c.var for c in carries), *xs], outs, eqns,
                          loop.like)
    out = jc.bind_scan(
        mark(body, "residual"),
        [plan.consts[v] if v in plan.consts else _typed(steps[v].get(plan.args), v)
         for v in consts],
        [_typed(entry[c.var], c.var) for c in carries], [stacked[v] for v in xs],
        length=length, reverse=loop.reverse, unroll=loop.unroll)
    new_state.update((c.var, o) for c, o in zip(carries, out, strict=False)
                     if c not in counting)
    stacked.update(zip(ys, out[len(carries):], strict=True))


def mark(body: Any, kind: str) -> Any:
    """Wrap a scan body in a named jit, so that no pass takes it for a user's loop."""
    inner = jc.jaxpr_as_fun(body)

    def emitted(*args: Any) -> Any:
        return inner(*args)

    emitted.__name__ = f"{EMITTED}_{kind}"
    jitted = jax.jit(emitted)
    avals = [v.aval for v in jc.open_jaxpr(body).invars]
    return jc.trace(lambda *args: jitted(*args), avals, kind)


# ------------------------------------------------------------ batched stages


def _batched_stage(
    plan: _Plan, stage: int, state: Env, new_state: Env, stacked: Env, length: int
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


def _batch(plan: _Plan, eqns: list[Any], stacked: Env, length: int) -> None:
    """Evaluate equations for all rows at once with JAX's batching rules."""
    if not eqns:
        return
    made = {v for e in eqns for v in e.outvars}
    inputs = list(dict.fromkeys(v for e in eqns for v in reads(e) if v not in made))
    rows = [v for v in inputs if v in stacked]
    shared = [v for v in inputs if v not in stacked]
    wanted = plan.part.stored | _read_later(plan, eqns)
    outs = [v for e in eqns for v in e.outvars
            if v in wanted and not isinstance(v, jc.DropVar)]
    variant = variant_values(eqns, set(rows))
    env = {v: plan.consts[v] for v in shared}
    if plan.in_planes:
        tiny = {v: planes.split(stacked[v], v.aval.shape, rows=True) for v in rows}
        tiny.update((v, planes.split(x, v.aval.shape, rows=False))
                    for v, x in env.items())
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


def _read_later(plan: _Plan, eqns: list[Any]) -> set[Any]:
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
    plan: _Plan, node: Node, state: Env, new_state: Env, stacked: Env, length: int
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
    plan: _Plan, reduction: Reduction, state: Env, new_state: Env, stacked: Env,
    length: int,
) -> None:
    """Accumulate all rows of a reduction's terms into its state."""
    var = reduction.carry.var
    value = state[var]
    for term in reduction.terms:
        contraction = (None if isinstance(term.atom, jc.Literal)
                       else plan.contracted.get(term.atom))
        if contraction is not None:
            total = contraction.total(stacked, plan.consts)
        else:
            total = reduction.op.reduce(_rows(plan, stacked, term.atom, length))
        value = lax.sub(value, total) if term.negative else (
            reduction.op.combine(value, total))
    new_state[var] = jc.coerce(value, var.aval)


# ------------------------------------------------------------ blocks and sections


def _blocks(
    plan: _Plan, size: int, state: Env, xs: Env
) -> tuple[Env, dict[int, Any]]:
    """Run the stages block by block along the trip."""
    length = plan.loop.length
    keys = list(state)
    if length % size == 0:
        return _even_blocks(plan, size, state, xs, keys)
    return _uneven_blocks(plan, size, state, xs, keys)


def _step(plan: _Plan, size: int, keys: list[Any]) -> Callable[..., Any]:
    def block(
        state: Sequence[Any], rows: Mapping[int, Any], offset: Any
    ) -> tuple[Any, Any]:
        xs = {v: rows[i] for i, (v, _) in enumerate(plan.loop.xs)}
        new, stacks = _run(plan, dict(zip(keys, state, strict=True)), xs, size, offset)
        return tuple(jc.coerce(new[k], k.aval) for k in keys), stacks

    block.__name__ = f"{EMITTED}_block"
    return jax.jit(block)


def _even_blocks(
    plan: _Plan, size: int, state: Env, xs: Env, keys: list[Any]
) -> tuple[Env, dict[int, Any]]:
    count = plan.loop.length // size
    rows = {i: xs[v].reshape(count, size, *xs[v].shape[1:])
            for i, (v, _) in enumerate(plan.loop.xs)}
    step = _step(plan, size, keys)

    def body(state: Any, block: Any) -> Any:
        i, rows = block
        return step(state, rows, i * size)

    body.__name__ = f"{EMITTED}_block"
    out, stacks = lax.scan(
        jax.jit(body), tuple(state[k] for k in keys), (jnp.arange(count), rows),
        reverse=plan.loop.reverse)
    joined = {k: y.reshape(count * size, *y.shape[2:]) for k, y in stacks.items()}
    return dict(zip(keys, out, strict=True)), joined


def _uneven_blocks(
    plan: _Plan, size: int, state: Env, xs: Env, keys: list[Any]
) -> tuple[Env, dict[int, Any]]:
    """Blocks that do not divide the trip: written in place, never concatenated.

    Without state the last block overlaps the one before it; with state the rest is
    one shorter block of its own.
    """
    length, reverse = plan.loop.length, plan.loop.reverse
    step = _step(plan, size, keys)
    values: Any = tuple(state[k] for k in keys)
    shapes = jax.eval_shape(step, values, _slices(plan, xs, 0, size), 0)[1]
    buffers: Any = {k: lax.empty((length, *s.shape[1:]), s.dtype)
                    for k, s in shapes.items()}
    whole, rest = divmod(length, size)
    overlap = not keys

    def put(buffers: Any, stacks: Any, start: Any) -> Any:
        return {k: lax.dynamic_update_slice_in_dim(buffers[k], stacks[k], start, 0)
                for k in buffers}

    def body(carry: Any, i: Any) -> Any:
        values, buffers = carry
        start = jnp.minimum(i * size, length - size) if overlap else i * size
        values, stacks = step(values, _slices(plan, xs, start, size), start)
        return (values, put(buffers, stacks, start)), None

    def tail(values: Any, buffers: Any) -> Any:
        last, start = _step(plan, rest, keys), whole * size
        values, stacks = last(values, _slices(plan, xs, start, rest), start)
        return values, put(buffers, stacks, start)

    body.__name__ = f"{EMITTED}_block"
    if not overlap and reverse:
        values, buffers = tail(values, buffers)
    (values, buffers), _ = lax.scan(
        jax.jit(body), (values, buffers), jnp.arange(whole + overlap), reverse=reverse)
    if not overlap and not reverse:
        values, buffers = tail(values, buffers)
    return dict(zip(keys, values, strict=True)), buffers


def _slices(plan: _Plan, xs: Env, start: Any, size: int) -> dict[int, Any]:
    return {i: lax.dynamic_slice_in_dim(xs[v], start, size)
            for i, (v, _) in enumerate(plan.loop.xs)}

