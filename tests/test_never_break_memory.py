"""Memory: checkpoints, the budget, caches that stay in place."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import assert_same, random, temp_bytes

MIB = 1 << 20


def _deep(x, ws):
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def _deep_map(xs, ws):
    return lax.map(lambda x: jax.checkpoint(_deep)(x, ws), xs).sum()


def _rnn(xs, ws):
    def step(h, x):
        return jnp.tanh(x @ ws[0] + jnp.tanh(h @ ws[1]) @ ws[2]), None

    start = jnp.zeros(xs.shape[1:])
    return (lax.scan(jax.checkpoint(step), start, xs)[0] ** 2).sum()


@pytest.mark.parametrize("fn", [_deep_map, _rnn])
@pytest.mark.parametrize("inside", [False, True], ids=["grad-outside", "grad-inside"])
def test_checkpoint_is_a_barrier(fn, inside):
    """Batched across, or hoisted out of, a checkpoint stores what it recomputes."""
    xs, ws = random(128, 16, 64), random(6, 64, 64, scale=0.1)
    slope = jax.grad(fn, argnums=1)
    original = temp_bytes(jax.jit(slope), xs, ws)
    options = {"memory_budget": "1MB"}
    if inside:
        rewritten = optimize(slope, **options)
    else:
        rewritten = jax.jit(jax.grad(optimize(fn, **options), argnums=1))
    assert temp_bytes(rewritten, xs, ws) <= original + 2 * MIB
    assert_same(rewritten(xs, ws), jax.jit(slope)(xs, ws), ulps=64)


def test_budget_bounds_what_is_stacked():
    """Batched whole, the hidden rows would take 64 MB."""
    x, w = random(4096, 64), random(64, 4096, scale=0.1)

    def f(x, w):
        return lax.map(lambda r: jnp.tanh(r @ w).sum(), x)

    rewritten = optimize(f, memory_budget="8MB")
    assert temp_bytes(rewritten, x, w) <= temp_bytes(jax.jit(f), x, w) + 12 * MIB
    assert_same(rewritten(x, w), jax.jit(f)(x, w), ulps=64)


def _decode(cache, x, position):
    """Attend over a cache of which one row a step is written."""

    def step(carry, row):
        cache, i = carry
        cache = lax.dynamic_update_index_in_dim(cache, row, i, 0)
        score = jnp.where(jnp.arange(cache.shape[0]) <= i, cache @ row, -jnp.inf)
        return (cache, i + 1), jax.nn.softmax(score) @ cache

    (cache, _), out = lax.scan(step, (cache, position), x)
    return cache, out


def _record(cache, x, position):
    """Write a few rows only."""

    def body(i, cache):
        return cache.at[position + i].set(jnp.tanh(x[i]) * 2)

    return lax.fori_loop(0, x.shape[0], body, cache)


@pytest.mark.parametrize("fn", [_decode, _record])
def test_large_cache_stays_in_place(fn):
    """A 4 MB buffer is neither copied at each step nor stacked over the steps."""
    cache, x = random(8192, 128, scale=0.1), random(5, 128)
    rewritten = optimize(fn, donate_argnums=0)
    original = jax.jit(fn, donate_argnums=0)
    new, old = (
        f.lower(cache, x, 11).compile().memory_analysis() for f in (rewritten, original)
    )
    assert new.temp_size_in_bytes <= old.temp_size_in_bytes + MIB
    assert new.alias_size_in_bytes == old.alias_size_in_bytes
    got, want = (f(jnp.asarray(cache), x, 11) for f in (rewritten, original))
    assert_same(got, want, ulps=64)
