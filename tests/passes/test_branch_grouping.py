"""`branch-grouping`: conds whose branches run on blocks of the rows that take them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, assert_equivalent, assert_same, random
from tests.passes.firing import (
    assert_declines,
    assert_fires,
    distributed_for_any_gain,
    in_loops,
)

NAME = "branch-grouping"
N, D = 2000, 64
W, X = random(D, D, scale=0.2), random(N, D, seed=1)
FLAG = random(N, seed=2)
fires, declines = Cases(), Cases()


@pytest.fixture(autouse=True)
def any_gain():
    """Whether the distribution pays is not the matter here."""
    with distributed_for_any_gain():
        yield


def _dear(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def _rows(x, w, flag):
    def row(s):
        x, f = s
        return lax.cond(f > 0, lambda: _dear(x, w), lambda: x + f)

    return lax.map(row, (x, flag))


SHARES = {
    "none": np.full(N, -1.0),
    "one": np.where(np.arange(N) == 77, 1.0, -1.0),
    "the last": np.where(np.arange(N) == N - 1, 1.0, -1.0),
    "half": FLAG,
    "one block": np.where(np.arange(N) % 8 == 3, 1.0, -1.0)[:N],
    "all": np.full(N, 1.0),
    "not a number": np.where(np.arange(N) % 5 == 0, np.nan, FLAG),
}


@pytest.mark.parametrize("numerics", ["strict", "reassociate"])
def test_shares(numerics):
    """Whatever part of the rows takes a branch, and wherever they lie."""
    half = (X, W, SHARES["half"])
    assert_fires(NAME, _rows, half, "grouped", numerics=numerics, oracle=True)
    fast, slow = optimize(_rows, numerics=numerics), jax.jit(_rows)
    for flag in SHARES.values():
        args = X, W, flag.astype(np.float32)
        assert_same(fast(*args), slow(*args), ulps=64)


def test_no_row_runs_what_it_does_not_take():
    """A branch that would give NaN on the other rows, and counts its rows."""
    flag = np.where(np.arange(N) % 7 == 0, 1, -1).astype(np.float32)
    x = X.copy()
    x[flag < 0] = np.nan

    def f(x, w, flag):
        def row(s):
            x, f = s
            return lax.cond(f > 0, lambda: _dear(x, w).sum(), lambda: 0.0)

        return lax.map(row, (x, flag))

    assert_fires(NAME, f, (x, W, flag), "grouped")
    assert np.isfinite(optimize(f)(x, W, flag)).all()


@fires.add(X, W, np.arange(N, dtype=np.int32) % 5 - 1, outcome="batched")
def _switch_out_of_range(x, w, k):
    """An index beyond the branches takes the nearest one."""
    ways = [lambda x, j=j: _dear(x + j, w) for j in range(3)]
    return lax.map(lambda s: lax.switch(s[1], ways, s[0]), (x, k))


@fires.add(X, random(6, D, D), np.arange(N, dtype=np.int32) % 6, outcome="batched")
def _experts(x, w, k):
    ways = [lambda x, j=j: jnp.tanh(x @ w[j]) for j in range(6)]
    return lax.map(lambda s: lax.switch(s[1], ways, s[0]), (x, k))


@fires.add(X, W, FLAG)
def _several_results(x, w, flag):
    """Integers, booleans and scalars beside the rows."""

    def row(s):
        x, f = s
        dear = lambda: (_dear(x, w), 1, f > 1, jnp.int8(3))  # noqa: E731
        cheap = lambda: (x, 0, False, jnp.int8(-3))  # noqa: E731
        return lax.cond(f > 0, dear, cheap)

    return lax.map(row, (x, flag))


@fires.add(X, W, FLAG)
def _beside_a_recurrence(x, w, flag):
    def step(h, s):
        x, f = s
        y = lax.cond(f > 0, lambda: _dear(x, w), lambda: x)
        h = jnp.tanh(h * 0.5 + y)
        return h, h[0]

    return lax.scan(step, jnp.zeros(D), (x, flag))


@fires.add(X, W, FLAG)
def _summed(x, w, flag):
    def step(total, s):
        x, f = s
        return total + lax.cond(f > 0, lambda: _dear(x, w), lambda: x), None

    return lax.scan(step, jnp.zeros(D), (x, flag), reverse=True)[0]


@fires.add(X, W, FLAG, memory_budget=60_000, outcome="blocked")
def _in_blocks(x, w, flag):
    return _rows(x, w, flag)


@fires.add(X, W, outcome="batched")
def _by_the_counter(x, w):
    def body(i, y):
        return y.at[i].set(lax.cond(i % 3 == 0, lambda: _dear(x[i], w), lambda: x[i]))

    return lax.fori_loop(0, N, body, jnp.zeros_like(x))


@declines.add(X, W, FLAG, code="held")
def _while(x, w, flag):
    def root(v):
        return lax.while_loop(lambda c: c < 100, lambda c: c * 2, jnp.abs(v[0]) + 1)

    def row(s):
        x, f = s
        return lax.cond(f > 0, lambda: _dear(x, w) + root(x), lambda: x)

    return lax.map(row, (x, flag))


@declines.add(X, W, FLAG, code="held")
def _callback(x, w, flag):
    """It may count, print, or refuse the rows of the other branch."""

    def double(v):
        assert (v[..., 0] > 0).all()
        return v * 2

    def call(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(double, shape, x, vmap_method="expand_dims")

    def row(x):
        return lax.cond(x[0] > 0, lambda x: _dear(call(x), w), lambda x: x, x)

    return lax.map(row, x)


@declines.add(X, W, code="none")
def _needs_the_step_before(x, w):
    def step(h, x):
        h = lax.cond(h[0] > 0, lambda: _dear(h + x, w), lambda: x - h)
        return h, h[0]

    return lax.scan(step, jnp.ones(D), x)


@declines.add(X, W, FLAG, code="none")
def _the_same_at_every_step(x, w, flag):
    return lax.map(lambda x: lax.cond(flag[0] > 0, _dear, lambda x, w: x, x, w), x)


@declines.add(X, W, FLAG, code="none")
def _cheap(x, w, flag):
    def row(s):
        return lax.cond(s[1] > 0, lambda: s[0] * 2, lambda: s[0])

    return lax.map(row, (x, flag))


@declines.add(random(20, D), W, code="unprofitable")
def _few_rows(x, w):
    """One block with one row in it would cost more than the loop."""
    dear = lambda x: _dear(_dear(_dear(x, w), w), w)  # noqa: E731
    return lax.map(lambda x: lax.cond(x[0] > 0, dear, lambda x: x, x), x)


@declines.add(random(300, 40, 2000), random(300), code="unprofitable")
def _as_dear_in_a_block(x, flag):
    """Elementwise work on long rows gains nothing from company."""

    def row(s):
        x, f = s
        return lax.cond(f > 0, lambda: jnp.cumsum(x, axis=0) * 2, lambda: x)

    return lax.map(row, (x, flag))


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "grouped", **options)
    left = {e.primitive.name for e in in_loops(report)}
    assert "cond" not in left


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_gradients():
    assert_equivalent(_rows, X[:, :D], W, FLAG, grad=True)


def test_under_vmap():
    """Two sets of rows: a `cond` of a batched index is a selection, as JAX has it."""
    assert_equivalent(_rows, X, W, FLAG, vmap=(0, None, 0))


def test_keys_are_left_alone():
    def f(keys, flag):
        def row(s):
            key, f = s
            new = lambda: jax.random.split(key, 3)[2]  # noqa: E731
            key = lax.cond(f > 0, new, lambda: key)
            return jax.random.normal(key, (40,))

        return lax.map(row, (keys, flag))

    assert_equivalent(f, jax.random.split(jax.random.key(0), N), FLAG)
