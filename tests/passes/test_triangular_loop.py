"""`triangular-loop`: an inner loop up to the outer counter, masked."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "triangular-loop"
N = 60
X = random(N, 3)
fires, declines = Cases(), Cases()


def nest(x, start, stop, add, first=0.0):
    """Return a double loop whose inner one runs from `start(i)` to `stop(i)`."""

    def outer(i, e):
        return lax.fori_loop(start(i), stop(i), lambda j, e: add(x, i, j, e), e)

    return lax.fori_loop(0, x.shape[0], outer, first)


def _near(x, i, j):
    return 1 / (1 + jnp.sum((x[i] - x[j]) ** 2))


@fires.add(X)
def _lower_triangle(x):
    return nest(x, lambda i: 0, lambda i: i, lambda x, i, j, e: e + _near(x, i, j))


@fires.add(X)
def _upper_triangle(x):
    return nest(x, lambda i: i + 1, lambda i: N, lambda x, i, j, e: e + _near(x, i, j))


@fires.add(X)
def _band(x):
    return nest(
        x,
        lambda i: jnp.maximum(i - 2, 0),
        lambda i: jnp.minimum(i + 3, N),
        lambda x, i, j, e: e + _near(x, i, j),
    )


@fires.add(X)
def _singular_diagonal(x):
    def add(x, i, j, e):
        return e + 1 / jnp.sum((x[i] - x[j]) ** 2)

    return nest(x, lambda i: 0, lambda i: i, add)


@fires.add(X)
def _minimum(x):
    def add(x, i, j, e):
        return jnp.minimum(e, jnp.sum((x[i] - x[j]) ** 2))

    return nest(x, lambda i: 0, lambda i: i, add, jnp.inf)


@fires.add((X * 9).astype(np.int32))
def _integers(x):
    def add(x, i, j, e):
        return e - jnp.max(jnp.abs(x[i] - x[j]))

    return nest(x, lambda i: 0, lambda i: i, add, 7)


@fires.add(X)
def _vectors(x):
    def add(x, i, j, e):
        return e + (x[i] - x[j]) * _near(x, i, j)

    return nest(x, lambda i: 0, lambda i: i, add, jnp.zeros(3))


@declines.add(X)
def _recurrence(x):
    def add(x, i, j, e):
        return jnp.sin(e + _near(x, i, j))

    return nest(x, lambda i: 0, lambda i: i, add)


@declines.add(X, np.arange(N, dtype=np.int32))
def _bounds_from_data(x, bounds):
    return nest(
        x, lambda i: 0, lambda i: bounds[i], lambda x, i, j, e: e + _near(x, i, j)
    )


@declines.add(X, code="sparse")
def _sparse(x):
    return nest(
        x,
        lambda i: 0,
        lambda i: jnp.where(i == 5, 50, 1),
        lambda x, i, j, e: e + _near(x, i, j),
    )


@declines.add(X, numerics="strict")
def _strict(x):
    return nest(x, lambda i: 0, lambda i: i, lambda x, i, j, e: e + _near(x, i, j))


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "masked", **options)
    assert "while" not in report.after.outline()


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)
