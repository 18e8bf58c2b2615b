"""A state that accumulates products and is read by products, in chunks of steps.

`S_t = g_t S_(t-1) + k_t v_t^T` read as `q_t S_t`: inside a chunk the reads are products
of the q's, k's and v's under a triangular mask, and the state goes from chunk to chunk
(linear attention: Katharopoulos et al., 2020; chunks with decay: Yang et al., *Gated
linear attention*, 2024).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rewriter import jax_compat as jc
from rewriter.emit import emitted, value_of
from rewriter.network import Factor, StateRead, contract

Rows = Mapping[Any, Any]


@dataclass(frozen=True)
class Attention:
    """A state, its decay per step, its terms with their signs, and its reads."""

    before: Any  # the state at the start of a step
    after: Any
    decay: tuple[Any, ...]  # scalars whose product it is
    negative: tuple[bool, ...]  # of each term
    reads: tuple[StateRead, ...]
    reverse: bool


class _Weights(NamedTuple):
    """What is left of a term or of the first state at each step of a chunk.

    `within`: (t, s), of the term of step s at step t, before and after that step;
    `first`: (t,), of the first state; `last`: (s,), of the terms at the end; `whole`:
    of the first state.
    """

    within: tuple[Any, Any]
    first: tuple[Any, Any]
    last: Any
    whole: Any


def states_in_chunks(
    a: Attention, rows: Rows, consts: Rows, start: Any, length: int, size: int
) -> tuple[Any, list[Any]]:
    """Return the last state and the rows of each read, chunk by chunk.

    The rest that does not fill a chunk comes last: the first rows in reverse.
    """
    size = min(size, length)
    count, rest = divmod(length, size)
    cut = rest if a.reverse else 0
    whole = {v: x[cut : cut + count * size] for v, x in rows.items()}
    whole = {v: x.reshape(count, size, *x.shape[1:]) for v, x in whole.items()}
    names = list(rows)
    decay = _decay(a, whole, consts)
    fixed = np.ndim(decay) < 2
    weights = _weights(a, decay, size, start.dtype) if fixed else None
    many = None
    if not fixed:  # of all chunks at once: the products of a few steps are many ops
        many = jax.vmap(lambda g: _weights(a, g, size, start.dtype))(decay)

    def step(state: Any, row: Any) -> Any:
        parts, own = row
        known = dict(zip(names, parts, strict=True))
        return _chunk(a, known, consts, state, weights or own)

    state, reads = lax.scan(
        emitted(step), start, ([whole[v] for v in names], many), reverse=a.reverse
    )
    reads = [y.reshape(count * size, *y.shape[2:]) for y in reads]
    if rest:
        at = slice(0, rest) if a.reverse else slice(count * size, length)
        part = {v: x[at] for v, x in rows.items()}
        weights = _weights(a, _decay(a, part, consts), rest, start.dtype)
        state, more = _chunk(a, part, consts, state, weights)
        pairs = zip(reads, more, strict=True)
        reads = [jnp.concatenate((m, y) if a.reverse else (y, m)) for y, m in pairs]
    return state, reads


def states_in_order(
    a: Attention, rows: Rows, consts: Rows, start: Any
) -> tuple[Any, list[Any]]:
    """Return the last state and the rows of each read, step by step."""
    names = list(rows)

    def step(state: Any, parts: Any) -> Any:
        row = {**consts, **dict(zip(names, parts, strict=True))}

        def value(factor: Factor) -> Any:
            return value_of(factor.atom, row), factor.labels

        new = state
        for g in a.decay:
            new = new * value_of(g, row)
        for k, negative in enumerate(a.negative):
            read = a.reads[0]
            term = contract(
                [value(f) for f in read.terms[k]], read.state.labels, read.sizes
            ).reshape(state.shape)
            new = new - term if negative else new + term
        found = []
        for read in a.reads:
            seen = new if read.state.atom is a.after else state
            operands = [*(value(f) for f in read.own), (seen, read.state.labels)]
            found.append(_shaped(contract(operands, read.labels, read.sizes), read))
        return new, found

    return lax.scan(emitted(step), start, [rows[v] for v in names], reverse=a.reverse)


def _chunk(
    a: Attention, rows: Rows, consts: Rows, start: Any, w: _Weights
) -> tuple[Any, list[Any]]:
    """Return the state after a chunk, and the rows of each read in it."""
    found, size = [], w.last.shape[0]
    for read in a.reads:
        t, s, sizes = _axes(read, size)
        at = read.state.atom is a.after
        own = [_operand(f, t, rows, consts) for f in read.own]
        first = [*own, (start, read.state.labels), (w.first[at], (t,))]
        total = contract(first, (t, *read.labels), sizes)
        for term, negative in zip(read.terms, a.negative, strict=True):
            parts = [_operand(f, s, rows, consts) for f in term]
            within = [*own, *parts, (w.within[at], (t, s))]
            more = contract(within, (t, *read.labels), sizes)
            total = total - more if negative else total + more
        found.append(_shaped(total, read, size))
    read = a.reads[0]
    _, s, sizes = _axes(read, size)
    state = start * w.whole
    for term, negative in zip(read.terms, a.negative, strict=True):
        parts = [_operand(f, s, rows, consts) for f in term]
        more = contract([*parts, (w.last, (s,))], read.state.labels, sizes)
        more = more.reshape(start.shape)
        state = state - more if negative else state + more
    return state, found


def _axes(read: StateRead, size: int) -> tuple[int, int, dict[int, int]]:
    """Return labels of the reading and the writing step, and all sizes."""
    t = max(read.sizes, default=-1) + 1
    return t, t + 1, {**read.sizes, t: size, t + 1: size}


def _operand(factor: Factor, axis: int, rows: Rows, consts: Rows) -> Any:
    if isinstance(factor.atom, jc.Literal) or factor.atom not in rows:
        return value_of(factor.atom, consts), factor.labels
    return rows[factor.atom], (axis, *factor.labels)


def _shaped(value: Any, read: StateRead, *rows: int) -> Any:
    return value.reshape(*rows, *read.root.outvars[0].aval.shape)


def _decay(a: Attention, rows: Rows, consts: Rows) -> Any:
    """Return the decay per step: a number, a scalar, or one for each row."""
    if all(isinstance(v, jc.Literal) for v in a.decay):
        return float(np.prod([np.float64(v.val) for v in a.decay]))
    known = {**consts, **rows}
    return functools.reduce(jnp.multiply, [value_of(v, known) for v in a.decay])


def _weights(a: Attention, decay: Any, size: int, dtype: Any) -> _Weights:
    """Return the weights of a chunk with a number, scalar or row per step as decay."""
    lib: Any = np if isinstance(decay, float) else jnp
    e = np.arange(size)
    if np.ndim(decay):
        per_step = jnp.flip(jnp.asarray(decay)) if a.reverse else jnp.asarray(decay)
        passed = jnp.where(e[:, None] > e, per_step[:, None], jnp.ones((), dtype))
        power = jnp.cumprod(passed, axis=0)
        lead = jnp.concatenate([jnp.ones(1, dtype), jnp.cumprod(per_step)])
    else:
        power = lib.power(decay, np.maximum(e[:, None] - e, 0))
        lead = lib.power(decay, np.arange(size + 1))
    after = lib.where(e[:, None] >= e, power, 0)
    before = lib.concatenate([lib.zeros((1, size)), after[:-1]])

    def typed(x: Any) -> Any:
        return jnp.asarray(lib.flip(x) if a.reverse else x, dtype)

    return _Weights(
        (typed(before), typed(after)),
        (typed(lead[:-1]), typed(lead[1:])),
        typed(after[-1]),
        jnp.asarray(lead[-1], dtype),
    )
