"""`invariant-carry`: constants that are carried, and carries that only look alike."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "invariant-carry"
W, X = random(64, 64, seed=1), random(20, 64)
fires, declines = Cases(), Cases()

# JAX makes plain invariant carries constants itself; it does not look into a jit.
same = jax.jit(lambda value: value)


@fires.add(W, X, outcome="batched", loops=0, ulps=64)
def _matrix_in_a_while(w, x):
    def body(c):
        i, w, s = c
        return i + 1, same(w), s + jnp.tanh(w @ x[i])

    return lax.while_loop(lambda c: c[0] < 20, body, (0, w, jnp.zeros(64)))


@fires.add(W, X, loops=0)
def _two_of_three(w, x):
    def body(c):
        a, b, t, out = c
        return same(a), same(b), t + 1, out.at[t].set(jnp.tanh(a @ x[t]) + b * t)

    start = (w, x[0], 0, jnp.zeros((20, 64)))
    return lax.while_loop(lambda c: c[2] < 20, body, start)


@fires.add(1.5, X, loops=1)
def _weak_type_is_kept(a, x):
    def body(c):
        i, a, h = c
        return i + 1, same(a), jnp.sin(h + x[i] * a)

    return lax.while_loop(lambda c: c[0] < 20, body, (0, a, x[0]))


@fires.add(W, X)
def _one_step(w, x):
    body = lambda c: (c[0] + 1, same(c[1]), jnp.tanh(c[1] @ x[c[0]]))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < 1, body, (0, w, x[0]))


@declines.add(X[0], X[1], X, code="none")
def _swap(a, b, x):
    return lax.scan(lambda c, r: ((c[1], c[0]), c[0] * r), (a, b), x)


@declines.add(X[0], X, code="none")
def _copy_of_another(a, x):
    def step(c, r):
        first, second = c
        return (first + r, first), second

    return lax.scan(step, (a, a), x)


@declines.add(X[0], X, code="none")
def _times_one(a, x):
    return lax.scan(lambda c, r: (c * 1.0, c + r), a, x)


@declines.add(X[0], X, code="none")
def _replaced_by_a_constant(a, x):
    return lax.scan(lambda c, r: (jnp.zeros(64), c + r), a, x)


@declines.add(X[0], X, code="none")
def _replaced_by_its_own_start(a, x):
    """The start is a different value in the first step only to the eye."""
    return lax.scan(lambda c, r: (a, c + r), a, x)


@declines.add(X[0], X, code="none")
def _nearly_always_itself(a, x):
    return lax.scan(lambda c, r: (jnp.where(r[0] > 9, r, c), c + r), a, x)


@declines.add(X[0], X, code="none")
def _through_a_round_trip(a, x):
    def step(c, r):
        return c.astype(jnp.bfloat16).astype(jnp.float32), c + r

    return lax.scan(step, a, x)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "constant", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


@pytest.mark.parametrize("reverse", [False, True])
def test_in_a_scan(reverse):
    """JAX takes such carries out of a scan itself."""

    def f(w, x):
        return lax.scan(lambda w, r: (w, jnp.tanh(w @ r)), w, x, reverse=reverse)

    assert_declines(NAME, f, (W, X), loops=0, outcome="batched")


def test_zero_steps():
    """The final value is the start."""
    f = lambda a: lax.fori_loop(0, 0, lambda i, c: c, a)  # noqa: E731
    assert (optimize(f)(X) == X).all()
