"""Rows that a residual scan loads one step ahead.

XLA's CPU backend fuses the load of a row with what reads it. Where columns of the row
are then sliced apart (`split` of the gates of an LSTM), the fused loop is not
vectorised and costs twice as much. A row that the step before has loaded lies in memory
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from rewriter import jax_compat as jc
from rewriter.emit import mark
from rewriter.graph import reads
from rewriter.planes import ELEMENTWISE


def sliced_rows(eqns: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
    """Return the rows of which elementwise work takes parts."""
    return [v for v in rows if _is_sliced(eqns, v)]


def _is_sliced(eqns: Sequence[Any], row: Any) -> bool:
    found = {row}
    for eqn in eqns:
        if not any(v in found for v in reads(eqn)):
            continue
        if eqn.primitive.name in ("slice", "split"):
            return True
        if eqn.primitive.name in ELEMENTWISE:
            found.update(eqn.outvars)
    return False


def bind_residual(
    body: Any,
    consts: Sequence[Any],
    init: Sequence[Any],
    xs: Sequence[Any],
    ahead: Sequence[int],
    **options: Any,
) -> list[Any]:
    """Bind a marked scan that loads some of its xs a step ahead.

    Args:
        body: jaxpr `(*consts, *carry, *x) -> (*carry, *y)`.
        consts: what every step reads.
        init: initial carries.
        xs: stacked rows.
        ahead: which of the xs are loaded by the step before.
        options: length, reverse and unroll.
    """
    if not ahead:
        return jc.bind_scan(mark(body, "residual"), consts, init, xs, **options)
    step = -1 if options["reverse"] else 1
    first = options["length"] - 1 if options["reverse"] else 0
    tables = [xs[k] for k in ahead]
    others = [x for k, x in enumerate(xs) if k not in ahead]
    run = jc.jaxpr_as_fun(body)
    nc, nk, na = len(consts), len(init), len(ahead)

    def loading(*values: Any) -> list[Any]:
        own, whole = values[:nc], values[nc : nc + na]
        carry, loaded = values[nc + na : nc + na + nk], values[nc + na + nk :][:na]
        index, *rest = values[nc + 2 * na + nk :]
        given, late = dict(zip(ahead, loaded, strict=True)), iter(rest)
        row = [given[k] if k in given else next(late) for k in range(len(xs))]
        out = run(*own, *carry, *row)
        new = [lax.dynamic_index_in_dim(t, index + step, keepdims=False) for t in whole]
        return [*out[:nk], *new, index + step, *out[nk:]]

    start = [*init, *(t[first] for t in tables), jnp.asarray(first, jnp.int32)]
    rows = [x[0] for x in others]
    avals = [jc.abstractify(v) for v in (*consts, *tables, *start, *rows)]
    marked = mark(jc.trace(loading, avals, "loading"), "residual")
    out = jc.bind_scan(marked, [*consts, *tables], start, others, **options)
    return [*out[:nk], *out[nk + na + 1 :]]
