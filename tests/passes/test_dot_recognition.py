"""`dot-recognition`: sums of products in any disguise, contracted in a cheap order."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter.printer import walk
from tests.helpers import Cases, random
from tests.passes.firing import assert_declines, assert_fires

NAME = "dot-recognition"
W, X, A = random(96, 48), random(400, 48, seed=1), random(48, 48, seed=2)
fires, declines = Cases(), Cases()


@fires.add(W, X)
def _multiply_and_sum(w, x):
    return lax.map(lambda p: jnp.sum(w * p, axis=1), x)


@fires.add(W, X)
def _mean(w, x):
    return lax.map(lambda p: (w * p[None, :]).mean(-1), x)


@fires.add(W, X)
def _columns(w, x):
    return lax.map(lambda p: jnp.sum(w.T * p[:, None], axis=0), x)


@fires.add(W, X)
def _cosine(w, x):
    def row(p):
        return jnp.sum(w * p, 1) / (jnp.linalg.norm(w, axis=1) * jnp.linalg.norm(p))

    return lax.map(row, x)


@fires.add(A, X)
def _quadratic_form_of_an_outer_product(a, x):
    return lax.map(lambda p: jnp.sum(a * p[:, None] * p[None, :]), x)


@fires.add(A, X, X[::-1].copy())
def _bilinear_form(a, x, y):
    return lax.map(lambda r: jnp.sum(r[0][:, None] * a * r[1]), (x, y))


@fires.add(random(300, 40, 40), A[:40, :40].copy(), A[0, :40].copy())
def _chain(stack, b, v):
    return lax.map(lambda m: (m @ b) @ v, stack)


@fires.add(random(12, 30, 20, seed=5), X[:, :30].copy())
def _einsum_with_a_weight(w, x):
    s = jnp.arange(30.0)
    return lax.map(lambda p: jnp.sum(w * (p * s)[None, :, None], axis=1), x)


@fires.add(W, X)
def _in_a_nest(w, x):
    return lax.map(lambda p: lax.map(lambda q: jnp.sum(p * q), w), x)


@fires.add(W.astype("d"), X.astype("d"))
def _as_float64_says(w, x):
    return lax.map(lambda p: jnp.sum(w * p, axis=1), x)


@fires.add(W, X)
def _beside_a_recurrence(w, x):
    def step(c, p):
        c = jnp.sin(c + p[0])
        return c, c * jnp.sum(w * p, axis=1)

    return lax.scan(step, jnp.float32(0), x)


@declines.add(X, X[::-1].copy())
def _both_change(x, y):
    return lax.map(lambda r: jnp.sum(r[0] * r[1]), (x, y))


@declines.add((W * 8).astype(np.int32), (X * 8).astype(np.int32))
def _integers(w, x):
    return lax.map(lambda p: jnp.sum(w * p, axis=1), x)


@declines.add(W.astype(jnp.bfloat16), X.astype(jnp.bfloat16))
def _half_precision(w, x):
    return lax.map(lambda p: jnp.sum(w * p, axis=1), x)


@declines.add(W, X)
def _not_a_product(w, x):
    return lax.map(lambda p: jnp.sum(jnp.tanh(w + p), axis=1), x)


@declines.add(W[:, 0].copy(), random(60, 96, 48))
def _weights_on_what_changes(w, x):
    return lax.map(lambda m: jnp.sum(w[:, None] * jnp.tanh(m), axis=1), x)


@declines.add(W, X)
def _sum_over_a_broadcast_axis(w, x):
    return lax.map(lambda p: jnp.sum(jnp.broadcast_to(p, (96, 48)), axis=0), x)


@declines.add(W, X, numerics="strict")
def _strict(w, x):
    return lax.map(lambda p: jnp.sum(w * p, axis=1), x)


@pytest.mark.parametrize(("fn", "args", "options"), fires)
def test_fires(fn, args, options):
    report = assert_fires(NAME, fn, args, "contracted", **options)
    assert any(e.primitive.name == "dot_general" for e in walk(report.after.jaxpr))


@pytest.mark.parametrize(("fn", "args", "options"), declines)
def test_declines(fn, args, options):
    assert_declines(NAME, fn, args, **options)


def test_full_precision():
    """A multiply-and-sum never becomes a dot of lower precision."""
    report = assert_fires(NAME, _multiply_and_sum, (W, X))
    dots = [e for e in walk(report.after.jaxpr) if e.primitive.name == "dot_general"]
    for e in dots:
        precision = e.params["precision"]
        both = precision if isinstance(precision, tuple) else (precision,)
        assert all(p == lax.Precision.HIGHEST for p in both)
        assert e.params["preferred_element_type"] == np.float32


def test_a_chain_multiplies_vectors():
    """No product of two matrices is left."""
    args = (random(300, 40, 40), A[:40, :40].copy(), A[0, :40].copy())
    report = assert_fires(NAME, _chain, args)
    dots = [e for e in walk(report.after.jaxpr) if e.primitive.name == "dot_general"]
    assert max(e.outvars[0].aval.size for e in dots) <= 300 * 40
