"""Sums, recurrences, distances and integers: overflow, cancellation, wrap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, assert_equivalent, random

# Sums whose order, width or form matters.
sums = Cases()
SPIKES = random(200, seed=2)
SPIKES[[3, 4, 90]] = [3e8, -3e8, 1e7]


def _sum(start):
    return lambda x: lax.scan(lambda c, v: (c + v, c), start(x), x)


def _first(x):
    return x[0] * 0


@sums.add((np.arange(4096) % 7).astype(np.float16))
def _float16_sum(x):
    return lax.scan(lambda c, v: (c + v, None), _first(x), x)[0]


@sums.add(np.array([6e4, 6e4, -6e4, -6e4, 1], np.float16), oracle=False)
def _float16_prefix_overflows(x):
    return lax.scan(lambda c, v: (c + v, None), _first(x), x)[0]


@sums.add(random(300, 8, seed=3).astype(np.float16))
def _float16_dot(x):
    return lax.scan(lambda c, r: (c + r * r, None), _first(x), x)[0]


@sums.add(np.ones(600, np.float32))
def _bfloat16_counter(x):
    start = jnp.zeros((), jnp.bfloat16)
    return lax.scan(lambda c, v: (c + v.astype(jnp.bfloat16), None), start, x)[0]


@sums.add(SPIKES, each=True)
def _window_of_means(x):
    def mean(i):
        return lax.dynamic_slice(x, (i,), (8,)).mean()

    return lax.map(mean, jnp.arange(193))


@sums.add(SPIKES)
def _running_mean(x):
    def step(c, i):
        c = c + x[i + 8] - x[i]
        return c, c / 8

    return lax.scan(step, x[:8].sum(), jnp.arange(192))


@sums.add(random(4000, seed=4) + 1e3)
def _compensated(x):
    def step(c, v):
        s, e = c
        y = v - e
        t = s + y
        return (t, (t - s) - y), None

    return lax.scan(step, (x[0] * 0, x[0] * 0), x)[0][0]


@sums.add(random(500, seed=5) + 1e4)
def _welford(x):
    def step(c, v):
        n, mean, m2 = c
        n, d = n + 1, v - mean
        mean = mean + d / n
        return (n, mean, m2 + d * (v - mean)), None

    n, mean, m2 = lax.scan(step, (0.0, x[0] * 0, x[0] * 0), x)[0]
    return mean, m2 / n


@sums.add(random(500, seed=5) + 1e4, each=True)
def _two_pass_variance(x):
    return lax.map(lambda r: jnp.mean((r - r.mean()) ** 2), x.reshape(25, 20))


@sums.add(np.full(64, 3e38, np.float32) * np.resize([1, -1], 64), oracle=False)
def _prefix_does_not_overflow(x):
    return lax.scan(lambda c, v: (c + v, c), _first(x), x)


@sums.add(np.full(64, 3e38, np.float32) * np.resize([1, -1], 64), oracle=False)
def _sum_does_not_overflow(x):
    rows = jnp.stack([x, x], 1)
    return lax.scan(lambda c, v: (c + v, None), rows[0] * 0, rows)[0], lax.scan(
        lambda c, v: (c + v, None), _first(x), x
    )[0]


# at the default level a reordered sum may overflow elsewhere (README, Limits)
@sums.add(np.repeat(np.float32([3e38, -3e38]), 32), oracle=False, numerics="strict")
def _sum_overflows_on_the_way(x):
    return lax.scan(lambda c, v: (c + v, None), _first(x), x)[0]


@sums.add(np.resize(np.array([1e30, 1e-30, 2.0], np.float32), 60))
def _product_does_not_overflow(x):
    return lax.scan(lambda c, v: (c * v, None), x[0] * 0 + 1, x)[0]


@sums.add(np.array([1e30, 1e30, 1, 1] * 8, np.float32), np.resize([0, 0, 0, 1.0], 32))
def _linear_coefficients_overflow(a, b):
    b = jnp.where(a > 1, 0.0, b * 0).astype(a.dtype)
    return lax.scan(lambda h, ab: (ab[0] * h + ab[1],) * 2, a[0] * 0, (a, b))


@sums.add(np.resize(np.array([1e30, 1e30, 0, 1e-30], np.float32), 32))
def _linear_reset(a):
    return lax.scan(lambda h, a: (a * h + a * 1e-30,) * 2, a[0] * 0, a)


@sums.add(np.float32(1.5), random(900, seed=6))
def _linear_growth_of_nothing(a, b):
    b = b.at[:600].set(0.0)
    return lax.scan(lambda h, b: (a * h + b,) * 2, a * 0, b)


@pytest.mark.parametrize(("fn", "args", "options"), sums)
def test_sums_and_recurrences(fn, args, options):
    """As close to float64 as the loop is, and infinite only where the loop is."""
    assert_equivalent(
        fn, *[np.float32(a) if a.dtype == float else a for a in args], **options
    )


def test_strict_does_not_reassociate():
    """Under `strict` a running sum has the very bits of the loop."""
    for f in (
        lambda x: lax.scan(lambda c, v: (c + v, c), x[0] * 0, x),
        lambda x: lax.scan(lambda c, v: (c * v + v, c), x[0] * 0, x),
        lambda x: lax.fori_loop(0, 200, lambda i, c: c + x[i] * x[199 - i], x[0] * 0),
        lambda x: lax.scan(lambda c, v: (c + jnp.exp(v * 1e-9), c), x[0] * 0, x)[0],
    ):
        got, want = optimize(f, numerics="strict")(SPIKES), jax.jit(f)(SPIKES)
        jax.tree.map(np.testing.assert_array_equal, got, want)


# Distances. Tempting: |x|^2 + |y|^2 - 2 x.y, which cancels.
POINTS = random(60, 12, seed=7)
CLUSTER = np.repeat(random(6, 12, seed=8), 10, 0) * (1 + 1e-4 * random(60, 12, seed=9))
HOLES = POINTS.copy()
HOLES[[4, 30], 2] = [np.nan, np.inf]
WIDE = (POINTS * np.logspace(-18, 17, 60)[:, None]).astype(np.float32)


def _distances(x):
    return lax.map(lambda r: jnp.sum((x - r) ** 2, axis=1), x)


@pytest.mark.parametrize(
    "x",
    [POINTS, CLUSTER.astype(np.float32), POINTS + np.float32(1e4), HOLES, WIDE],
    ids=["normal", "cluster", "far", "holes", "wide"],
)
def test_distances(x):
    """Each squared distance, and each gradient, is as good as the direct form."""
    assert_equivalent(_distances, x, each=True, ulps=16)
    if np.isfinite(_distances(x)).all():
        assert (np.diag(optimize(_distances)(x)) == 0).all()
        assert_equivalent(lambda x: jnp.log(_distances(x) + 1e-12), x, grad=True)


def test_nearest_neighbours_do_not_flip():
    """On grid data ties are many; the winner is that of the direct form."""
    x = np.round(random(80, 2, seed=10) * 4) / 4
    grid = np.stack(np.meshgrid(*[np.arange(-6, 7) / 4 + 1 / 8] * 2), -1).reshape(-1, 2)
    grid = np.float32(grid)

    def f(x, y):
        def row(r):
            d = jnp.sum((y - r) ** 2, axis=1)
            return jnp.argmin(d), jnp.argmax(d), lax.top_k(-d, 3)[1], d < 0.5

        return lax.map(row, x)

    assert_equivalent(f, x, grid, oracle=False)


# Integers wrap, exactly.
integers = Cases()
SMALL = np.random.default_rng(0).integers(-128, 128, 50).astype(np.int8)


@integers.add(SMALL)
def _sum_product_and_min(x):
    def step(c, v):
        return (c[0] + v, c[1] * v, jnp.minimum(c[2], -v), c[3] ^ v), c

    return lax.scan(step, (jnp.int8(0), jnp.int8(3), jnp.int8(127), jnp.int8(0)), x)


@integers.add(SMALL.astype(np.int32))
def _hash(x):
    return lax.scan(lambda h, v: (h * 1103515245 + v, h >> 3), jnp.int32(12345), x)


@integers.add(SMALL.astype(np.uint32))
def _unsigned_below_zero(x):
    return lax.scan(lambda c, v: (c - v, c // 7), jnp.uint32(5), x)


@integers.add(SMALL)
def _squares_wrap(x):
    return lax.map(lambda v: (v * v, abs(v), v // 3, v % 3, lax.rem(v, jnp.int8(3))), x)


@integers.add(SMALL)
def _dot_wraps(x):
    rows = x.reshape(10, 5)
    return lax.map(lambda r: rows @ r, rows), lax.map(lambda r: r.sum(), rows)


@integers.add(SMALL)
def _wide_accumulator(x):
    def step(c, v):
        return c + v.astype(jnp.int32) * 40_000_000, c

    return lax.scan(step, jnp.int32(0), x)


@integers.add(SMALL)
def _small_counter(x):
    def step(i, v):
        return i + jnp.int8(3), (i, v + i)

    return lax.scan(step, jnp.int8(100), x)


@integers.add(SMALL)
def _float_counter(x):
    def step(i, v):
        return i + jnp.float32(0.1), (i > 2.0, jnp.floor(i * 10).astype(jnp.int32) + v)

    return lax.scan(step, jnp.float32(0), x)[1]


@pytest.mark.parametrize(("fn", "args", "options"), integers)
def test_integer_wrap(fn, args, options):
    """Sums, products and counters wrap as in the loop, bit for bit."""
    assert_equivalent(fn, *args, oracle=False, **options)
