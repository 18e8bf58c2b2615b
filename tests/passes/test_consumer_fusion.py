"""`consumer-fusion`: what reads stacked rows joins the loop that makes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "consumer-fusion"
N, M, D = 60, 40, 5
X, Y = random(N, D), random(M, D, seed=1)
V = random(N, M, seed=2)
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def eager():
    """Whatever may be rewritten is, however small."""
    with eager_rewriting():
        yield


def rows(x, reverse=False):
    """Return rows that no carry feeds."""
    step = lambda c, r: (c, jnp.tanh(jnp.abs(Y - r).sum(axis=1)))  # noqa: E731
    return lax.scan(step, 0, x, reverse=reverse)[1]


def written(x):
    """Return the same rows, written one by one."""
    put = lambda i, b: b.at[i].set(jnp.tanh(jnp.abs(Y - x[i]).sum(axis=1)))  # noqa: E731
    return lax.fori_loop(0, N, put, jnp.zeros((N, M)))


AFTER = {
    "argmin": lambda d: jnp.argmin(d, axis=1),
    "max of each": lambda d: d.max(axis=1),
    "max of all": lambda d: d.max(),
    "least over rows": lambda d: d.min(axis=0),
    "sum of all": lambda d: d.sum(),
    "mean of each": lambda d: d.mean(axis=1),
    "mean": lambda d: d.mean(),
    "count": lambda d: jnp.sum(d > 0.9),
    "counts over rows": lambda d: jnp.sum(d > 0.9, axis=0),
    "any": lambda d: jnp.any(d > 0.99, axis=0),
    "all": lambda d: jnp.all(d > 0.1),
    "norm": lambda d: jnp.linalg.norm(d, axis=-1),
    "std": lambda d: jnp.std(d, axis=1),
    "product": lambda d: d @ Y,
    "product from the left": lambda d: Y.T @ d.T,
    "softmax": lambda d: jax.nn.softmax(d * 3, axis=1) @ Y[:, 0],
    "logsumexp": lambda d: jax.nn.logsumexp(d, axis=1),
    "best": lambda d: lax.top_k(d, 3),
    "quantile": lambda d: jnp.sort(d, axis=1)[:, 3],
    "transposed": lambda d: jnp.argmax(d.T, axis=0),
    "weights of rows": lambda d: jnp.sum(d * V, axis=1),
    "labels": lambda d: jnp.sum(jnp.where(V > 0, d, 0.0), axis=1) + X[:, 0],
    "two": lambda d: (jnp.argmin(d, axis=1), d.max()),
    "in a call": jax.jit(lambda d: jnp.argmin(d * d, axis=1)),
    "more after": lambda d: jnp.cumsum(d.min(axis=1)) @ X,
    "outer after": lambda d: jnp.outer(d.min(axis=1), Y[:, 0]),
}
WRITTEN = ("argmin", "sum of all", "softmax", "transposed")
for name, after in AFTER.items():
    for make in (rows, written) if name in WRITTEN else (rows,):
        fires.append(
            pytest.param(
                lambda x, make=make, after=after: after(make(x)),
                (X,),
                {},
                id=f"{name}, {make.__name__}",
            )
        )


@fires.add(X)
def _reverse(x):
    return jnp.argmax(rows(x, reverse=True), axis=1)


@fires.add(X)
def _an_operand_made_later(x):
    d = rows(x)
    w = jnp.cumsum(jnp.sin(x.sum(axis=1)))[:M]
    return d @ w


@fires.add(X)
def _two_outputs_of_one_loop(x):
    a, b = lax.map(lambda r: (jnp.sin(Y @ r), jnp.cos(Y @ r)), x)
    return jnp.max(a * b, axis=1), a.min()


@fires.add(X)
def _nan_and_infinity(x):
    d = lax.map(lambda r: jnp.log(jnp.abs(Y - r).sum(axis=1) - 1), x)
    return d.max(axis=0), d.min(), d.max(axis=1)


@fires.add((X * 100).astype(np.int32))
def _integers_wrap(x):
    return lax.map(lambda r: r[None] * (Y * 1e8).astype(int), x).sum(axis=(0, 1))


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "in-step", oracle=True, **options)


@declines.add(X)
def _rows_are_returned(x):
    d = rows(x)
    return d, jnp.argmin(d, axis=1)


@declines.add(X)
def _a_cumulative_sum_over_rows(x):
    return jnp.cumsum(rows(x), axis=0)[-1]


@declines.add(X)
def _rows_meet_each_other(x):
    d = rows(x)
    return (d @ d.T).max()


@declines.add(X)
def _sums_of_float_rows(x):
    """In order they would be less accurate than at once."""
    return rows(x).sum(axis=0)


@declines.add(X)
def _as_large_after(x):
    return jnp.sin(rows(x))


@declines.add(X)
def _a_recurrence(x):
    step = lambda c, r: (jnp.tanh(c + Y @ r),) * 2  # noqa: E731
    return lax.scan(step, jnp.zeros(M), x)[1].max(axis=1)


@declines.add(X)
def _effects(x):
    def step(r):
        jax.debug.callback(lambda _: None, r[0])
        return Y @ r

    return lax.map(step, x).max(axis=1)


@declines.add(X)
def _effects_elsewhere(x):
    d = rows(x)
    jax.debug.callback(lambda _: None, x[0])
    w = jnp.cumsum(x.sum(axis=1))[:M]
    jax.debug.callback(lambda _: None, w)
    return d @ w


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, oracle=True, **options)


def test_sums_over_the_budget():
    """There memory comes first."""
    assert_fires(
        NAME, _sums_of_float_rows, (X,), "in-step", oracle=True, memory_budget=2_000
    )


def test_gradients():
    def loss(x):
        return jnp.sum(rows(x).max(axis=1) ** 2)

    old = jax.grad(loss)(X)
    for new in (optimize(jax.grad(loss)), jax.grad(optimize(loss))):
        np.testing.assert_allclose(new(X), old, atol=1e-5)
