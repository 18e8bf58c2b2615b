"""`prefetch`: rows whose columns a residual scan slices are loaded a step ahead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rewriter import jax_compat as jc
from rewriter.prefetch import bind_residual, sliced_rows
from tests.helpers import assert_equivalent, random, verdicts

B, H = 3, 4


def gates(g, c):
    """Return the next state of an LSTM from its gates side by side."""
    _, s = c
    i, f, g, o = jnp.split(g, 4, -1)
    s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(s), s


BODIES = {
    "split": (lambda x, h: sum(jnp.split(x + h, 4, -1)), True),
    "sliced": (lambda x, h: jnp.tanh(2 * x)[..., 3:7] + h[..., :4], True),
    "first axis": (lambda x, h: jnp.split(x * h, 3, 0)[1], True),
    "whole": (lambda x, h: jnp.tanh(x + h), False),
    "product first": (lambda x, h: (x @ jnp.ones((16, 16)))[:, :4], False),
}


@pytest.mark.parametrize("name", BODIES)
def test_sliced_rows(name):
    fn, is_sliced = BODIES[name]
    body = jax.make_jaxpr(fn)(jnp.ones((B, 16)), jnp.ones((B, 16)))
    row = body.jaxpr.invars[0]
    assert sliced_rows(body.jaxpr.eqns, [row]) == ([row] if is_sliced else [])


@pytest.mark.parametrize("ahead", [[], [1], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 9])
def test_same_as_a_scan(length, reverse, ahead):
    """Every row at its own step, whichever are loaded ahead."""
    w, start = random(5), np.float32(0.5)
    xs = [random(length, 5), random(length), random(length, 2, seed=2)]

    def step(w, c, x, y, z):
        c = 0.5 * c + (w * x).sum() + y
        return c, c + z, x

    rows = [v[0] for v in xs]
    body = jax.make_jaxpr(step)(w, start, *rows)
    options = {"length": length, "reverse": reverse, "unroll": 1}

    def run(*xs):
        return bind_residual(body, [w], [jnp.asarray(start)], xs, ahead, **options)

    got = jax.jit(run)(*xs)
    want = lax.scan(
        lambda c, x: (step(w, c, *x)[0], step(w, c, *x)[1:]), start, xs, reverse=reverse
    )
    for a, b in zip(got, jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def _lstm(xs, w, u, reverse=False):
    def step(c, x):
        h, s = gates(x @ w + c[0] @ u, c)
        return (h, s), h

    zero = jnp.zeros((*xs.shape[1:-1], u.shape[0]), xs.dtype)
    return lax.scan(step, (zero, zero), xs, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows", [(), (8,)])
def test_gates_side_by_side(rows, reverse):
    """An LSTM whose gates are one product: values, gradients, and what is loaded."""
    d = 192 if not rows else 128
    w, u = random(d, 4 * d, scale=0.05), random(d, 4 * d, seed=1, scale=0.05)
    xs = random(64, *rows, d, seed=2)
    f = lambda xs, w, u: _lstm(xs, w, u, reverse)  # noqa: E731
    (verdict,) = verdicts(f, xs, w, u)
    assert verdict.outcome in ("distributed", "sectioned")
    assert_equivalent(f, xs, w, u, grad=True)


def test_residual_is_marked():
    """No pass takes the load back into the scan."""
    body = jax.make_jaxpr(lambda c, x: (c + x.sum(), c))(1.0, jnp.ones(3))
    options = {"length": 4, "reverse": False, "unroll": 1}
    run = lambda x: bind_residual(body, [], [jnp.float32(0)], [x], [0], **options)  # noqa: E731
    (scan,) = (
        e
        for e in jax.make_jaxpr(run)(jnp.ones((4, 3))).eqns
        if e.primitive.name == "scan"
    )
    from rewriter.graph import is_emitted

    assert is_emitted(scan)
    assert jc.scan_params(scan).num_carry == 3
