"""`known-predicate`: selections that go the same way at every step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "known-predicate"
N = 40
X, W = random(N, 6), random(6, 6, seed=1)
fires, declines = Cases(), Cases()


def chosen(predicate, length=N, first=0):
    """Return a recurrence that computes a cosine or a sine, as a counter says."""

    def f(x):
        def step(i, c):
            return jnp.where(predicate(i), jnp.sin(W @ c), jnp.cos(c @ W))

        return lax.fori_loop(first, first + length, step, x[0])

    return f


fires.add(X, without=("cos",))(chosen(lambda i: i < N))
fires.add(X, without=("cos",))(chosen(lambda i: i >= 0))
fires.add(X, without=("sin",))(chosen(lambda i: i == N))
fires.add(X, without=("sin",))(chosen(lambda i: i < 5, first=5))
fires.add(X, without=("cos",))(chosen(lambda i: (i * i >= 0) & (i < N)))
fires.add(X, without=("cos",))(chosen(lambda i: i % 3 < 3))
fires.add(X, without=("cos",))(chosen(lambda i: jnp.full(6, True)))
fires.add(X, without=("cos",))(chosen(lambda i: jnp.arange(6) + i >= 0))
fires.add(X, without=("cos",), numerics="strict")(chosen(lambda i: i < N))


@fires.add(X, without=("cos",))
def _counts_down(x):
    def step(c, i):
        return jnp.where(i >= 0, jnp.sin(W @ c), jnp.cos(c)), i

    return lax.scan(step, x[0], jnp.arange(N), reverse=True)


@fires.add(X, without=("cos", "exp"))
def _one_of_three(x):
    def step(i, c):
        cases = jnp.sin(W @ c), jnp.cos(c), jnp.exp(c)
        return lax.select_n(jnp.int32(i // N), *cases)

    return lax.fori_loop(0, N, step, x[0])


@fires.add(X, without=("cos", "exp"))
def _a_selection_in_a_selection(x):
    def step(i, c):
        inner = jnp.where(i < N, jnp.sin(W @ c), jnp.cos(c))
        return jnp.where(i < 2 * N, inner, jnp.exp(c))

    return lax.fori_loop(0, N, step, x[0])


@fires.add(X)
def _a_literal_is_taken(x):
    step = lambda c, i: (jnp.sin(c @ W), jnp.where(i < N, 1.0, c[0]))  # noqa: E731
    return lax.scan(step, x[0], jnp.arange(N))


@fires.add(X, without=("select_n",))
def _bounds_check_of_a_read(x):
    def step(i, c):
        return c + jnp.where(i < N, jnp.tanh(W @ x[i]), 0.0)

    return lax.fori_loop(0, N, step, x[0])


@fires.add(X)
def _one_step_only(x):
    def step(i, c):
        return jnp.where(i < 1, jnp.sin(c), c)

    return lax.fori_loop(0, 1, step, x[0])


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "same", oracle=True, **options)


declines.add(X, code="none")(chosen(lambda i: i < N - 1))
declines.add(X, code="none")(chosen(lambda i: i > 0))
declines.add(X, code="none")(chosen(lambda i: lax.rem(i, 2) == 0))
declines.add(X, code="none")(chosen(lambda i: jnp.arange(6) < i))
declines.add(X, code="none")(chosen(lambda i: jnp.arange(6) < 3))
declines.add(X, code="none")(chosen(lambda i: i * 2**28 >= 0))  # it overflows


@declines.add(X, np.int32(3), code="none")
def _an_argument_decides(x, n):
    return chosen(lambda i: i < n)(x)


@declines.add(X, code="none")
def _data_decide(x):
    step = lambda c, r: (jnp.where(r > -9, jnp.sin(c), jnp.cos(c)), None)  # noqa: E731
    return lax.scan(step, x[0], x)[0]


@declines.add(X, code="none")
def _the_state_decides(x):
    step = lambda i, c: jnp.where(c > -9, jnp.sin(c), jnp.cos(c))  # noqa: E731
    return lax.fori_loop(0, N, step, x[0])


@declines.add(X, code="none")
def _a_float_counter_decides(x):
    def step(c, _):
        t, h = c
        return (t + 1, jnp.where(t < N, jnp.sin(h), jnp.cos(h))), None

    return lax.scan(step, (0.5, x[0]), None, N)[0]


@declines.add(X, code="none")
def _a_small_counter_wraps(x):
    def step(c, _):
        i, h = c
        return (i + 1, jnp.where(i >= 0, jnp.sin(h), jnp.cos(h))), None

    return lax.scan(step, (jnp.int8(100), x[0]), None, N)[0]


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, oracle=True, **options)


def test_derivative_of_the_other_case():
    """It may be NaN though the case is never taken, as in the loop."""

    def f(x):
        step = lambda i, c: jnp.where(i < N, jnp.sin(c), jnp.sqrt(c))  # noqa: E731
        return jnp.sum(lax.fori_loop(0, N, step, x))

    old, new = (np.asarray(jax.grad(g)(-abs(X[0]))) for g in (f, optimize(f)))
    assert np.isnan(old).all()
    assert np.isnan(new).all()


def test_cases_that_are_read_before_the_derivative():
    """A buffer that is only read to be kept is free before differentiation."""

    def f(x):
        def step(i, c):
            return c.at[i].set(jnp.where(i < N, jnp.sin(x[i]), c[i]))

        return lax.fori_loop(0, N, step, jnp.zeros_like(x))

    loss = lambda x: jnp.sum(optimize(f)(x) ** 2)  # noqa: E731
    with eager_rewriting():
        assert "while" not in jax.jit(jax.grad(loss)).lower(X).as_text()
