"""Recognition of squared differences between a row and all rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rewriter import jax_compat as jc
from rewriter.graph import Loop


def squared_distance(
    loop: Loop, is_row: Callable[[Any], bool]
) -> tuple[Any, Any, Any, set[int]] | None:
    """Return the distance variable, the row, the matrix, and the equations used up.

    The matrix is a loop constant; `is_row` says which variables may be the row.
    """
    made = {v: e for e in loop.eqns for v in e.outvars}
    consts = {v for v, _ in loop.consts}
    for total in loop.eqns:
        if total.primitive.name != "reduce_sum" or tuple(total.params["axes"]) != (1,):
            continue
        square = _maker(made, total.invars[0])
        difference = None if square is None else _maker(made, _root(square))
        if difference is None or difference.primitive.name != "sub":
            continue
        for a, b in (difference.invars, difference.invars[::-1]):
            spread = _maker(made, b)
            row = _row_of(spread)
            if row is None or a not in consts or not is_row(row):
                continue
            aval = a.aval
            if len(aval.shape) != 2 or row.aval.shape != aval.shape[1:]:
                continue
            if (
                not jnp.issubdtype(aval.dtype, jnp.floating)
                or aval.dtype.itemsize < 4
                or (jc.is_sharded(aval))
            ):
                continue
            used = {id(e) for e in (total, square, difference, spread)}
            return total.outvars[0], row, a, used
    return None


def _maker(made: dict[Any, Any], atom: Any) -> Any:
    return None if isinstance(atom, jc.Literal) else made.get(atom)


def _root(square: Any) -> Any:
    """Return what an equation squares; a literal if it does not square."""
    name = square.primitive.name
    if name == "square" or (name == "integer_pow" and square.params["y"] == 2):
        return square.invars[0]
    if name == "mul" and square.invars[0] is square.invars[1]:
        return square.invars[0]
    return jc.Literal(0, square.outvars[0].aval)


def _row_of(spread: Any) -> Any:
    """Return the vector that an equation makes the rows of."""
    if spread is None or isinstance(spread.invars[0], jc.Literal):
        return None
    name, shape = spread.primitive.name, spread.outvars[0].aval.shape
    source = spread.invars[0]
    if (
        len(shape) != 2
        or len(source.aval.shape) != 1
        or source.aval.shape[0] != shape[1]
    ):
        return None
    if name == "broadcast_in_dim":
        return source if tuple(spread.params["broadcast_dimensions"]) == (1,) else None
    return source if name in ("reshape", "expand_dims") and shape[0] == 1 else None
