"""`pairwise-distance`: as accurate as the direct form, whatever the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.passes.firing import codes

N, U = 400, 2.0**-24
RNG = np.random.default_rng(1)


def squared(x, y):
    return lax.map(lambda p: jnp.sum((y - p) ** 2, axis=1), x)


def _clusters(d):
    centres = RNG.standard_normal((20, d))[RNG.integers(0, 20, N)]
    return centres * (1 + 1e-6 * RNG.standard_normal((N, d)))


def _with_bad_rows(d):
    x = RNG.standard_normal((N, d))
    x[::97], x[5::101] = np.nan, np.inf
    return x


DATA = {
    "normal": lambda d: RNG.standard_normal((N, d)),
    "offset": lambda d: RNG.standard_normal((N, d)) + 1e4,
    "clusters": _clusters,
    "tiny": lambda d: RNG.standard_normal((N, d)) * 1e-20,
    "huge": lambda d: RNG.standard_normal((N, d)) * 1e18,
    "mixed": lambda d: RNG.standard_normal((N, d)) * 10 ** RNG.uniform(-18, 18, (N, 1)),
    "integers": lambda d: RNG.integers(0, 17, (N, d)),
    "bad_rows": _with_bad_rows,
    "constant": lambda d: np.ones((N, d)),
    "duplicates": lambda d: RNG.standard_normal((7, d))[RNG.integers(0, 7, N)],
}


@pytest.mark.parametrize("d", [28, 40])
@pytest.mark.parametrize("name", DATA)
def test_as_accurate_as_the_direct_form(name, d):
    x = DATA[name](d).astype("f")
    f = optimize(squared)
    assert "pairwise-distance/product" in codes(f.explain(x, x))
    got, direct = np.asarray(f(x, x)), np.asarray(jax.jit(squared)(x, x))
    with np.errstate(all="ignore"):
        true = np.stack([((x.astype("d") - p) ** 2).sum(1) for p in x.astype("d")])
        np.testing.assert_array_equal(np.isnan(got), np.isnan(direct))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(direct))
        assert (got[direct == 0] == 0).all()
        ok = (true > 2.0**-120) & np.isfinite(direct) & np.isfinite(true)

        def error(a):
            return (np.abs(a - true)[ok] / true[ok]).max(initial=0)

        assert error(got) <= max(2 * error(direct), 32 * U)


def two_sets(x, y):
    def row(c, p):
        return c, jnp.exp(-jnp.sum((p - y) ** 2, axis=-1) / 7) * 2

    return lax.scan(row, None, x)[1]


def filled(x, y):
    def body(i, out):
        return out.at[i].set(jnp.linalg.norm(y - x[i], axis=1))

    return lax.fori_loop(0, x.shape[0], body, jnp.zeros((x.shape[0], y.shape[0])))


def weighted(x, y):
    w = jnp.arange(y.shape[0], dtype=y.dtype)
    return lax.map(lambda p: w * jnp.sqrt(jnp.sum((y - p) ** 2, 1)) + p[0], x[:, :])


@pytest.mark.parametrize("f", [two_sets, filled])
def test_what_follows_is_done_in_the_block(f):
    x = RNG.standard_normal((333, 32)).astype("f")
    y = RNG.standard_normal((411, 32)).astype("f")
    report = optimize(f).explain(x, y)
    assert "pairwise-distance/product" in codes(report)
    assert report.after.count("dot_general") == 1
    got, want = np.asarray(optimize(f)(x, y)), np.asarray(jax.jit(f)(x, y))
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=1e-7)


def nearest(x, y):
    return lax.map(lambda p: jnp.argmin(jnp.sum((y - p) ** 2, axis=1)), x)


def within(x, y):
    return lax.map(lambda p: jnp.sum((y - p) ** 2, axis=1) < 60, x)


def one_norm(x, y):
    return lax.map(lambda p: jnp.sum(jnp.abs(y - p), axis=1), x)


def other_axis(x, y):
    return lax.map(lambda p: jnp.sum((y - p) ** 2, axis=0), x)


def moving_matrix(x, y):
    return lax.scan(lambda c, p: (c * 0.9, jnp.sum((c - p) ** 2, axis=1)), y, x)[1]


@pytest.mark.parametrize(
    "f", [nearest, within, one_norm, other_axis, moving_matrix, weighted]
)
def test_left_to_the_direct_form(f):
    x = RNG.integers(0, 5, (400, 32)).astype("f")
    y = RNG.integers(0, 5, (450, 32)).astype("f")
    report = optimize(f).explain(x, y)
    assert "pairwise-distance/product" not in codes(report)
    got, want = optimize(f)(x, y), jax.jit(f)(x, y)
    if not jnp.issubdtype(want.dtype, jnp.floating):
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_few_features_and_strict_stay_direct():
    x = RNG.standard_normal((400, 5)).astype("f")
    assert "pairwise-distance/small" in codes(optimize(squared).explain(x, x))
    wide = RNG.standard_normal((400, 32)).astype("f")
    strict = optimize(squared, numerics="strict").explain(wide, wide)
    assert not any(c.startswith("pairwise-distance") for c in codes(strict))


def test_gradient_is_the_direct_form():
    x = _clusters(32).astype("f")[:320]

    def loss(f):
        return lambda x: jnp.sum(jnp.log(f(x, x) + 1e-9))

    got = jax.grad(loss(optimize(squared)))(x)
    want = jax.grad(loss(squared))(x)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def _double_map(x, y):
    one = lambda p: lax.map(lambda q: jnp.sqrt(jnp.sum((p - q) ** 2)), y)  # noqa: E731
    return lax.map(one, x)


def _double_map_turned(x, y):
    return _double_map(y, x).T


@pytest.mark.parametrize("f", [_double_map, _double_map_turned])
def test_a_map_inside_a_map_belongs_to_its_step(f):
    """The outer points are the rows of the blocks: the table is not transposed."""
    x = RNG.standard_normal((333, 32)).astype("f")
    y = RNG.standard_normal((411, 32)).astype("f")
    report = optimize(f).explain(x, y)
    assert [v.outcome for v in report.verdicts] == ["blocked", "batched"]
    np.testing.assert_allclose(optimize(f)(x, y), jax.jit(f)(x, y), rtol=3e-5)


def test_a_map_inside_a_map_that_keeps_a_loop():
    """What can not be batched inside is left to the outer loop, with its values."""

    def f(x, y):
        def one(p):
            def inner(q):
                return lax.while_loop(lambda v: v < 4.0, lambda v: v * 1.5, 1 + q @ q)

            return p[0] * lax.map(inner, y)

        return lax.map(one, x)

    x = RNG.standard_normal((40, 8)).astype("f")
    y = RNG.standard_normal((30, 8)).astype("f")
    np.testing.assert_allclose(optimize(f)(x, y), jax.jit(f)(x, y), rtol=1e-5)
