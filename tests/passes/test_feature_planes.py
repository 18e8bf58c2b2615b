"""`feature-planes`: reductions over a few features, column by column."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter.printer import walk
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "feature-planes"
T3, T40 = random(300, 3), random(200, 40, seed=1)
P3, P40 = random(50, 3, seed=2), random(50, 40, seed=3)
fires, declines = Cases(), Cases()


@fires.add(T3, P3)
def _euclidean(t, p):
    return lax.map(lambda r: jnp.sqrt(jnp.sum((t - r) ** 2, axis=1)), p)


@fires.add(T40, P40)
def _taxicab(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=1), p)


@fires.add(T40, P40)
def _chebyshev(t, p):
    return lax.map(lambda r: jnp.max(jnp.abs(r - t), axis=1), p)


@fires.add(T40, P40)
def _canberra(t, p):
    def row(r):
        return jnp.sum(jnp.abs(t - r) / (jnp.abs(t) + jnp.abs(r)), axis=-1)

    return lax.map(row, p)


@fires.add(T40, P40, np.abs(T40[0]))
def _weighted(t, p, w):
    return lax.map(lambda r: jnp.sqrt(jnp.sum(w * (t - r) ** 2, axis=1)), p)


@fires.add(T3, P3)
def _with_a_value_per_row(t, p):
    scale = jnp.arange(300.0)
    return lax.map(lambda r: jnp.prod(t * scale[:, None] - r, axis=1), p)


@fires.add(T3, P3)
def _all_within(t, p):
    return lax.map(lambda r: jnp.all(jnp.abs(t - r) < 0.5, axis=1), p)


@fires.add(T3, P3)
def _reduced_again(t, p):
    return lax.map(lambda r: jnp.min(jnp.sum((t - r) ** 2, axis=1)), p)


@fires.add(T3, P3)
def _in_a_recurrence(t, p):
    def step(c, r):
        c = jnp.cos(c + jnp.sum(jnp.abs(t - r), axis=1))
        return c, c

    return lax.scan(step, jnp.zeros(300), p)


@fires.add((T3 * 9).astype(np.int32), (P3 * 9).astype(np.int32))
def _integers(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=1), p)


@fires.add(random(8, 100, 3), P3)
def _three_axes(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=-1), p)


@declines.add(random(200, 70), random(50, 70))
def _many_features(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=1), p)


@declines.add(T40, P40)
def _reduced_again_wide(t, p):
    return lax.map(lambda r: jnp.min(jnp.sum(jnp.abs(t - r), axis=1)), p)


@declines.add(T3[:20], P3)
def _short_table(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=1), p)


@declines.add(T3, P3)
def _table_that_changes(t, p):
    def step(t, r):
        return t * 0.9, jnp.sum(jnp.abs(t - r), axis=1)

    return lax.scan(step, t, p)[1]


@declines.add(T3, P3)
def _other_axis(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=0), p)


@declines.add(T3, P3, memory_budget=1000)
def _no_room(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=1), p)


@declines.add(T3, P3, numerics="strict")
def _strict(t, p):
    return lax.map(lambda r: jnp.sum(jnp.abs(t - r), axis=1), p)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "columns", **options)
    for e in walk(report.after.jaxpr):
        last = e.invars[0].aval.ndim - 1 if e.invars else 0
        if e.primitive.name.startswith("reduce_"):
            assert tuple(e.params["axes"]) != (last,) or last == 0, e


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)
