"""`winners`: the best of many, with the answers of JAX's own functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize, winners

RNG = np.random.default_rng(0)


def _specials(size):
    x = RNG.standard_normal(size)
    for value in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0):
        x[RNG.integers(0, size, 7)] = value
    return x


VALUES = {
    "normal": lambda n: RNG.standard_normal(n),
    "ties": lambda n: RNG.integers(-3, 4, n),
    "equal": np.zeros,
    "falling": lambda n: -np.arange(n),
    "rising": np.arange,
    "specials": _specials,
    "zeros of both signs": lambda n: RNG.choice([0.0, -0.0], n),
    "nan": lambda n: np.full(n, np.nan),
}


@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize("size", [7, 700, 3001, 20000])
@pytest.mark.parametrize("name", VALUES)
def test_best(name, size, k):
    """Values and indices of `top_k`: ties, zeros, infinities and NaN, whole or not."""
    rows = np.stack([VALUES[name](size) for _ in range(3)]).astype("f")
    want = lax.top_k(rows, k)
    got = jax.jit(jax.vmap(lambda row: winners.best(row, k)))(rows)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    np.testing.assert_array_equal(np.signbit(want[0]), np.signbit(got[0]))


def test_groups_are_used_where_they_pay():
    assert winners.is_grouped(20000, 10, jnp.dtype("float32"))
    assert not winners.is_grouped(300, 10, jnp.dtype("float32"))
    assert not winners.is_grouped(20000, 1000, jnp.dtype("float32"))
    assert not winners.is_grouped(20000, 10, jnp.dtype("bfloat16"))


@pytest.mark.parametrize("size", [5, 300])
def test_only(size):
    """The one index, or that there are several, or none."""
    able = np.zeros((size + 2, size), bool)
    able[:size] = np.eye(size, dtype=bool)
    able[size, [0, size - 1]] = True
    index, several = jax.jit(jax.vmap(lambda row: winners.only(row, 0)))(able)
    np.testing.assert_array_equal(index[:size], np.arange(size))
    np.testing.assert_array_equal(several, [False] * size + [True, False])


@pytest.mark.parametrize("size", [1, 64, 70_000])
def test_count(size):
    """The number of those that are sure, unless there is doubt."""
    sure = RNG.random(size) < 0.7
    doubtful = np.zeros(size, bool)
    number, doubt = jax.jit(winners.count)(sure, doubtful)
    assert number == sure.sum()
    assert not doubt
    doubtful[-1] = True
    assert jax.jit(winners.count)(sure & ~doubtful, doubtful)[1]


@pytest.mark.parametrize("shape", [(2000,), (3, 700)])
def test_batched_top_k(shape):
    """A loop that takes the best of long rows agrees with the loop, ties included."""
    rows = jnp.asarray(RNG.integers(0, 50, (40, *shape)), "f")
    rows = rows.at[3, ..., 5].set(jnp.nan)
    scores = lambda x: lax.map(lambda row: lax.top_k(row * 2.0, 4), x)  # noqa: E731
    assert "top_k" in str(jax.make_jaxpr(optimize(scores))(rows))
    for a, b in zip(jax.jit(scores)(rows), optimize(scores)(rows), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert a.dtype == b.dtype
