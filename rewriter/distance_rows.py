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

from rewriter import decisions, winners
from rewriter import jax_compat as jc
from rewriter.emit import emitted
from rewriter.graph import reads, variant_values
from rewriter.intervals import Decisions, Ends, is_choice
from rewriter.orient import evaluate

TAU = 0.13  # a distance below this part of the norms may have lost digits
GRIDS = (1.0, 16.0, 256.0)  # data that are multiples of 1/g
FIXED = 7  # operands: the row, the table, and what is prepared of it
Products = tuple[Any, Any, Any]  # -2 x.y (b, m), and the norms (b,) and (m,)


def prepare(table: Any, weights: Any = None) -> list[Any]:
    """Return centre, centred rows, their norms, the grids that fit, and the weights.

    Args:
        table: rows of shape (m, d).
        weights: of the features (d,), or None; NaN where they can not be used.
    """
    fits = on_grids(table) & (weights is None)
    weights = jnp.ones(table.shape[1:], table.dtype) if weights is None else weights
    centre = jnp.where(jnp.any(fits), 0, centre_of(table))
    rows = table - centre
    norms = jnp.sum(weights * rows * rows, axis=-1)
    return [centre, rows, norms, fits, weights]


def centre_of(rows: Any) -> Any:
    """Return the mean of the finite entries (d,), or zero."""
    mean = jnp.mean(jnp.where(jnp.isfinite(rows), rows, 0), axis=0)
    return jnp.where(jnp.isfinite(mean), mean, 0)


def usual_norms(dtype: Any) -> tuple[float, float]:
    """Return the ends between which squared norms neither lose digits nor overflow."""
    return (2.0**-80, 2.0**100) if dtype.itemsize == 4 else (2e-300, 1e300)


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
    known: Decisions
    mapped: tuple[bool, ...]
    row_ns: float
    row_bytes: int
    values: bool  # some output is a number that inherits the error
    guarded: bool

    def batched(self, values: Sequence[Any], jaxpr: Any) -> list[Any]:
        """Compute all rows; those in doubt by the original step."""
        products = _products(values)
        if not self.guarded:
            return self._plain(products, values)
        rows, fits = values[0], values[5]
        return lax.cond(
            jnp.any(fits & on_grids(rows)),
            self._plain,
            lambda products, values: self._checked(products, values, jaxpr),
            products,
            list(values),
        )

    def _plain(self, products: Products, values: Sequence[Any]) -> list[Any]:
        """Compute all rows as if the products were exact."""
        cross, s, t = products

        def one(cross: Any, norm: Any, *others: Any) -> list[Any]:
            env = self._environment(jnp.maximum((norm + t) + cross, 0), others)
            evaluate(self.eqns, env, variant_values(self.eqns, {self.squared}))
            return self._outputs(env)

        return self._over_rows(one, [cross, s], values[FIXED:])

    def _checked(
        self, products: Products, values: Sequence[Any], jaxpr: Any
    ) -> list[Any]:
        """Compute all rows, and those in doubt again."""
        rows, table, weights = *values[:2], values[FIXED - 1]
        cross, s, t = products
        low, high = usual_norms(s.dtype)
        doubt = ~((s > low) & (s < high)) | ~jnp.all(t < high * 2.0**20)
        unit = float(jnp.finfo(cross.dtype).eps) / 2
        d = self.features
        if self.values:
            total = s[:, None] + t[None]
            cross, several = _mended(rows, table, weights, total + cross, total)
            doubt |= several
        error = unit * (d + 12)  # of the norms and of the distance
        least, most = t * (1 - 2 * error), t * (1 + 2 * error)
        computes = any(
            self.squared in reads(e)
            and id(e) not in self.known.deciding
            and not is_choice(e)
            for e in self.eqns
        )

        def one(cross: Any, norm: Any, row: Any, *others: Any) -> Any:
            if self.values:
                squared = jnp.maximum(cross, 0)
                pair = _around(squared, unit * (d + 40))
            else:
                squared = jnp.maximum((norm + t) + cross, 0)
                down, up = norm * (1 - 2 * error), norm * (1 + 2 * error)
                low = (down + least) + cross * (1 - error)
                high = (up + most) + cross * (1 + error)
                if computes:
                    low, high = jnp.maximum(low, 0), jnp.maximum(high, 0)
                pair = Ends(low, high, True)

            def direct(index: Any) -> tuple[Any, Ends]:
                near = table.at[index].get(mode="promise_in_bounds")
                value = jnp.sum(weights * (near - row) ** 2, axis=-1)
                return value, _around(value, 2 * unit * (d + 8))

            env = self._environment(squared, others)
            ends = {self.squared: pair}
            doubt = decisions.run(self.eqns, self.known, env, ends, direct)
            return self._outputs(env), doubt

        out, unsure = self._over_rows(one, [cross, s, rows], values[FIXED:])
        doubt |= unsure
        return lax.cond(
            jnp.any(doubt),
            lambda out: self._repeated(doubt, out, values, jaxpr),
            lambda out: out,
            out,
        )

    def _environment(self, distances: Any, others: Sequence[Any]) -> dict[Any, Any]:
        return {**dict(zip(self.rest, others, strict=True)), self.squared: distances}

    def _outputs(self, env: dict[Any, Any]) -> list[Any]:
        return [v.val if isinstance(v, jc.Literal) else env[v] for v in self.outs]

    def _over_rows(self, one: Any, rows: Sequence[Any], rest: Sequence[Any]) -> Any:
        axes = [0] * len(rows) + [0 if m else None for m in self.mapped[FIXED:]]
        return jax.vmap(one, in_axes=axes)(*rows, *rest)

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


def _products(values: Sequence[Any]) -> Products:
    """Return `-2 x.y` of all pairs (b, m), and the norms (b,) and (m,)."""
    rows, _, centre, points, t, _, weights = values[:FIXED]
    x = rows - centre
    weighed = weights * x
    cross = lax.dot_general(
        -2 * weighed, points, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
    )
    return cross, jnp.sum(weighed * x, axis=-1), t


def _around(value: Any, error: float) -> Ends:
    return Ends(value * (1 - error), value * (1 + error), True)


def _mended(
    rows: Any, table: Any, weights: Any, squared: Any, total: Any
) -> tuple[Any, Any]:
    """Recompute the one near entry of each row; rows with more are in doubt."""
    near = ~(squared > TAU * total)
    where, several = winners.only(near, 1)
    direct = jnp.sum(weights * (rows - table[where]) ** 2, axis=1)
    column = lax.broadcasted_iota(jnp.int32, squared.shape, 1)
    only = near & (column == where[:, None])
    return jnp.where(only, direct[:, None], squared), several


def price(features: int, rows: int, model: Any) -> float:
    """Return ns of one row of distances and the checks on it."""
    return 2.0 * features * rows * model.machine.flop_batch + 0.5 * rows


def row_bytes(rows: int, itemsize: int) -> int:
    """Return what a row holds while its block is computed."""
    return 4 * rows * itemsize
