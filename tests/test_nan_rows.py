"""NaN stays where the loop has it.

XLA's CPU backend loses NaN in a maximum or minimum over many rows (`jnp.max(X, 1)` of
3000 rows gives a number), a loop over the rows keeps it. Rewritten loops must keep it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.fuzz import eager_rewriting
from tests.helpers import Cases, random

N = 3000
W = random(6, 6, seed=3)
inf = np.float32(np.inf)


def _rows(*shape):
    x = random(N, *shape).reshape(N, -1)
    for row, column in ((0, 0), (7, 2), (N - 1, 5)):
        x[row, column % x.shape[1]] = np.nan
    return x.reshape(N, *shape)


X, T, WIDE, V = _rows(6), _rows(6, 6), _rows(64), _rows(1)[:, 0]


def assert_nan_kept(fn, *args, **options):
    """Check that NaN is exactly where the loop has it, and numbers are close."""
    old, new = jax.jit(fn)(*args), optimize(fn, **options)(*args)
    for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
            continue
        a, b = (np.asarray(x.astype("f")) for x in (a, b))
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=["priced", "eager"], autouse=True)
def pricing(request):
    """As priced for this machine, and with all that may be rewritten."""
    if request.param == "priced":
        yield
    else:
        with eager_rewriting():
            yield


# ------------------------------------------------------------ one row at a time


def _pooled(r):
    image = r[None, :, :, None]
    windows = (1, 2, 2, 1)
    return lax.reduce_window(image, -inf, lax.max, windows, windows, "VALID")


ONE_ROW = {
    "max": jnp.max,
    "min": jnp.min,
    "ptp": jnp.ptp,
    "argmax": jnp.argmax,
    "absolute": lambda r: jnp.max(jnp.abs(r)),
    "clipped": lambda r: jnp.max(jnp.clip(r, -1, 1)),
    "initial": lambda r: jnp.max(r, initial=0.0),
    "where": lambda r: jnp.max(r, where=r > 0, initial=-1.0),
    "chebyshev": lambda r: jnp.linalg.norm(r, jnp.inf),
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": jax.nn.logsumexp,
    "standardized": jax.nn.standardize,
    "divided_by_the_largest": lambda r: r / jnp.max(jnp.abs(r)),
    "where_largest": lambda r: jnp.where(r == jnp.max(r), 1.0, 0.0),
    "nanmax": jnp.nanmax,
    "sorted": jnp.sort,
    "median": jnp.median,
    "top": lambda r: lax.top_k(r, 2)[0],
    "cumulative": lax.cummax,
    "windows": lambda r: lax.reduce_window(r, -inf, lax.max, (2,), (1,), "VALID"),
    "least_of_windows": lambda r: lax.reduce_window(
        r, inf, lax.min, (3,), (2,), "SAME"
    ),
    "segments": lambda r: jax.ops.segment_max(r, jnp.arange(6) // 3, num_segments=2),
    "scatter": lambda r: jnp.zeros(3).at[jnp.arange(6) % 3].max(r),
    "unrecognised": lambda r: lax.reduce(r, -inf, jnp.maximum, (0,)),
    "unrecognised_min": lambda r: lax.reduce(r, inf, lambda a, b: lax.min(b, a), (0,)),
    "outer": lambda r: jnp.max(jnp.outer(r, r), 1),
    "product": lambda r: jnp.max(W @ r),
    "gradient": jax.grad(jnp.max),
    "gradient_of_logsumexp": jax.grad(jax.nn.logsumexp),
    "jit": jax.jit(jnp.max),
    "checkpoint": jax.checkpoint(lambda r: jnp.max(jnp.sin(r))),
    "checkpoint_with_a_dot": jax.checkpoint(lambda r: jnp.max(jnp.tanh(W @ r))),
    "checkpoint_with_a_cond": jax.checkpoint(
        lambda r: lax.cond(r[1] > 0, jnp.max, jnp.min, r)
    ),
    "vmap": lambda r: jax.vmap(lambda v: jnp.max(v * r))(r),
    "cond": lambda r: lax.cond(r[1] > 0, jnp.max, jnp.min, r),
    "switch": lambda r: lax.switch(jnp.argmax(r) % 3, [jnp.max, jnp.min, jnp.sum], r),
    "map": lambda r: lax.map(lambda v: jnp.max(v * r), r),
    "scan": lambda r: lax.scan(lambda c, v: (jnp.maximum(c, v), None), 0.0, r)[0],
    "scan_of_maxima": lambda r: lax.scan(
        lambda c, _: (c / 2 + jnp.max(r), None), 0.0, None, 3
    )[0],
    "fori_loop": lambda r: lax.fori_loop(
        0, 3, lambda i, c: jnp.maximum(c, jnp.min(r * i)), 0.0
    ),
    "while_loop": lambda r: lax.while_loop(
        lambda c: (c[0] < 3) & ~(jnp.max(c[1]) > 5),
        lambda c: (c[0] + 1, c[1] + jnp.min(r)),
        (0, r),
    )[1],
    "ends_at_nan": lambda r: lax.while_loop(
        lambda c: (c[0] < 9) & (jnp.max(c[1]) < 5),
        lambda c: (c[0] + 1, c[1] * 2),
        (0, r),
    ),
}
SQUARES = {
    "max": jnp.max,
    "columns": lambda t: jnp.max(t, axis=0),
    "rows": lambda t: jnp.min(t, axis=1),
    "pooled": _pooled,
    "blocks": lambda t: t.reshape(3, 2, 3, 2).max((1, 3)),
    "attention": lambda t: jax.nn.softmax(t @ t.T) @ t,
    "nested": lambda t: lax.map(jnp.max, t),
    "nested_twice": lambda t: jnp.max(lax.map(jnp.max, t)),
    "nested_sums": lambda t: lax.scan(
        lambda c, r: (c + jnp.max(r), jnp.min(r)), 0.0, t
    ),
    "nested_recurrence": lambda t: lax.scan(
        lambda c, r: (jnp.tanh(c + jnp.max(r) + W[0] @ r), jnp.min(r)), 0.0, t
    ),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_rows(name):
    assert_nan_kept(lambda x: lax.map(ONE_ROW[name], x), X)


@pytest.mark.parametrize("name", ["max", "ptp", "softmax", "cond", "windows", "top"])
def test_wide_rows(name):
    assert_nan_kept(lambda x: lax.map(ONE_ROW[name], x), WIDE)


@pytest.mark.parametrize("name", SQUARES)
def test_squares(name):
    assert_nan_kept(lambda t: lax.map(SQUARES[name], t), T)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats(dtype):
    assert_nan_kept(lambda x: lax.map(jnp.max, x), jnp.asarray(X, dtype))


def test_wide_floats():
    with jax.enable_x64(True):
        assert_nan_kept(lambda x: lax.map(jnp.max, x), X.astype("d"))


def test_blocks():
    f = lambda x: lax.map(lambda r: jnp.max(jnp.outer(r, r) @ W, 1), x)  # noqa: E731
    assert_nan_kept(f, X, memory_budget=100_000)


# ------------------------------------------------------------ all rows together

FOLDS = {
    "max": jnp.maximum,
    "min": jnp.minimum,
    "turned": lambda c, r: jnp.maximum(r, c),
    "fmax": jnp.fmax,
    "of_products": lambda c, r: jnp.maximum(c, jnp.tanh(W @ r)),
    "masked": lambda c, r: jnp.where(r[1] > 0, jnp.minimum(c, r), c),
    "cond": lambda c, r: lax.cond(r[1] > 0, lambda: jnp.maximum(c, r), lambda: c),
    "of_maxima": lambda c, r: jnp.maximum(c, jnp.max(jnp.outer(r, r), 1)),
    "sum_of_maxima": lambda c, r: c + jnp.max(r),
    "logaddexp": jnp.logaddexp,
    "viterbi": lambda c, r: jnp.max(c[:, None] + W, 0) + r,
}


@pytest.mark.parametrize("name", FOLDS)
def test_folds(name):
    step = FOLDS[name]
    zero = jnp.zeros(6)
    assert_nan_kept(lambda x: lax.scan(lambda c, r: (step(c, r), None), zero, x)[0], X)
    assert_nan_kept(lambda x: lax.fori_loop(0, N, lambda i, c: step(c, x[i]), zero), X)


@pytest.mark.parametrize("name", ["max", "min", "fmax"])
def test_folds_of_numbers(name):
    step = FOLDS[name]
    f = lambda v: lax.scan(lambda c, x: (step(c, x), None), 0.0, v)[0]  # noqa: E731
    assert_nan_kept(f, V)


@pytest.mark.parametrize("name", ["max", "min", "viterbi"])
def test_stacked_folds(name):
    step = FOLDS[name]
    f = lambda x: lax.scan(lambda c, r: (step(c, r),) * 2, jnp.zeros(6), x)  # noqa: E731
    assert_nan_kept(f, X)


DISTANCES = Cases()


@DISTANCES.add(X)
def _chebyshev(x):
    return lax.map(lambda p: jnp.max(jnp.abs(x[:80] - p), 1), x)


@DISTANCES.add(X)
def _least_chebyshev(x):
    return lax.map(lambda p: jnp.min(jnp.max(jnp.abs(x[:80] - p), 1)), x)


@DISTANCES.add(WIDE)
def _nearest(x):
    return lax.map(lambda p: jnp.min(jnp.sum((x[:200] - p) ** 2, 1)), x)


@DISTANCES.add(WIDE)
def _nearest_and_farthest_of_clean_rows(x):
    def row(p):
        d = jnp.sum((x[1:200] - p) ** 2, 1)
        return jnp.argmin(d), jnp.max(d)

    return lax.map(row, x)


@pytest.mark.parametrize(("fn", "args", "options"), DISTANCES)
def test_distances(fn, args, options):
    assert_nan_kept(fn, *args, **options)
