"""NaN and inf under masks, and guards whose gradient must stay finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import Cases, assert_equivalent, assert_same, no_warnings, random

X = random(16, 4)
NANS = random(16, 4, seed=1)
NANS[3] = np.inf
NANS[7, 1] = np.nan
NANS[9] = -np.inf
MASK = np.isfinite(NANS).all(1).astype(np.float32)

# Tempting: a product with the mask for a `where`, or the reverse; `0 * x` is 0; a
# maximum that drops NaN; a dot in place of a masked sum.
masks = Cases()


@masks.add(NANS, MASK)
def _where_hides(x, mask):
    return lax.scan(
        lambda c, r: (c + jnp.where(r[1] > 0, r[0], 0), c), jnp.zeros(4), (x, mask)
    )


@masks.add(NANS, MASK)
def _product_does_not_hide(x, mask):
    return lax.scan(lambda c, r: (c + r[1] * r[0], None), jnp.zeros(4), (x, mask))[0]


@masks.add(NANS, MASK)
def _product_does_not_hide_each(x, mask):
    return lax.map(lambda r: (r[1] * r[0], 0 * r[0], r[0] - r[0]), (x, mask))


@masks.add(X)
def _counter_mask(x):
    x = x.at[5:].set(jnp.nan)

    def body(i, c):
        return c + jnp.where(i < 5, x[i], 0.0), c + (i < 5) * x[i]

    return lax.fori_loop(0, 16, lambda i, c: body(i, c[0]), (jnp.zeros(4),) * 2)


@masks.add(NANS)
def _maximum_with_nan(x):
    def step(c, r):
        return (jnp.maximum(c[0], r), jnp.fmax(c[1], r), jnp.minimum(c[2], r)), c

    return lax.scan(step, (x[0], x[0], x[0]), x)


@masks.add(NANS, oracle=False)
def _argmax_with_nan(x):
    return lax.map(
        lambda r: (jnp.argmax(r), jnp.argmin(r), jnp.nanargmin(r * 2)), x[:7]
    )


@masks.add(NANS, oracle=False)
def _best_so_far(x):
    def step(c, ir):
        i, r = ir
        better = r[0] > c[0]
        return (jnp.where(better, r[0], c[0]), jnp.where(better, i, c[1])), c[1]

    return lax.scan(step, (-jnp.inf, -1), (jnp.arange(16), x))


@masks.add(np.array([3, 1, 3, 3, 1], np.float32), oracle=False)
def _first_of_equal(x):
    def step(c, ir):
        i, r = ir
        first, last = r > c[0], r >= c[2]
        new = (jnp.where(first, r, c[0]), jnp.where(first, i, c[1]))
        return (*new, jnp.where(last, r, c[2]), jnp.where(last, i, c[3])), None

    start = (-jnp.inf, -1, -jnp.inf, -1)
    return lax.scan(step, start, (jnp.arange(5), x))[0]


@masks.add(NANS)
def _sum_of_opposite_infinities(x):
    return lax.scan(lambda c, r: (c + r, c), jnp.zeros(4), x)


@masks.add(X)
def _zero_coefficient_and_infinite_start(x):
    start = jnp.array([jnp.inf, -jnp.inf, jnp.nan, 1.0])
    return lax.scan(lambda c, r: (0.0 * c + r, c), start, x)


@masks.add(NANS, X)
def _dot_with_a_zero_row(x, y):
    y = y.at[:, 2].set(0.0)
    return lax.map(lambda r: y @ r, x), lax.map(lambda r: jnp.sum((y - r) ** 2, 1), x)


@masks.add(NANS)
def _streaming_softmax(x):
    def step(c, r):
        top, total = c
        new = jnp.maximum(top, r)
        return (new, total * jnp.exp(top - new) + jnp.exp(r - new)), None

    return lax.scan(step, (jnp.full(4, -jnp.inf), jnp.zeros(4)), x)[0]


@masks.add(np.array([0.0, -0.0, 0.0, -0.0], np.float32), oracle=False)
def _signed_zero(x):
    low = lax.scan(lambda c, r: (jnp.minimum(c, r), None), jnp.float32(0), x)[0]
    return 1 / low, lax.map(lambda v: 1 / (v + 0.0 * v), x), lax.map(lambda v: 1 / v, x)


@pytest.mark.parametrize(("fn", "args", "options"), masks)
def test_nan_and_infinity(fn, args, options):
    """NaN and inf are where the original has them."""
    assert_equivalent(fn, *args, **options)


# The gradient of a guard. Tempting: batch the `cond`, whose `where` then gives
# 0 * inf = NaN in the branch that was not taken.
ZEROS = X.copy()
ZEROS[[2, 5]] = 0.0


def _cond_norm(x):
    return lax.map(lambda r: lax.cond(r @ r > 0, _norm, lambda r: 0.0 * r[0], r), x)


def _norm(r):
    return jnp.sqrt(r @ r)


def _cond_ratio(x):
    def step(c, r):
        c = c + lax.cond(r[0] != 0, lambda r: r[1] / r[0], lambda r: r[2], r)
        return c, c

    return lax.scan(step, 0.0, x)


def _double_where(x):
    def row(r):
        positive = r @ r > 0
        return jnp.where(positive, _norm(jnp.where(positive, r, 1.0)), 0.0)

    return lax.map(row, x)


def _switch_log(x):
    def row(r):
        index = jnp.clip(jnp.sign(r[0]).astype(jnp.int32) + 1, 0, 2)
        return lax.switch(index, [lambda v: -v, lambda v: 0 * v, jnp.log], r[0])

    return lax.map(row, x)


def _while_in_rows(x):
    def row(r):
        return lax.cond(r[0] > 0, lambda v: v**0.5, lambda v: v * 0, r[0]) * r[1]

    return lax.fori_loop(0, 16, lambda i, b: b.at[i].set(row(x[i])), jnp.zeros(16))


@pytest.mark.parametrize(
    "fn", [_cond_norm, _cond_ratio, _double_where, _switch_log, _while_in_rows]
)
def test_gradient_of_a_guard(fn):
    """`grad(optimize(f))` and `optimize(grad(f))` are those of f, without NaN."""
    assert_equivalent(fn, ZEROS, grad=True)


@pytest.mark.parametrize("level", ["strict", "fast"])
def test_gradient_of_a_guard_is_finite_at_each_level(level):
    """Also under `fast` the branch not taken does not leak."""

    def loss(x):
        return _cond_norm(x).sum() + _cond_ratio(x)[0]

    wanted = jax.grad(loss)(ZEROS)
    assert np.isfinite(wanted).all()
    assert_same(jax.grad(optimize(loss, numerics=level))(ZEROS), wanted, ulps=64)
    assert_same(optimize(jax.grad(loss), numerics=level)(ZEROS), wanted, ulps=64)


def test_debug_nans_is_not_triggered():
    """With the branches of a `cond` batched, `debug_nans` would raise."""

    def f(x):
        return lax.map(lambda v: lax.cond(v > 0, jnp.log, lambda v: 0 * v, v), x)

    x = np.array([1.0, -1.0, 0.0, 4.0], np.float32)
    want, slope = f(x), jax.grad(lambda x: f(x).sum())(x)
    with jax.debug_nans(True), no_warnings():
        assert_same(optimize(f)(x), want)
        assert_same(jax.grad(lambda x: optimize(f)(x).sum())(x), slope)
