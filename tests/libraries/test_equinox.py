"""Recurrent cells and stacked layers written with Equinox."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from rewriter import optimize
from tests.helpers import assert_same, random
from tests.libraries.support import check

eqx = pytest.importorskip("equinox")

XS = random(7, 3)
KEY = jax.random.key(0)


def test_gru_cell():
    def model(cell, xs):
        def step(h, x):
            h = cell(x, h)
            return h, h

        return lax.scan(step, jnp.zeros(cell.hidden_size), xs)

    check(model, eqx.nn.GRUCell(3, 5, key=KEY), XS, jit=True, vmap=True)


def test_lstm_cell_with_a_head():
    def model(params, xs):
        cell, head = params

        def step(state, x):
            state = cell(x, state)
            return state, jax.nn.log_softmax(head(state[0]))

        zeros = jnp.zeros(cell.hidden_size)
        return lax.scan(step, (zeros, zeros), xs)[1]

    cell = eqx.nn.LSTMCell(3, 5, key=KEY)
    check(model, (cell, eqx.nn.Linear(5, 4, key=KEY)), XS)


def test_batch_of_sequences():
    """The user maps over sequences outside the scan, as Equinox's examples do."""

    def model(cell, xs):
        def one(xs):
            step = lambda h, x: (cell(x, h), None)  # noqa: E731
            return lax.scan(step, jnp.zeros(cell.hidden_size), xs)[0]

        return jax.vmap(one)(xs)

    check(model, eqx.nn.GRUCell(3, 5, key=KEY), random(4, 6, 3))


def test_scan_over_layers():
    """Equinox's recipe: layers stacked by `filter_vmap`, then scanned."""
    make = lambda key: eqx.nn.MLP(3, 3, 6, 1, jnp.tanh, key=key)  # noqa: E731
    layers = eqx.filter_vmap(make)(jax.random.split(KEY, 4))
    arrays, static = eqx.partition(layers, eqx.is_inexact_array)

    def model(arrays, x):
        def step(x, layer):
            x = x + eqx.combine(layer, static)(x)
            return x, jnp.sum(x)

        return lax.scan(step, x, arrays)

    check(model, arrays, XS[0])


def test_filtered_transformations_around_optimize():
    cell = eqx.nn.GRUCell(3, 5, key=KEY)

    def loss(cell, xs):
        step = lambda h, x: (cell(x, h), h)  # noqa: E731
        return jnp.sum(lax.scan(step, jnp.zeros(5), xs)[1] ** 2)

    want = eqx.filter_jit(eqx.filter_value_and_grad(loss))(cell, XS)
    fast = optimize(loss)
    assert_same(eqx.filter_jit(eqx.filter_value_and_grad(fast))(cell, XS), want)
    assert_same(optimize(eqx.filter_value_and_grad(loss))(cell, XS), want)
    one = eqx.filter_vmap(fast, in_axes=(None, 0))(cell, XS[None])
    assert_same(one, want[0][None])


@pytest.mark.parametrize("kind", ["lax", "bounded", "checkpointed"])
def test_while_loops_with_a_bound(kind):
    """Equinox's own loops: a nest of scans, or checkpoints and a custom rule."""
    loops = pytest.importorskip("equinox.internal")

    def model(w, x):
        def step(state):
            i, x = state
            return i + 1, jnp.tanh(w @ x) + x / 2

        until = lambda state: state[0] < 5  # noqa: E731
        start = (jnp.int32(0), x)
        return loops.while_loop(until, step, start, max_steps=8, kind=kind)

    check(model, random(3, 3), XS[0], grad=kind != "lax")


def test_own_scan_with_checkpoints():
    loops = pytest.importorskip("equinox.internal")

    def model(w, xs):
        def step(h, x):
            h = jnp.tanh(w @ h + x)
            return h, jnp.sum(h)

        return loops.scan(step, jnp.zeros(3), xs, kind="checkpointed", checkpoints=3)

    check(model, random(3, 3), XS)
