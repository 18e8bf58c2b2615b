"""Tables that nested loops fill entry by entry: what is written, and the rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.graph import Loop, reads
from rewriter.inline import inline
from rewriter.nests import counted
from rewriter.patterns import literal
from rewriter.recurrence import uses


@dataclass(frozen=True)
class Write:
    """A value per pair, and whether it is written to [j, i]."""

    value: Any
    mirrored: bool


@dataclass(frozen=True)
class Triangle:
    """The pairs that are written, by i, and what is written for each.

    `eqns` make the values in the inner loop `eqn`; for the i's from `first` on, j runs
    from `lows` to `highs`; `back`: the outer loop counts down.
    """

    eqn: Any
    eqns: tuple[Any, ...]
    writes: tuple[Write, ...]
    first: int
    back: bool
    lows: tuple[int, ...]
    highs: tuple[int, ...]


# ------------------------------------------------------------ recognition


@dataclass(frozen=True)
class Entries:
    """What an inner loop writes, the equations that make it, and the outer counter."""

    writes: tuple[Write, ...]
    eqns: tuple[Any, ...]
    counter: Any


def carried_table(loop: Loop, eqn: Any, operand: int, result: int) -> Any:
    """Return the outer carry that is only handed through the inner loop."""
    var = eqn.invars[operand]
    found = [c for c in loop.carries if c.var is var and c.out is eqn.outvars[result]]
    count = uses(loop)
    if not found or count[var] != 1 or count[eqn.outvars[result]] != 1:
        return None
    others = [v for k, v in enumerate(eqn.outvars) if k != result]
    if any(count[v] for v in others) or len(var.aval.shape) != 2:
        return None
    return found[0]


def entries_of(
    loop: Loop, eqn: Any, places: tuple[int, int], table: int
) -> Entries | None:
    """Return what is written if the table is read by its writes only."""
    p = eqn.params
    body = jc.open_jaxpr(p["body_jaxpr"])
    closed = p["body_jaxpr"]
    if jc.is_closed(closed) and closed.consts:
        return None
    eqns, subst, extra = inline(body.eqns, inline_custom=True)
    if extra or any(e.effects for e in eqns):
        return None
    skip, consts = p["cond_nconsts"], p["body_nconsts"]
    outside = dict(zip(body.invars, eqn.invars[skip:], strict=True))
    inner = body.invars[consts + places[0]]
    made = {v: e for e in eqns for v in e.outvars}
    chain: list[Any] = []
    var = subst.get(body.outvars[table], body.outvars[table])
    while var is not body.invars[consts + table]:
        write = made.get(var)
        if write is None or write.primitive.name != "scatter":
            return None
        chain.append(write)
        var = write.invars[0]
    if not chain:
        return None
    writes, found = [], []
    for write in reversed(chain):
        pair = _pair(write, made)
        if pair is None:
            return None
        outer = [v for v in pair if v is not inner]
        if len(outer) != 1 or outer[0] not in outside:
            return None
        found.append(outside[outer[0]])
        writes.append(Write(write.invars[2], pair[0] is inner))
    if any(v is not found[0] for v in found):
        return None
    order = _slice(writes, eqns, chain, body.invars[consts + table])
    return None if order is None else Entries(tuple(writes), order, found[0])


def _slice(
    writes: Sequence[Write], eqns: Sequence[Any], chain: Sequence[Any], table: Any
) -> tuple[Any, ...] | None:
    """Return the equations that make the values, unless they read the table."""
    made = {v: e for e in eqns for v in e.outvars}
    needed: set[int] = set()
    live = [w.value for w in writes if not isinstance(w.value, jc.Literal)]
    while live:
        v = live.pop()
        if v is table or any(v in w.outvars for w in chain):
            return None
        if v in made and id(made[v]) not in needed:
            needed.add(id(made[v]))
            live += reads(made[v])
    return tuple(e for e in eqns if id(e) in needed)


def _pair(write: Any, made: dict[Any, Any]) -> tuple[Any, Any] | None:
    """Return the two indices of a scatter of one entry of a matrix."""
    numbers = write.params["dimension_numbers"]
    if (
        tuple(numbers.update_window_dims) != ()
        or tuple(numbers.inserted_window_dims) != (0, 1)
        or tuple(numbers.scatter_dims_to_operand_dims) != (0, 1)
        or write.invars[2].aval.shape
    ):
        return None
    joined = made.get(write.invars[1])
    if joined is None or joined.primitive.name != "concatenate":
        return None
    if len(joined.invars) != 2:
        return None
    a, b = (_index(v, made) for v in joined.invars)
    return None if a is None or b is None else (a, b)


def _index(atom: Any, made: dict[Any, Any]) -> Any:
    """Return the index behind what makes negative ones positive."""
    while not isinstance(atom, jc.Literal):
        eqn = made.get(atom)
        if eqn is None:
            return atom
        name = eqn.primitive.name
        if name in ("broadcast_in_dim", "reshape", "convert_element_type"):
            if not jc.is_integer(eqn.invars[0].aval):
                return None
            atom = eqn.invars[0]
        elif name == "select_n":
            test = made.get(eqn.invars[0])
            if test is None or test.primitive.name != "lt":
                return None
            if literal(test.invars[1]) != 0:
                return None
            a, b = _index(eqn.invars[1], made), _index(test.invars[0], made)
            return a if a is b else None
        else:
            return None
    return None


# ------------------------------------------------------------ emission


def rows_of(plan: Triangle, known: dict[Any, Any], width: int) -> list[Any]:
    """Return the row of each write's values, for all j from 0 on."""
    eqn, p = plan.eqn, plan.eqn.params
    body = jc.open_jaxpr(p["body_jaxpr"])
    skip, consts = p["cond_nconsts"], p["body_nconsts"]
    places = counted(eqn)
    assert places is not None
    inner = body.invars[consts + places[0]]
    env: dict[Any, Any] = {}
    for var, atom in zip(body.invars, eqn.invars[skip:], strict=True):
        if isinstance(atom, jc.Literal):
            env[var] = jnp.asarray(atom.val, jc.dtype_of(atom))
        elif atom in known:
            env[var] = known[atom]

    tables = [
        (e, env[e.invars[0]]) for e in plan.eqns if _reads_row(e, inner, plan, env)
    ]
    tables = [(e, t) for e, t in tables if t.shape[0] >= width]

    def entry(j: Any, rows: Sequence[Any]) -> list[Any]:
        local = {**env, inner: j}
        local.update((e.outvars[0], r) for (e, _), r in zip(tables, rows, strict=True))
        for e in plan.eqns:
            if e.outvars[0] in local:
                continue
            ins = [v.val if isinstance(v, jc.Literal) else local[v] for v in e.invars]
            local.update(zip(e.outvars, jc.rebind(e, ins), strict=True))
        return [
            jnp.asarray(w.value.val, jc.dtype_of(w.value))
            if isinstance(w.value, jc.Literal)
            else local[w.value]
            for w in plan.writes
        ]

    rows = [t[:width, None] for _, t in tables]
    return list(jax.vmap(entry)(lax.iota(inner.aval.dtype, width), rows))


def _reads_row(eqn: Any, inner: Any, plan: Triangle, env: dict[Any, Any]) -> bool:
    """Whether an equation reads the row of a constant at the inner counter."""
    if eqn.primitive.name != "dynamic_slice" or eqn.invars[0] not in env:
        return False
    made = {v: e for e in plan.eqns for v in e.outvars}
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    return tuple(sizes) == (1, *shape[1:]) and _index(eqn.invars[1], made) is inner


def filled(plan: Triangle, start: Any, stacks: Sequence[Any]) -> Any:
    """Return the table with all that was written to it, in order."""
    rows, columns = start.shape
    for write, stack in zip(plan.writes, stacks, strict=True):
        shape = (columns, rows) if write.mirrored else (rows, columns)
        values = jnp.flip(stack, 0) if plan.back else stack
        lows, highs = np.zeros(shape[0], np.int32), np.zeros(shape[0], np.int32)
        at = slice(plan.first, plan.first + len(plan.lows))
        lows[at], highs[at] = plan.lows, plan.highs
        after = shape[0] - plan.first - values.shape[0]
        pads = [(plan.first, after, 0), (0, shape[1] - values.shape[1], 0)]
        values = lax.pad(values, jnp.zeros((), values.dtype), pads)
        j = lax.broadcasted_iota(jnp.int32, shape, 1)
        written = (j >= lows[:, None]) & (j < highs[:, None])
        if write.mirrored:
            values, written = values.T, written.T
        start = jnp.where(written, values, start)
    return start
