"""`sparse-accumulation`: rows of zeros are added where they belong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, in_loops

NAME = "sparse-accumulation"
V, D, N = 300, 8, 50
E, W = random(V, D), random(D, D, seed=1, scale=0.3)
WORDS = np.random.default_rng(2).integers(0, V, N).astype(np.int32)
WORDS[10:14] = WORDS[3]  # one word several times
fires, declines = Cases(), Cases()


def _read(h, e, w, i):
    return jnp.tanh(e[i] + h @ w)


READS = {
    "a row": _read,
    "two rows": lambda h, e, w, i: jnp.tanh(e[i] - 2 * e[i // 2] + h @ w),
    "several rows": lambda h, e, w, i: jnp.tanh(e[i + jnp.arange(3)].sum(0) + h @ w),
    "a window": lambda h, e, w, i: jnp.tanh(
        lax.dynamic_slice_in_dim(e, i, 4).sum(0) + h @ w
    ),
    "an entry": lambda h, e, w, i: jnp.tanh(e[i, i % D] + h @ w),
    "beside the whole": lambda h, e, w, i: jnp.tanh(e[i] + e.mean(0) + h @ w),
    "taken": lambda h, e, w, i: jnp.tanh(jnp.take(e, i, axis=0) + h @ w),
}
PLACES = {
    "from the end": WORDS - V,
    "out of range": np.where(np.arange(N) % 5 == 0, WORDS + V, WORDS - 2 * V),
}


def loss(read):
    """Return a recurrent network's last state, summed with weights."""

    def f(e, w, words):
        step = lambda h, i: (read(h, e, w, i), h[0])  # noqa: E731
        h, firsts = lax.scan(step, jnp.zeros_like(e[0]), words)
        return jnp.sum(h * jnp.cos(jnp.arange(D))) + firsts.sum()

    return f


@pytest.mark.parametrize("name", READS)
def test_gradients_of_lookups(name):
    """Clamped, dropped and repeated rows as in the original's gradient."""
    f = jax.grad(loss(READS[name]), (0, 1))
    report = assert_fires(NAME, f, (E, W, WORDS), "rows", oracle=True)
    large = [
        e
        for e in in_loops(report)
        if e.primitive.name.startswith("add") and e.outvars[0].aval.shape == (V, D)
    ]
    assert not large or name == "beside the whole"
    fast, slow = optimize(f), jax.jit(f)
    for words in PLACES.values():
        args = E, W, words.astype(np.int32)
        for a, b in zip(fast(*args), slow(*args), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@fires.add(random(N, 2), WORDS)
def _counts_by_hand(x, words):
    """A user's own table of zeros."""

    def step(total, s):
        x, i = s
        return total + jnp.zeros((V, 2)).at[i].set(x), None

    return lax.scan(step, jnp.ones((V, 2)), (x, words))[0]


@fires.add(WORDS)
def _integers(words):
    def step(total, i):
        return total + jnp.zeros(V, jnp.int32).at[i].add(7), None

    return lax.scan(step, jnp.zeros(V, jnp.int32), words)[0]


@fires.add(random(N, 2), WORDS)
def _one_table_reads_another(x, words):
    zeros = lambda: jnp.zeros((V, 2))  # noqa: E731

    def step(s, xi):
        (a, b), (x, i) = s, xi
        a = a + zeros().at[i].set(x)
        b = b + (a + zeros().at[i + 1].set(2 * x))
        return (a, b), None

    return lax.scan(step, (zeros(), zeros()), (x, words))[0]


@declines.add(random(N, 2).astype(np.complex64), WORDS)
def _complex(x, words):
    def step(total, s):
        x, i = s
        return total + jnp.zeros((V, 2), x.dtype).at[i].set(x), None

    return lax.scan(step, jnp.ones((V, 2), x.dtype), (x, words))[0]


@declines.add(random(N, 2).astype(np.float16), WORDS)
def _short_floats(x, words):
    def step(total, s):
        x, i = s
        return total + jnp.zeros((V, 2), x.dtype).at[i].set(x), None

    return lax.scan(step, jnp.ones((V, 2), x.dtype), (x, words))[0]


@declines.add(random(N, 2), WORDS)
def _read_by_the_step(x, words):
    def step(total, s):
        x, i = s
        row = jnp.zeros((V, 2)).at[i].set(x + total[0])
        return total + row, None

    return lax.scan(step, jnp.ones((V, 2)), (x, words))[0]


@declines.add(random(N, 2), WORDS)
def _ones(x, words):
    def step(total, s):
        x, i = s
        return total + jnp.ones((V, 2)).at[i].set(x), None

    return lax.scan(step, jnp.ones((V, 2)), (x, words))[0]


@declines.add(random(N, 2), WORDS)
def _rows_are_read_too(x, words):
    def step(total, s):
        x, i = s
        row = jnp.zeros((V, 2)).at[i].set(x)
        return total + row, row.max(0)

    return lax.scan(step, jnp.ones((V, 2)), (x, words))


@declines.add(random(N, 2), WORDS)
def _product(x, words):
    def step(total, s):
        x, i = s
        return total * jnp.zeros((V, 2)).at[i].set(x), None

    return lax.scan(step, jnp.ones((V, 2)), (x, words))[0]


@declines.add(random(N, 3), WORDS % 2)
def _most_of_the_table(x, words):
    def step(total, s):
        x, i = s
        return total + jnp.zeros((2, 3)).at[i].set(x), None

    return lax.scan(step, jnp.ones((2, 3)), (x, words))[0]


@declines.add(random(N, 2), WORDS, numerics="strict")
def _strict(x, words):
    return _counts_by_hand(x, words)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "rows", oracle=True, outcome="sparse", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_through_the_optimised_function():
    """`grad(optimize(f))`, where the backward loop is made by JAX."""
    f = loss(_read)
    fast = jax.jit(jax.grad(optimize(f)))
    np.testing.assert_allclose(
        fast(E, W, WORDS), jax.jit(jax.grad(f))(E, W, WORDS), rtol=1e-4, atol=1e-6
    )
