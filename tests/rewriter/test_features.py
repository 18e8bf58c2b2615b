"""`features`: reductions over a short last axis, column by column."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rewriter import jax_compat as jc
from rewriter.features import components, feature_reduction
from rewriter.inline import inline
from tests.helpers import random

T, P = random(50, 3), random(3, seed=1)
CUBE = random(5, 10, 3, seed=2)


def found(fn, table, *rows):
    """Return the reduction of a function whose first argument is a table."""
    closed = jax.make_jaxpr(fn)(table, *rows)
    eqns, _, extra = inline(closed.jaxpr.eqns, True)
    made = {v: e for e in eqns for v in e.outvars}
    ins = closed.jaxpr.invars
    env = dict(zip(ins, (table, *rows), strict=True)) | dict(extra)
    for eqn in eqns:
        values = [v.val if isinstance(v, jc.Literal) else env[v] for v in eqn.invars]
        env.update(zip(eqn.outvars, jc.rebind(eqn, values), strict=True))
    return feature_reduction(eqns[-1], made, lambda v: v is ins[0]), env


def by_columns(fn, table, *rows):
    """Evaluate a function column by column."""
    reduction, env = found(fn, table, *rows)
    columns = {t: jnp.moveaxis(env[t], -1, 0) for t in reduction.tables}
    return components(reduction, columns, {v: env[v] for v in reduction.small})


REDUCTIONS = {
    "taxicab": lambda t, p: jnp.sum(jnp.abs(t - p), axis=-1),
    "chebyshev": lambda t, p: jnp.max(jnp.abs(t - p), axis=-1),
    "least": lambda t, p: jnp.min(t * p, axis=-1),
    "product": lambda t, p: jnp.prod(t - p, axis=-1),
    "any": lambda t, p: jnp.any(t > p, axis=-1),
    "all": lambda t, p: jnp.all(t > p - 1, axis=-1),
    "count": lambda t, p: jnp.sum((t > p).astype(int), axis=-1),
    "selected": lambda t, p: jnp.sum(jnp.where(t > p, t, 2 * p), axis=-1),
    "selected_whole": lambda t, p: jnp.sum(jnp.where(p[0] > 0, t, p - t), axis=-1),
    "scaled": lambda t, p: jnp.sum(p[1] * t / (1 + jnp.abs(p)), axis=-1),
    "table_twice": lambda t, p: jnp.sum(t * t + jnp.sin(t) * p, axis=-1),
}


TABLES = {"rows": T, "cube": CUBE, "one": CUBE[:, :1], "two_features": T[:, :2]}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_values(name, table):
    table = TABLES[table].copy()
    table.flat[4], table.flat[7] = np.nan, np.inf
    p, fn = P[: table.shape[-1]], REDUCTIONS[name]
    got, want = by_columns(fn, table, p), jax.jit(fn)(table, p)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8", "int32"])
@pytest.mark.parametrize("name", ["chebyshev", "least", "any"])
def test_dtypes(name, dtype):
    """What is exact is so in every type."""
    table, p = (jnp.asarray(v * 10, dtype) for v in (abs(T), abs(P)))
    got, want = (f(REDUCTIONS[name]) for f in (_columns(table, p), _whole(table, p)))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def _columns(table, p):
    return lambda fn: by_columns(fn, table, p)


def _whole(table, p):
    return lambda fn: fn(table, p)


def test_spread_along_the_rows():
    """A value for each row, not for each feature."""
    square, weights = random(3, 3), random(3, seed=5)
    for axis in (0, 1):
        fn = lambda t, w, axis=axis: jnp.sum(  # noqa: E731
            jnp.abs(t - jnp.expand_dims(w, axis)), axis=-1
        )
        got = by_columns(fn, square, weights)
        np.testing.assert_allclose(got, fn(square, weights), rtol=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_is_read(name):
    reduction, env = found(REDUCTIONS[name], T, P)
    assert reduction.count == 3
    assert len(reduction.tables) == 1
    assert env[reduction.tables[0]] is T
    assert all(v.aval.size <= 3 for v in reduction.small)


@pytest.mark.parametrize(
    "fn",
    [
        lambda t, p: jnp.sum(t - p, axis=0),
        lambda t, p: jnp.sum(t - p),
        lambda t, p: jnp.argmax(t - p, axis=-1),
        lambda t, p: jnp.cumsum(t - p, axis=-1),
        lambda t, p: jnp.sum(jnp.sort(t - p, axis=-1), axis=-1),
        lambda t, p: jnp.sum(t[:, ::-1] - p, axis=-1),
        lambda t, p: jnp.sum(t @ t.T @ t - p, axis=-1),
        lambda t, p: jnp.sum(jnp.broadcast_to(p, (50, 3)), axis=-1),
        lambda t, p: jnp.sum(jnp.outer(t[:, 0], p), axis=-1) + t[0, 0],
    ],
)
def test_other_reductions(fn):
    assert found(fn, T, P)[0] is None


def test_shared_values_are_visited_once():
    """Twenty squarings of one value are twenty equations, not a million."""

    def fn(t, p):
        y = t - p
        for _ in range(24):
            y = 0.5 * y * y
        return jnp.sum(y, axis=-1)

    assert len(found(fn, T, P)[0].eqns) < 60
    want = jax.jit(fn)(T, P)
    np.testing.assert_allclose(by_columns(fn, T, P), want, rtol=1e-5)
