"""`distance-rows`: decisions and sums over distances, with the original's answers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires, codes

NAME = "distance-rows"
N, M, U = 600, 300, 2.0**-24
RNG = np.random.default_rng(1)


def squared(y, p):
    return jnp.sum((y - p) ** 2, axis=1)


def _clusters(n, d):
    centres = RNG.standard_normal((20, d))[RNG.integers(0, 20, n)]
    return centres * (1 + 1e-6 * RNG.standard_normal((n, d)))


def _with_bad_rows(n, d):
    x = RNG.standard_normal((n, d))
    x[::97], x[5::101] = np.nan, np.inf
    return x


DATA = {
    "normal": lambda n, d: RNG.standard_normal((n, d)),
    "offset": lambda n, d: RNG.standard_normal((n, d)) + 1e4,
    "clusters": _clusters,
    "tiny": lambda n, d: RNG.standard_normal((n, d)) * 1e-20,
    "small": lambda n, d: RNG.standard_normal((n, d)) * 1e-10,
    "huge": lambda n, d: RNG.standard_normal((n, d)) * 1e18,
    "mixed": lambda n, d: (
        RNG.standard_normal((n, d)) * 10 ** RNG.uniform(-18, 18, (n, 1))
    ),
    "integers": lambda n, d: RNG.integers(0, 17, (n, d)),
    "tenths": lambda n, d: RNG.integers(0, 5, (n, d)) * 0.1,
    "bad_rows": _with_bad_rows,
    "zeros": lambda n, d: np.zeros((n, d)),
}
PROGRAMS = {
    "argmin": lambda x, y: lax.map(lambda p: jnp.argmin(squared(y, p)), x),
    "argmax": lambda x, y: lax.map(lambda p: jnp.argmax(jnp.sqrt(squared(y, p))), x),
    "top_k": lambda x, y: lax.map(lambda p: lax.top_k(-squared(y, p), 5), x),
    "within": lambda x, y: lax.map(lambda p: jnp.sum(jnp.sqrt(squared(y, p)) < 2.0), x),
    "least": lambda x, y: lax.map(lambda p: jnp.min(squared(y, p)), x),
}


@functools.cache
def both(step, n, m, d):
    """Return a program, optimised and as it is: one compilation for all data."""
    f = optimize(step)
    args = (jax.ShapeDtypeStruct((k, d), np.float32) for k in (n, m))
    assert "distance-rows/rows" in codes(f.explain(*args))
    return f, jax.jit(step)


@pytest.mark.parametrize("d", [9, 33])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_originals_answers(name, data, d):
    """Indices and counts are the original's, values as accurate, ties included."""
    x = DATA[data](N, d).astype("f")
    y = np.concatenate([x[::3], DATA[data](100, d).astype("f")])
    new, old = both(PROGRAMS[name], len(x), len(y), d)
    old, new = jax.tree.leaves(old(x, y)), jax.tree.leaves(new(x, y))
    for a, b in zip(old, new, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        np.testing.assert_array_equal(a == 0, b == 0)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        ok = np.isfinite(a)
        np.testing.assert_allclose(b[ok], a[ok], rtol=48 * U)


_SIGNS = jnp.where(jnp.arange(M) % 2 == 0, 1.0, -1.0)
DECISIONS = {
    "groups": lambda d: jnp.argmin(d.reshape(-1, 4), axis=1),
    "columns": lambda d: jnp.argmax(d.reshape(4, -1), axis=0),
    "reciprocal": lambda d: jnp.argmin(1 / (d - 3.0)),
    "largest_reciprocal": lambda d: jnp.max(1 / (d - 3.0)) > 40.0,
    "student": lambda d: jnp.argmax(1 / (1 + d)),
    "both_signs": lambda d: jnp.max(d * _SIGNS + 25 * (1 - _SIGNS)) > 30.0,
    "flat_kernel": lambda d: jnp.argmax(jnp.exp(-1e-3 * d)),
    "saturated": lambda d: jnp.argmax(jnp.tanh(0.3 * d)),
    "error_function": lambda d: jnp.argmin(jax.lax.erf(0.1 * jnp.sqrt(d))),
    "logarithm": lambda d: jnp.argmin(jnp.log(d) + _SIGNS),
}


@functools.cache
def decided(name):
    """Return the loop that decides on the distances of each row."""
    return lambda x, y: lax.map(lambda p: DECISIONS[name](squared(y, p)), x)


@pytest.mark.parametrize(
    "data", ["near_ties", "clusters", "tenths", "bad_rows", "sphere"]
)
@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_that_turn_easily(name, data):
    """Ties, poles, plateaus: exactly the original's decisions."""
    y = RNG.standard_normal((M, 9))
    if data == "near_ties":
        y[M // 2 :] = y[: M // 2] + 1e-7 * RNG.standard_normal((M // 2, 9))
        x = y[RNG.integers(0, M, N)] + 1e-4 * RNG.standard_normal((N, 9))
    elif data == "sphere":
        x = RNG.standard_normal((N, 9))
        x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    else:
        x, y = DATA[data](N, 9), DATA[data](M, 9)
    args = x.astype("f"), y.astype("f")
    new, old = both(decided(name), N, M, 9)
    np.testing.assert_array_equal(np.asarray(new(*args)), np.asarray(old(*args)))


X, Y = random(N, 16), random(M, 16, seed=1)
V = random(M, seed=2)
fires, declines = Cases(), Cases()


@fires.add(X, Y, V)
def _kernel_times_vector(x, y, v):
    return lax.map(lambda p: jnp.exp(-0.1 * squared(y, p)) @ v, x)


@fires.add(X, Y)
def _count_of_pairs(x, y):
    def add(i, c):
        return c + jnp.sum(squared(y, x[i]) < 9.0)

    return lax.fori_loop(0, N, add, 0)


@fires.add(X, Y)
def _beside_a_recurrence(x, y):
    def step(c, p):
        c = jnp.sin(c + p[0])
        return c, (c, jnp.argmin(squared(y, p)))

    return lax.scan(step, jnp.float32(0), x)


@fires.add(X, Y, V)
def _label_of_the_nearest(x, y, v):
    return lax.map(lambda p: v[jnp.argmin(squared(y, p))], x)


@fires.add(X, Y, V)
def _assignment_with_prices(x, y, v):
    return lax.map(lambda p: jnp.argmin(squared(y, p) * 2 + v), x)


@fires.add(X, Y)
def _masked(x, y):
    def row(r):
        i, p = r
        near = jnp.where(jnp.arange(M) == i, jnp.inf, squared(y, p))
        return jnp.argmin(near)

    return lax.map(row, (jnp.arange(N), x))


@fires.add(X, Y, V)
def _softmin(x, y, v):
    return lax.map(lambda p: jax.nn.softmax(-squared(y, p)) @ v, x)


@fires.add(X.astype("d"), Y.astype("d"))
def _wide(x, y):
    return lax.map(lambda p: jnp.argmin(squared(y, p)), x)


@declines.add(X[:, :4].copy(), Y[:, :4].copy(), code="small")
def _few_features(x, y):
    return lax.map(lambda p: jnp.argmin(squared(y, p)), x)


@declines.add(X[:40], Y, code="small")
def _few_rows(x, y):
    return lax.map(lambda p: jnp.argmin(squared(y, p)), x)


@declines.add(X, Y, code="none")
def _all_distances(x, y):
    return lax.map(lambda p: jnp.sqrt(squared(y, p)), x)


@declines.add(X, Y, code="undecidable")
def _equal(x, y):
    return lax.map(lambda p: jnp.sum(squared(y, p) == 4.0), x)


@declines.add(X, Y, code="undecidable")
def _sorted(x, y):
    return lax.map(lambda p: jnp.sort(squared(y, p))[3], x)


@declines.add(X, Y, code="undecidable")
def _rounded(x, y):
    return lax.map(lambda p: jnp.sum(jnp.floor(squared(y, p))), x)


@declines.add(X, Y, code="undecidable")
def _compared_with_their_sum(x, y):
    def row(p):
        d = squared(y, p)
        return jnp.sum(d < jnp.mean(d))

    return lax.map(row, x)


@declines.add(X, Y)
def _row_of_a_recurrence(x, y):
    def step(c, p):
        i = jnp.argmin(squared(y, c))
        return 0.9 * c + 0.1 * y[i] + p, i

    return lax.scan(step, x[0], x)


@declines.add(X, Y, numerics="strict")
def _strict(x, y):
    return lax.map(lambda p: jnp.argmin(squared(y, p)), x)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    assert_fires(NAME, fn, args, "rows", **options)


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_fast_is_unguarded():
    """The level `fast` repeats no row of a sum."""
    total = lambda x, y: lax.map(lambda p: jnp.sum(jnp.exp(-squared(y, p))), x)  # noqa: E731
    f = optimize(total, numerics="fast")
    report = f.explain(X, Y)
    assert report.after.count("while") == 0
    assert "unguarded" in str(report)
