"""Distances with weights or scales of the features, by both passes for distances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import optimize
from tests.passes.firing import codes

RNG = np.random.default_rng(0)
N, M, D, U = 420, 300, 32, 2.0**-24
FORMS = {
    "weights": lambda y, p, w: jnp.sum(w * (y - p) ** 2, axis=1),
    "weights last": lambda y, p, w: jnp.sum((y - p) ** 2 * w[None], axis=1),
    "product": lambda y, p, w: ((y - p) ** 2) @ w,
    "scales": lambda y, p, w: jnp.sum(jnp.square(w * (p - y)), axis=1),
    "divided": lambda y, p, w: jnp.sum(((y - p) / w) ** 2, axis=1),
    "both": lambda y, p, w: jnp.sum(w * (w * (y - p)) ** 2, axis=1),
}
WEIGHTS = {
    "positive": RNG.random(D) + 0.1,
    "both signs": RNG.standard_normal(D),
    "some zero": RNG.integers(0, 2, D) * 1.0,
    "tiny": RNG.random(D) * 1e-25,
    "of all sizes": 10.0 ** RNG.uniform(-12, 12, D),
    "one not a number": np.where(np.arange(D) == 3, np.nan, 1.0),
}
POINTS = {
    "normal": lambda n: RNG.standard_normal((n, D)),
    "clusters": lambda n: (
        (1 + np.arange(n)[:, None] % 4) * (1 + 1e-6 * RNG.standard_normal((n, D)))
    ),
}


def _points(data):
    x = POINTS[data](N)
    return x.astype("f"), np.concatenate([x[:100], POINTS[data](M)]).astype("f")


CASES = [(form, weights, "normal") for form in FORMS for weights in WEIGHTS]
CASES += [(form, w, "clusters") for form in ("weights", "divided") for w in WEIGHTS]


def _all(form, x, y, w):
    return lax.map(lambda p: FORMS[form](y, p, w), x)


def _decided(form, x, y, w):
    def row(p):
        d = FORMS[form](y, p, w)
        return jnp.argmin(d), lax.top_k(-d, 3)[1], jnp.sum(d < 20.0)

    return lax.map(row, x)


@functools.cache
def both(step, form, code):
    """Return a program, optimised, and as it is: one compilation for all data."""
    plain = functools.partial(step, form)
    f = optimize(plain)
    shapes = ((N, D), (100 + M, D), (D,))
    assert code in codes(f.explain(*(jax.ShapeDtypeStruct(s, "f") for s in shapes)))
    return f, jax.jit(plain)


@pytest.mark.parametrize(("form", "weights", "data"), CASES)
def test_distances(form, weights, data):
    """As accurate as the loop beside a float64 run, special values at their places."""
    (x, y), w = _points(data), WEIGHTS[weights].astype("f")
    new, plain = both(_all, form, "pairwise-distance/product")
    old, new = np.asarray(plain(x, y, w)), np.asarray(new(x, y, w))
    np.testing.assert_array_equal(np.isnan(old), np.isnan(new))
    np.testing.assert_array_equal(np.isinf(old), np.isinf(new))
    with jax.enable_x64(True), np.errstate(all="ignore"):
        wide = [np.float64(v) for v in (x, y, w)]
        true = np.asarray(plain(*wide))
        whole = np.asarray(plain(*wide[:2], abs(wide[2])))
    ok = np.isfinite(old) & np.isfinite(whole)
    scale = np.maximum(whole[ok], 1e-30)  # not what is denormal
    error = lambda a: np.max(abs(a[ok] - true[ok]) / scale, initial=0)  # noqa: E731
    assert error(new) <= max(2 * error(old), 32 * U)


@pytest.mark.parametrize("data", POINTS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("form", ["divided"])
def test_decisions(form, weights, data):
    """The loop's own answers."""
    (x, y), w = _points(data), WEIGHTS[weights].astype("f")

    new, old = both(_decided, form, "distance-rows/rows")
    for a, b in zip(old(x, y, w), new(x, y, w), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def _weights_of_the_step(x, y, w):
    return lax.map(lambda p: jnp.sum(jnp.exp(p) * (y - p) ** 2, axis=1), x)


def _weights_per_point(x, y, w):
    t = jnp.ones((len(y), D)) + w
    return lax.map(lambda p: jnp.sum(t * (y - p) ** 2, axis=1), x)


def _shifted(x, y, w):
    return lax.map(lambda p: jnp.sum((w + (y - p)) ** 2, axis=1), x)


def _cubed(x, y, w):
    return lax.map(lambda p: jnp.sum(w * (y - p) ** 3, axis=1), x)


@pytest.mark.parametrize(
    "f", [_weights_of_the_step, _weights_per_point, _shifted, _cubed]
)
def test_declines(f):
    (x, y), w = _points("normal"), WEIGHTS["positive"].astype("f")
    assert "pairwise-distance/product" not in codes(optimize(f).explain(x, y, w))
    np.testing.assert_allclose(
        optimize(f)(x, y, w), jax.jit(f)(x, y, w), rtol=2e-4, atol=1e-3
    )
