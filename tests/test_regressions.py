"""Bugs met, each as a test of its kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import assert_equivalent, random

X = random(30, 8)


def test_loop_inside_checkpoint_that_needs_constants():
    """A checkpointed program can not take constants made by a rewrite."""
    w = random(8, 8, seed=1)

    @jax.checkpoint
    def part(b, a):
        def step(c, i):
            return jnp.tanh(w @ c) + a[i], c

        return lax.scan(step, b, jnp.arange(5, 40, dtype=jnp.int32))

    assert_equivalent(lambda b, a: part(b, a), X[0], X)
    assert_equivalent(lambda b, a: part(b, a)[0], X[0], X, grad=True)


@pytest.mark.parametrize("kind", ["key", "complex"])
def test_wide_values_do_not_turn_on_x64(kind):
    """Typed keys and complex64 have 8 bytes but are no 64-bit types."""
    wide = jax.random.key(0) if kind == "key" else jnp.complex64(1 + 2j)

    def f(x):
        def body(i, b):
            return b.at[i].set(0.5 * b[i - 1] + x[i])

        extra = jax.random.uniform(wide) if kind == "key" else jnp.real(wide)
        return lax.fori_loop(0, 3, body, jnp.zeros(4)) + extra

    got = jax.vmap(optimize(f))(X[:, :4])
    np.testing.assert_allclose(got, jax.vmap(f)(X[:, :4]), rtol=1e-6)


def test_zero_trips_keep_weak_types():
    def f(x):
        return lax.while_loop(
            lambda s: s[0] < -1, lambda s: (s[0] + 1, s[1] + x), (0, 0.5)
        )

    assert_equivalent(f, np.float32(2.0))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("budget", ["256MB", 20_000])
def test_delays_in_both_directions_and_in_blocks(reverse, budget):
    w = random(64, 64, seed=2)
    x = random(101, 64)

    def f(x):
        def step(c, row):
            one, two = c
            return (row, one), jnp.tanh(w @ (row - 2 * one + 3 * two))

        return lax.scan(step, (x[3], x[5]), x, reverse=reverse)

    assert_equivalent(f, x, memory_budget=budget)
    verdict = optimize(f, memory_budget=budget).explain(x).verdicts[0]
    assert verdict.outcome == ("batched" if budget == "256MB" else "blocked")


@pytest.mark.parametrize("size", [7, 20])
def test_batch_size_is_respected(size):
    """`lax.map(batch_size=)` says how many rows may be held at once."""
    w, x = random(64, 64, seed=2), random(140, 64)

    def f(x):
        return lax.map(lambda r: jnp.tanh(w @ r), x, batch_size=size)

    assert_equivalent(f, x)
    verdict = optimize(f).explain(x).verdicts[0]
    assert (verdict.outcome, verdict.code) == ("kept", "loop-distribution/batch-size")


def test_vmap_inside_a_row_is_no_batch_size():
    w, x = random(64, 64, seed=2), random(140, 3, 64)

    def f(x):
        return lax.map(lambda r: jax.vmap(lambda v: jnp.tanh(w @ v))(r).sum(0), x)

    assert_equivalent(f, x)
    assert optimize(f).explain(x).verdicts[0].outcome == "batched"
