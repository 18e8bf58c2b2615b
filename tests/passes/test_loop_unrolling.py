"""`loop-unrolling`: cheap steps on a long carry, four at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "loop-unrolling"
P = random(103)
X = np.random.default_rng(1).uniform(-0.9, 0.9, 2000).astype("f")
fires, declines = Cases(), Cases()


@fires.add(P, X)
def _horner(p, x):
    return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), p)[0]


@fires.add(P, X)
def _horner_by_index(p, x):
    return lax.fori_loop(0, 103, lambda i, y: y * x + p[i], jnp.zeros_like(x))


@fires.add(P, X)
def _clenshaw_reverse(p, x):
    def step(b, c):
        return (c + 2 * x * b[0] - b[1], b[0]), None

    return lax.scan(step, (x * 0, x * 0), p, reverse=True)[0]


@declines.add(P, X)
def _stacked(p, x):
    return lax.scan(lambda y, c: (y * x + c, y), jnp.zeros_like(x), p)


@declines.add(P, X[:100].copy())
def _short_carry(p, x):
    return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), p)[0]


@declines.add(P, X)
def _read_twice(p, x):
    return lax.scan(lambda y, c: (y * y + c, None), x * 0, p * 0.1)[0]


@declines.add(P, X)
def _dear(p, x):
    return lax.scan(lambda y, c: (jnp.sin(y) * x + c, None), x * 0, p)[0]


@declines.add(random(103, 2000), X)
def _long_rows(p, x):
    return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), p)[0]


@declines.add(P[:9].copy(), X)
def _few_steps(p, x):
    return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), p)[0]


@declines.add(P, X)
def _unrolled_by_the_user(p, x):
    return lax.scan(lambda y, c: (y * x + c, None), jnp.zeros_like(x), p, unroll=2)[0]


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "unrolled", outcome="unrolled", **options)
    (loop,) = report.after.loops
    assert loop.eqn.params["unroll"] == 4


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_same_order():
    """Unrolling changes no bit of the steps' arithmetic beyond what jit does."""
    from rewriter import optimize

    got = optimize(_horner, numerics="strict")(P, X)
    np.testing.assert_allclose(got, jax.jit(_horner)(P, X), rtol=1e-5, atol=1e-6)
