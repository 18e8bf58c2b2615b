"""Emission by schedule: the whole trip at once, or block by block along it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.contraction import contractions
from rewriter.emit import emitted, results, typed
from rewriter.graph import Outputs
from rewriter.orient import evaluate
from rewriter.partition import Partition
from rewriter.schedule import Schedule
from rewriter.stages import Env, Stages, initial_state, run


def emit_partition(
    part: Partition,
    schedule: Schedule,
    invariant: frozenset[int],
    in_planes: bool,
    args: Sequence[Any],
) -> list[Any]:
    """Emit the stages of a partition and return the original's outputs."""
    loop = part.dependence.loop
    consts: Env = {v: typed(s.get(args), v) for v, s in loop.consts}
    hoisted = _hoisted(part, invariant)
    evaluate(hoisted, consts, set())
    made = frozenset(v for e in hoisted for v in e.outvars)
    plan = Stages(
        loop, part, consts, made, args, in_planes, contractions(part, invariant)
    )
    xs = {v: typed(s.get(args), v) for v, s in loop.xs}
    state = initial_state(plan, args)
    if schedule.block is None or schedule.block >= loop.length:
        state, stacks = run(plan, state, xs, loop.length, 0)
    else:
        state, stacks = _blocks(plan, schedule.block, state, xs)
    return results(loop, Outputs(args, state, stacks))


def _hoisted(part: Partition, invariant: frozenset[int]) -> list[Any]:
    """Return what is computed once: batched invariants and what they are made of."""
    dep = part.dependence
    needed = {v for v in invariant if v in part.in_batch}
    live = list(needed)
    while live:
        reads = dep.nodes[live.pop()].reads
        more = {dep.made[x] for x in reads if x in dep.made} - needed
        needed |= more
        live += more
    return [dep.nodes[v].eqn for v in dep.order if v in needed]


def _blocks(plan: Stages, size: int, state: Env, xs: Env) -> tuple[Env, dict[int, Any]]:
    """Run the stages block by block along the trip."""
    length = plan.loop.length
    keys = list(state)
    if length % size == 0 or any(jc.is_extended(a.aval) for _, a in plan.loop.ys):
        size = size if length % size == 0 else length
        return _even_blocks(plan, size, state, xs, keys)
    return _uneven_blocks(plan, size, state, xs, keys)


def _step(plan: Stages, size: int, keys: list[Any]) -> Callable[..., Any]:
    def block(
        state: Sequence[Any], rows: Mapping[int, Any], offset: Any
    ) -> tuple[Any, Any]:
        xs = {v: rows[i] for i, (v, _) in enumerate(plan.loop.xs)}
        new, stacks = run(plan, dict(zip(keys, state, strict=True)), xs, size, offset)
        return tuple(jc.coerce(new[k], k.aval) for k in keys), stacks

    return emitted(block)


def _even_blocks(
    plan: Stages, size: int, state: Env, xs: Env, keys: list[Any]
) -> tuple[Env, dict[int, Any]]:
    count = plan.loop.length // size
    rows = {
        i: xs[v].reshape(count, size, *xs[v].shape[1:])
        for i, (v, _) in enumerate(plan.loop.xs)
    }
    step = _step(plan, size, keys)

    def body(state: Any, block: Any) -> Any:
        i, rows = block
        return step(state, rows, i * size)

    out, stacks = lax.scan(
        emitted(body),
        tuple(state[k] for k in keys),
        (jnp.arange(count), rows),
        reverse=plan.loop.reverse,
    )
    joined = {k: y.reshape(count * size, *y.shape[2:]) for k, y in stacks.items()}
    return dict(zip(keys, out, strict=True)), joined


def _uneven_blocks(
    plan: Stages, size: int, state: Env, xs: Env, keys: list[Any]
) -> tuple[Env, dict[int, Any]]:
    """Blocks that do not divide the trip: written in place, never concatenated.

    Without state the last block overlaps the one before it; with state the rest is
    one shorter block of its own.
    """
    length, reverse = plan.loop.length, plan.loop.reverse
    step = _step(plan, size, keys)
    values: Any = tuple(state[k] for k in keys)
    shapes = jax.eval_shape(step, values, _slices(plan, xs, 0, size), 0)[1]
    buffers: Any = {
        k: lax.empty((length, *s.shape[1:]), s.dtype) for k, s in shapes.items()
    }
    whole, rest = divmod(length, size)
    overlap = not keys

    def put(buffers: Any, stacks: Any, start: Any) -> Any:
        return {
            k: lax.dynamic_update_slice_in_dim(buffers[k], stacks[k], start, 0)
            for k in buffers
        }

    def body(carry: Any, i: Any) -> Any:
        values, buffers = carry
        start = jnp.minimum(i * size, length - size) if overlap else i * size
        values, stacks = step(values, _slices(plan, xs, start, size), start)
        return (values, put(buffers, stacks, start)), None

    def tail(values: Any, buffers: Any) -> Any:
        last, start = _step(plan, rest, keys), whole * size
        values, stacks = last(values, _slices(plan, xs, start, rest), start)
        return values, put(buffers, stacks, start)

    if not overlap and reverse:
        values, buffers = tail(values, buffers)
    (values, buffers), _ = lax.scan(
        emitted(body), (values, buffers), jnp.arange(whole + overlap), reverse=reverse
    )
    if not overlap and not reverse:
        values, buffers = tail(values, buffers)
    return dict(zip(keys, values, strict=True)), buffers


def _slices(plan: Stages, xs: Env, start: Any, size: int) -> dict[int, Any]:
    return {
        i: lax.dynamic_slice_in_dim(xs[v], start, size)
        for i, (v, _) in enumerate(plan.loop.xs)
    }
