"""Rows of squared distances to a table, by one matrix product, and what follows them.

The batched form of a step that computes distances and decides or sums over them. Each
row is checked: entries that may have lost digits, and decisions that the error of the
expansion could turn, send the row through the original step. Rows of data that a grid
holds (integers, multiples of 1/16 or 1/256) are exact either way and are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rewriter import intervals
from rewriter import jax_compat as jc
from rewriter.emit import emitted

TAU = 0.13  # a distance below this part of the norms may have lost digits
GRIDS = (1.0, 16.0, 256.0)  # data that are multiples of 1/g


def prepare(table: Any) -> list[Any]:
    """Return centre, centred rows, their squared norms, and the grids that fit."""
    fits = on_grids(table)
    centre = jnp.mean(jnp.where(jnp.isfinite(table), table, 0), axis=0)
    centre = jnp.where(jnp.isfinite(centre) & ~jnp.any(fits), centre, 0)
    rows = table - centre
    return [centre, rows, jnp.sum(rows * rows, axis=-1), fits]


def on_grids(rows: Any) -> Any:
    """Return for each grid whether sums of squared differences are exact on it."""
    info = jnp.finfo(rows.dtype)
    limit = 2.0 ** (info.nmant + 1) / (4 * rows.shape[-1])
    grids = jnp.asarray(GRIDS, rows.dtype)
    scaled = rows[..., None] * grids
    whole = jnp.all(scaled == jnp.round(scaled), axis=(-3, -2))
    most = jnp.max(jnp.abs(rows)) * grids
    return whole & (most * most < limit)


@dataclass(frozen=True, eq=False)
class RowsOfDistances:
    """The batched form; operands are the row, the table, its preparation, the rest."""

    squared: Any  # the body's variable for the distances
    features: int
    eqns: tuple[Any, ...]  # what follows, in order
    rest: tuple[Any, ...]  # variables that it reads, the other operands
    outs: tuple[Any, ...]
    known: intervals.Decisions
    mapped: tuple[bool, ...]
    row_ns: float
    row_bytes: int
    values: bool  # some output is a number that inherits the error
    guarded: bool

    def batched(self, values: Sequence[Any], jaxpr: Any) -> list[Any]:
        """Compute all rows; those in doubt by the original step."""
        rows, table, centre, points, t, fits = values[:6]
        rest = values[6:]
        x = rows - centre
        s = jnp.sum(x * x, axis=-1)
        product = lax.dot_general(
            -2 * x, points, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
        )
        total = s[:, None] + t[None]
        squared = total + product
        low, high = (2.0**-80, 2.0**100) if s.dtype.itemsize == 4 else (2e-300, 1e300)
        doubt = ~((s > low) & (s < high))
        if self.guarded and self.values:
            squared, several = _mended(rows, table, squared, total)
            doubt |= several
        squared = jnp.maximum(squared, 0)
        out, unsure = self._follow(squared, s, t, rest)
        if not self.guarded:
            return out
        doubt |= unsure

        def repeated(out: list[Any]) -> list[Any]:
            exact = jnp.any(fits & on_grids(rows))
            return self._repeated(doubt & ~exact, out, values, jaxpr)

        return lax.cond(jnp.any(doubt), repeated, lambda out: out, out)

    def _follow(
        self, squared: Any, s: Any, t: Any, rest: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        """Run what follows on every row; also say which decisions are in doubt."""
        unit = float(jnp.finfo(squared.dtype).eps) / 2
        d = self.features

        def one(distances: Any, norm: Any, *others: Any) -> Any:
            env = dict(zip(self.rest, others, strict=True))
            env[self.squared] = distances
            if self.values:
                error = distances * (unit * (d + 40))
            else:
                error = (norm + t) * (unit * (d + 6)) + distances * (unit * (d + 6))
            ends = {
                self.squared: (jnp.maximum(distances - error, 0), distances + error)
            }
            doubt = intervals.run(self.eqns, self.known, env, ends)
            outs = [v.val if isinstance(v, jc.Literal) else env[v] for v in self.outs]
            return outs, doubt

        axes = [0 if m else None for m in self.mapped[6:]]
        return jax.vmap(one, in_axes=(0, 0, *axes))(squared, s, *rest)

    def _repeated(
        self, doubt: Any, out: list[Any], values: Sequence[Any], jaxpr: Any
    ) -> list[Any]:
        """Run the original step on the rows in doubt, in place."""
        count = jnp.sum(doubt)
        listed = jnp.nonzero(doubt, size=doubt.shape[0])[0]
        step = jc.jaxpr_as_fun(jaxpr)

        def again(state: Any) -> Any:
            k, outs = state
            i = listed[k]
            args = [
                lax.dynamic_index_in_dim(v, i, keepdims=False) if m else v
                for v, m in zip(values, self.mapped, strict=True)
            ]
            new = [
                lax.dynamic_update_index_in_dim(o, y.astype(o.dtype), i, 0)
                for o, y in zip(outs, step(*args), strict=True)
            ]
            return k + 1, new

        start = (jnp.zeros((), count.dtype), list(out))
        return lax.while_loop(lambda s: s[0] < count, emitted(again, "again"), start)[1]


def _mended(rows: Any, table: Any, squared: Any, total: Any) -> tuple[Any, Any]:
    """Recompute the one near entry of each row; rows with more are in doubt."""
    near = ~(squared > TAU * total)
    column = lax.broadcasted_iota(jnp.int32, squared.shape, 1)
    count = jnp.sum(near.astype(jnp.int32), axis=1)
    where = jnp.sum(jnp.where(near, column, 0), axis=1)
    where = jnp.minimum(where, squared.shape[1] - 1)
    direct = jnp.sum((rows - table[where]) ** 2, axis=1)
    only = (column == where[:, None]) & (count == 1)[:, None]
    return jnp.where(only, direct[:, None], squared), count > 1


def price(features: int, rows: int, model: Any) -> float:
    """Return ns of one row of distances and the checks on it."""
    return 2.0 * features * rows * model.machine.flop_batch + 0.8 * rows


def row_bytes(rows: int, itemsize: int) -> int:
    """Return what a row holds while its block is computed."""
    return 4 * rows * itemsize
