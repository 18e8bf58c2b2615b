"""`residual-recomputation` and `row-checkpoint`: what a backward loop makes again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import explain, optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAMES = ("residual-recomputation", "row-checkpoint")
N, D = 20, 9
X, Y = random(N, D), random(7, D, seed=1)
W = random(D, D, seed=2)


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def squares(x, p):
    """Return squared distances to a point."""
    return jnp.sum((x - p) ** 2, axis=1)


LOSSES = {
    "map": lambda x: jnp.sum(jnp.exp(-lax.map(lambda p: squares(x, p), x))),
    "reverse": lambda x: jnp.sum(
        lax.scan(lambda c, p: (c, jnp.tanh(squares(x, p))), 0, x, reverse=True)[1]
    ),
    "sum": lambda x: lax.fori_loop(
        0, N, lambda i, s: s + jnp.sum(jnp.exp(-squares(x, x[i]))), 0.0
    ),
    "count down": lambda x: lax.fori_loop(
        0, N, lambda i, s: s + jnp.sum(jnp.cos(squares(x, x[N - 1 - i]))), 0.0
    ),
    "manhattan": lambda x: jnp.sum(
        lax.map(lambda p: jnp.sum(jnp.abs(x - p), axis=1) ** 2, x)
    ),
    "beside a recurrence": lambda x: jnp.sum(
        lax.scan(lambda c, p: (jnp.sin(c + squares(x, p)),) * 2, x[:, 0], x)[1]
    ),
    "weights": lambda x: jnp.sum(
        jnp.tanh(lax.map(lambda p: 0.1 * jnp.sum((x - p) * p, axis=1), x))
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name):
    """Of both kinds, of values too, and as accurate as the loop's."""
    loss = LOSSES[name]
    ours = assert_fires(NAMES[0], jax.grad(loss), (X,), "made-again", oracle=True)
    assert "made-again" in str(explain(loss)(X).remarks)
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(jax.grad(loss))(np.float64(X)))
    new = np.float64(jax.grad(optimize(loss))(X))
    old = np.float64(jax.grad(loss)(X))
    assert abs(new - exact).max() <= 2 * abs(old - exact).max() + 1e-6
    assert not any(r.kind == "failed" for r in ours.remarks)


@pytest.mark.parametrize("name", LOSSES)
def test_second_derivatives(name):
    loss, v = LOSSES[name], random(N, D, seed=3)

    def product(f):
        return lambda x: jnp.vdot(jax.grad(f)(x), v)

    old = jax.grad(product(loss))(X)
    scale = abs(old).max()
    for new in (jax.grad(product(optimize(loss))), optimize(jax.grad(product(loss)))):
        np.testing.assert_allclose(new(X) / scale, old / scale, atol=3e-5)


def test_no_array_of_all_pairs_is_stored():
    """Nothing between the loops has an axis for each point, point and feature."""

    def largest(f):
        stats = jax.jit(f).lower(big).compile().memory_analysis()
        return stats.temp_size_in_bytes

    def loss(x):
        return jnp.sum(jnp.exp(-lax.map(lambda p: squares(x, p), x)))

    big = random(120, 64)
    pairs = 120 * 120 * 64 * 4
    assert largest(jax.grad(loss)) > pairs
    assert largest(optimize(jax.grad(loss))) < pairs / 2
    assert largest(jax.grad(optimize(loss))) < pairs / 2


declines = Cases()


@declines.add(X)
def _dear(x):
    def step(c, p):
        return c, jnp.sum(lax.lgamma(3 + jnp.sin(x - p)), axis=1)

    return jax.grad(lambda x: jnp.sum(lax.scan(step, 0.0, x)[1]))(x)


@declines.add(X)
def _from_a_carry(x):
    def step(c, p):
        c = jnp.sin(c + x * p)
        return c, jnp.sum(c * c, axis=1)

    return jax.grad(lambda x: jnp.sum(lax.scan(step, x * 0, x)[1]))(x)


@declines.add(X)
def _read_whole(x):
    rows = lax.map(lambda p: x - p, x)
    return lax.scan(lambda c, r: (c + jnp.sin(r @ W).sum(), None), 0.0, rows)[0], rows


@declines.add(X, Y)
def _another_trip(x, y):
    rows = lax.map(lambda p: y - p, x)
    return lax.scan(lambda c, r: (c + jnp.sin(c * r), None), 0.0 * y, rows[1:])[0]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAMES[0], fn, args, oracle=True, **options)


def test_a_loop_that_the_user_keeps():
    from rewriter import keep

    def loss(x):
        with keep():
            return LOSSES["map"](x)

    assert_declines(NAMES[0], jax.grad(loss), (X,))
